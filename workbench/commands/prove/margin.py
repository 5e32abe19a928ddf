"""The largest error that a predicted memory peak may have.

Each margin covers the largest error in the tables of docs/reference/accuracy.md. These programs measure the errors:
`benchmarks.estimate` and `benchmarks.advice.plans` (data parallelism), `benchmarks.parallelisms` (other meshes).
"""

from collections.abc import Mapping
from typing import Any

from workbench.proof_data import Basis

DATA_PARALLEL = 0.05
"""The margin for one rank, DDP, FSDP and HSDP: in 24 jobs, estimates were 3.9 % too low to 4.6 % too high."""
OTHER_MESHES = 0.10
"""The margin for other meshes: on 45 ranks, the peak was up to 9.2 % above the estimate, as gloo keeps copies."""
EXPERTS = 0.06
"""The margin for expert parallelism: peaks were up to 5.3 % above the estimate, which cannot foresee the routing."""
BEFORE_PEAK = 0.20
"""The margin for a prediction from the failed request, after which memory still grows.

In the measured case, the request failed at 95 % of the peak.
"""
MESH_KEYS = ("tp", "cp", "pp")


def margin(basis: Basis, manifest: Mapping[str, Any]) -> float:
    """Return the largest relative error of a prediction; it depends on the basis and on the mesh of the run.

    `manifest` is the content of the run's run.json.
    """
    if basis is Basis.FAILED_REQUEST:
        return BEFORE_PEAK
    mesh = manifest.get("mesh") or {}
    if any(int(mesh.get(key, 1)) > 1 for key in MESH_KEYS):
        return OTHER_MESHES
    return EXPERTS if int(mesh.get("ep", 1)) > 1 else DATA_PARALLEL


def usable_share(stated: float) -> float:
    """Return the fraction of the memory for tensors that a predicted peak may use; `stated` is the margin of error."""
    return 1 - stated
