"""Describe the training job that wrote a snapshot, and predict the bytes that one layer saves for the backward pass."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from analyzers.files import read_json
from analyzers.run import NODES


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The training job that wrote a snapshot, as far as its run.json describes it.

    `dim`, `hidden_dim`, `layers`, `heads` and `head_dim` are the shape of the model: its width, the width of its
    feed-forward layers, and the numbers of layers and of attention heads (None: not recorded). `head_dim` is the size
    of a head (None: `dim` divided by `heads`). `batch` is the local batch size, and `seq` the length of a sequence in
    tokens. `compute_bytes` and `state_bytes` are the bytes of one element of an activation and of the optimizer's
    state. `checkpointing` is the mode of activation checkpointing. `dp_shard` is the number of ranks that shard one
    copy of the model, and `world_size` the number of all ranks.
    """

    name: str
    dim: int | None = None
    hidden_dim: int | None = None
    layers: int | None = None
    heads: int | None = None
    head_dim: int | None = None
    """The size of an attention head; None: `dim` divided by `heads`."""
    batch: int
    seq: int
    compute_bytes: int
    state_bytes: int
    checkpointing: str
    dp_shard: int
    world_size: int

    @property
    def tokens(self) -> int:
        """The tokens of one forward pass on one rank: local batch size times sequence length."""
        return self.batch * self.seq

    @property
    def activation_bytes_per_layer(self) -> int | None:
        """The bytes that one transformer layer (pre-norm, SwiGLU) saves for its backward pass, without recomputation.

        The count follows Korthikanti et al. 2022 (arXiv:2205.05198, section 4.1), for a layer without dropout and
        biases whose attention (FlashAttention, Dao et al. 2022) keeps no scores. Elements in units of tokens x dim: the
        inputs of both norms and of the projections after them (4). In units of tokens x heads x head_dim (equal to dim
        in many models): queries, keys and values with heads repeated (3), the attention's output (1) and its copy for
        the projection (1). In units of tokens x hidden_dim: both branches, the activated branch and their product (4).
        In float32, per token: a factor for each norm, and the logarithm of the softmax's sum for each head.

        The result is None if run.json lacks one of these values. Example: dim 256, hidden_dim 768, 8 heads, 512 tokens
        in bfloat16 (2 bytes) save 512 x ((9 x 256 + 4 x 768) x 2 + 4 x (2 + 8)) = 5,525,504 bytes.
        """
        if self.dim is None or self.hidden_dim is None or self.heads is None:
            return None
        attention = self.dim if self.head_dim is None else self.heads * self.head_dim
        width = 4 * self.dim + 5 * attention + 4 * self.hidden_dim
        return self.tokens * (width * self.compute_bytes + 4 * (2 + self.heads))


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
