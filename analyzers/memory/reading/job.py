"""What `run.json` tells of the job that a snapshot is of."""

from pathlib import Path
from typing import Any

import msgspec

FOLDERS_UP = 3
BYTES_OF = {"float32": 4, "bfloat16": 2, "float16": 2}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The model's shape, as far as told, and how it is trained; bytes of an activation and of a moment."""

    name: str
    dim: int | None = None
    hidden_dim: int | None = None
    layers: int | None = None
    heads: int | None = None
    batch: int
    seq: int
    compute_bytes: int
    state_bytes: int
    checkpointing: str
    dp_shard: int
    world_size: int

    @property
    def tokens(self) -> int:
        """Positions of one forward pass on one rank."""
        return self.batch * self.seq

    @property
    def activation_bytes_per_layer(self) -> int | None:
        """What one pre-norm block with SwiGLU saves without recomputation.

        Counted as Korthikanti et al. 2022 do (arXiv:2205.05198, section 4.1), for a block without dropout and biases
        whose attention (FlashAttention, Dao et al. 2022) keeps no scores. In units of tokens x dim: the inputs of both
        norms and of the projections behind them (4), queries, keys and values with heads repeated (3), the attention's
        output (1) and its copy for the projection (1); and 4 of tokens x hidden_dim: both branches, the activated one
        and their product. In float32 a factor for each norm and the logarithms of the sums for each head.
        """
        if self.dim is None or self.hidden_dim is None or self.heads is None:
            return None
        wide = 9 * self.dim + 4 * self.hidden_dim
        return self.tokens * (wide * self.compute_bytes + 4 * (2 + self.heads))


def job_of(snapshot: Path) -> Job | None:
    """The job whose run folder a snapshot lies in; None where no complete run.json is near."""
    for folder in list(snapshot.resolve().parents)[:FOLDERS_UP]:
        try:
            return from_manifest(msgspec.json.decode((folder / "run.json").read_bytes()))
        except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError):
            continue
    return None


def from_manifest(manifest: dict[str, Any]) -> Job:
    """Raises KeyError where something is missing."""
    config, model = manifest["config"], manifest.get("model", {})
    training = config["training"]
    return msgspec.convert(
        {
            "name": f"{config['model']['name']} {config['model']['flavor']}",
            "dim": model.get("dim"),
            "hidden_dim": model.get("hidden_dim"),
            "layers": model.get("n_layers"),
            "heads": model.get("n_heads"),
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
