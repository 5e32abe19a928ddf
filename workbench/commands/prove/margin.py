"""The error that a predicted memory peak may have, and how much of the room for tensors it may therefore take.

Each margin covers the largest error in the tables of docs/reference/accuracy.md. These programs measure the errors:
`benchmarks.estimate` and `benchmarks.advice.plans` (data parallelism), `benchmarks.parallelisms` (other meshes).
"""

from typing import NamedTuple

from workbench.trainer_answers import TrainerEstimate

_DATA_PARALLEL = 0.05
"""The margin for one rank, DDP, FSDP and HSDP: in 24 jobs, estimates were 3.9 % too low to 4.6 % too high."""
_OTHER_MESHES = 0.10
"""The margin for other meshes: on 45 ranks, the peak was up to 9.2 % above the estimate, as gloo keeps copies."""
_VALIDATION_ON_OTHER_MESHES = 0.30
"""The same if the peak is in the validation, which has little other memory: up to 27 % above the estimate."""
_EXPERTS = 0.06
"""The margin for expert parallelism: peaks were up to 5.3 % above the estimate, which cannot foresee the routing."""
_LEFT_FREE = 0.20
"""The share of the room that is left free if the prediction is a lower bound, as memory still grows after it."""
_MESH_KEYS = ("tp", "cp", "pp")


class Prediction(NamedTuple):
    """A predicted peak in bytes, and the largest relative error that it may have; None if it is a lower bound."""

    peak_bytes: int
    margin: float | None

    def fits(self, room_bytes: int) -> bool:
        """Return whether the peak fits into `room_bytes` bytes for tensors, even with the error that it may have."""
        return self.peak_bytes <= (1 - (_LEFT_FREE if self.margin is None else self.margin)) * room_bytes


def rehearsed(estimate: TrainerEstimate, backend: str) -> Prediction:
    """Return the prediction from an estimate of a job that runs on a communication backend, such as `gloo`."""
    fullest, mesh = max(estimate.ranks, key=lambda rank: rank.peak_bytes), estimate.mesh
    if any(mesh.get(key, 1) > 1 for key in _MESH_KEYS):
        is_validation = fullest.peak_window == "eval"
        return Prediction(fullest.peak_bytes, _VALIDATION_ON_OTHER_MESHES if is_validation else _OTHER_MESHES)
    margin = _EXPERTS if mesh.get("ep", 1) > 1 else _DATA_PARALLEL
    # Gloo's thread may release the buffers of a finished collective late: as many again were live at measured peaks.
    if backend == "gloo" and mesh.get("dp_shard", 1) > 1:
        margin += fullest.categories.get("communication", 0) / fullest.peak_bytes
    return Prediction(fullest.peak_bytes, margin)
