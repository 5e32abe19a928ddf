"""The device meshes of a job, and this rank's position in them."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.config.mesh import CONTEXT, EXPERT, EXPERT_SHARD, PIPELINE, REPLICATE, SHARD, TENSOR, Degrees

_SHARD_CONTEXT = "dp_shard_cp"
"""The mesh dimension that joins sharding and context parallelism: FSDP shards weights over both."""


def _build_mesh(sizes: dict[str, int], device_type: str, keep: Collection[str] = ()) -> DeviceMesh | None:
    """Return a mesh with the dimensions in `sizes`, {name: number of ranks}; None if no dimension remains.

    Dimensions of size 1 are left out, except those in `keep`.
    """
    dimensions = {name: size for name, size in sizes.items() if size > 1 or name in keep}
    if not dimensions:
        return None
    return init_device_mesh(device_type, tuple(dimensions.values()), mesh_dim_names=tuple(dimensions))


def _dense_mesh(degrees: Degrees, device_type: str) -> DeviceMesh | None:
    """Return the mesh for all weights except the experts; None on a single rank."""
    # FSDP needs a dimension to shard over, if only of one rank.
    mesh = _build_mesh(degrees.dense(), device_type, {SHARD} if degrees.uses_fsdp and degrees.sharding == 1 else ())
    if mesh and {SHARD, CONTEXT} <= set(mesh.mesh_dim_names or ()):
        mesh[SHARD, CONTEXT]._flatten(_SHARD_CONTEXT)  # noqa: SLF001 - there is no public way to join dimensions
    return mesh


def _expert_mesh(degrees: Degrees, device_type: str) -> DeviceMesh | None:
    """Return the mesh for the experts; None without expert parallelism.

    The mesh always has a dimension for the shards of each expert, even if its size is 1, because FSDP needs this
    dimension.
    """
    mesh = _build_mesh(degrees.sparse(), device_type, {EXPERT_SHARD}) if degrees.ep > 1 else None
    if mesh:
        mesh[EXPERT_SHARD, EXPERT]._flatten()  # noqa: SLF001 - gradient norms then take one reduction, not two
    return mesh


@dataclass(frozen=True)
class World:
    """This rank's position in the job, and its device meshes: `experts` for experts, `mesh` for other weights."""

    rank: int
    size: int
    device: torch.device
    degrees: Degrees
    mesh: DeviceMesh | None
    experts: DeviceMesh | None
    """The mesh for the experts, which has the same ranks as `mesh`; None without expert parallelism."""

    @property
    def data_rank(self) -> int:
        degrees = self.degrees
        return self.rank // (degrees.cp * degrees.tp) % degrees.data_parallel

    @property
    def stage(self) -> int:
        """The index of this rank along the pipeline; 0 without a pipeline."""
        return self.rank // (self.size // self.degrees.pp)

    @cached_property
    def data(self) -> DeviceMesh | None:
        """The submesh over which weights are replicated or sharded; None if weights are neither.

        If they are both, the first dimension replicates and the second shards.
        """
        sharded = _SHARD_CONTEXT if min(self.degrees.dp_shard, self.degrees.cp) > 1 else SHARD
        names = (REPLICATE, CONTEXT if self.degrees.sharding == self.degrees.cp > 1 else sharded)
        return self._part(names)

    @cached_property
    def tensor(self) -> DeviceMesh | None:
        """The submesh of the ranks that split matrix products (tensor parallelism); None without tensor parallelism."""
        return self._part((TENSOR,))

    @cached_property
    def context(self) -> DeviceMesh | None:
        """The submesh of the ranks that split each sequence (context parallelism); None without context parallelism."""
        return self._part((CONTEXT,))

    @cached_property
    def pipeline(self) -> DeviceMesh | None:
        return self._part((PIPELINE,))

    def _part(self, names: tuple[str, ...]) -> DeviceMesh | None:
        existing = (*(self.mesh.mesh_dim_names or ()), _SHARD_CONTEXT) if self.mesh else ()
        present = tuple(name for name in names if name in existing)
        return self.mesh[present] if self.mesh and present else None


def build_world(degrees: Degrees, rank: int, size: int, device: torch.device) -> World:
    """Return the World of a rank, and create its meshes; this is a collective, so every rank must call it."""
    dense, experts = _dense_mesh(degrees, device.type), _expert_mesh(degrees, device.type)
    return World(rank, size, device, degrees, dense, experts)
