"""Find the training job that wrote a snapshot: the model and settings in the run.json of its run folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from analyzers.files import read_json
from analyzers.memory.job import Job

FOLDERS_UP = 3
"""How many folders above a snapshot run.json may be: snapshots are in `RUN/memory_snapshot/iteration_N/`."""
BYTES_OF = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one element, by the name of its type."""


def job_of(snapshot: Path) -> Job | None:
    """Return the job in whose run folder a snapshot is; None if no complete run.json is near."""
    for folder in list(snapshot.resolve().parents)[:FOLDERS_UP]:
        try:
            return job_in_manifest(read_json(folder / "run.json"))
        except (OSError, KeyError, TypeError, ValueError, msgspec.ValidationError):
            continue
    return None


def job_in_manifest(manifest: Mapping[str, Any]) -> Job:
    """Return the job that a run.json describes.

    Raises:
        KeyError: A key is missing.
        msgspec.ValidationError: A value has a wrong type.
    """
    config, model = manifest["config"], manifest.get("model")
    model = model if isinstance(model, dict) else {}
    training = config["training"]
    return msgspec.convert(
        {
            "name": f"{config['model']['name']} {config['model']['flavor']}",
            "dim": model.get("dim"),
            "hidden_dim": model.get("hidden_dim"),
            "layers": model.get("n_layers"),
            "heads": model.get("n_heads"),
            "head_dim": model.get("head_dim"),
            "batch": training["local_batch_size"],
            "seq": training["seq_len"],
            "compute_bytes": BYTES_OF[training["mixed_precision_param"]],
            "state_bytes": BYTES_OF[training["dtype"]],
            "checkpointing": config["activation_checkpoint"]["mode"],
            "dp_shard": manifest["mesh"]["dp_shard"],
            "world_size": manifest["world_size"],
        },
        Job,
    )
