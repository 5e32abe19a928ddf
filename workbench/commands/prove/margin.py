"""State how far a predicted peak may be from the measured one, from measurements of estimates against real runs.

Each margin covers the largest error in the tables of docs/reference/accuracy.md that its program measures again:
`benchmarks.estimate` and `benchmarks.advice.plans` (data parallelism), `benchmarks.parallelisms` (the other meshes).
"""

from collections.abc import Mapping
from typing import Any

from workbench.proof_data import Basis

DATA_PARALLEL = 0.05
"""Of 24 jobs of one rank, DDP, FSDP and HSDP the estimates were from 3.9 % below the peak to 4.6 % above it."""
OTHER_MESHES = 0.10
"""Of 45 ranks of other meshes the peak was up to 9.2 % above: gloo keeps copies of what it gathers and reduces."""
EXPERTS = 0.06
"""Which rank gets how many tokens no estimate knows: up to 5.3 % above."""
BEFORE_PEAK = 0.20
"""The prediction is for the request that failed, and the peak comes later: the one measured case failed at 95 %."""
MESH_KEYS = ("tp", "cp", "pp")


def margin(basis: Basis, manifest: Mapping[str, Any]) -> float:
    """Return the relative error that a prediction on this basis may have for the mesh of a run."""
    if basis is Basis.FAILED_REQUEST:
        return BEFORE_PEAK
    mesh = manifest.get("mesh") or {}
    if any(int(mesh.get(key, 1)) > 1 for key in MESH_KEYS):
        return OTHER_MESHES
    return EXPERTS if int(mesh.get("ep", 1)) > 1 else DATA_PARALLEL


def usable_share(stated: float) -> float:
    """Return the fraction of the room for tensors that a prediction with the margin `stated` may take."""
    return 1 - stated
