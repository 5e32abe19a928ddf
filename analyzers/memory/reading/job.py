"""Find the training job that wrote a snapshot: the run.json in the run folder has its model and settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from analyzers.files import read_json
from analyzers.memory.job import Job
from analyzers.nodes.received import NODES

_FOLDERS_UP = 3
"""The number of folders above a snapshot that are searched for run.json.

Snapshots are in `RUN/memory_snapshot/iteration_N/`.
"""
BYTES_OF = {"float32": 4, "bfloat16": 2, "float16": 2}
"""{name of a data type: bytes of one element}."""


def job_of(snapshot: Path) -> Job | None:
    """Return the training job that wrote a snapshot; None if no folder above the snapshot has a complete run.json.

    A snapshot in `RUN/nodes/NODE/` was sent by another node; its run folder is RUN.
    """
    above = list(snapshot.resolve().parents)
    of_run = [folder.parent for folder in above[_FOLDERS_UP : _FOLDERS_UP + 1] if folder.name == NODES]
    for folder in [*above[:_FOLDERS_UP], *of_run]:
        try:
            return _job_in_manifest(read_json(folder / "run.json"))
        except (OSError, KeyError, TypeError, ValueError, msgspec.ValidationError):
            continue
    return None


def _job_in_manifest(manifest: Mapping[str, Any]) -> Job:
    """Return the training job described by the contents of a run.json.

    Raises:
        KeyError: A key is missing, or a data type is not in `BYTES_OF`.
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
