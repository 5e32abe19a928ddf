"""How many ranks does each kind of parallelism take, and what is the device mesh of them?"""

import math
from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.config import ConfigError
from trainer.config.sections import Parallelism

EXPERT_SHARD, EXPERT = "efsdp", "ep"


@dataclass(frozen=True)
class Degrees:
    """Ranks along each dimension of the mesh, outermost first."""

    dp_replicate: int = 1
    dp_shard: int = 1
    ep: int = 1
    """Neighbours among `dp_shard` that share the experts."""

    @property
    def data_parallel(self) -> int:
        """Number of ranks that read different data."""
        return self.dp_replicate * self.dp_shard

    def dense(self) -> dict[str, int]:
        """Return the dimensions of the mesh of all weights but the experts."""
        return {"dp_replicate": self.dp_replicate, "dp_shard": self.dp_shard}

    def sparse(self) -> dict[str, int]:
        """Return the dimensions of the experts' mesh: "ep" has different experts, "efsdp" parts of the same ones."""
        return {"dp_replicate": self.dp_replicate, EXPERT_SHARD: self.dp_shard // self.ep, EXPERT: self.ep}

    def described(self) -> dict[str, int]:
        """Return the degrees as run.json has them."""
        return {**self.dense(), "cp": 1, "tp": 1, "pp": 1, "ep": self.ep}


def build_mesh(sizes: dict[str, int], device_type: str) -> DeviceMesh | None:
    """Return the mesh of all dimensions larger than 1, or None on a single rank.

    The experts' shards are a dimension even if they are whole, because FSDP needs one.
    """
    dimensions = {name: size for name, size in sizes.items() if size > 1 or name == EXPERT_SHARD}
    if not dimensions:
        return None
    mesh = init_device_mesh(device_type, tuple(dimensions.values()), mesh_dim_names=tuple(dimensions))
    if EXPERT in dimensions:
        mesh[EXPERT_SHARD, EXPERT]._flatten()  # noqa: SLF001 - gradient norms then take one reduction, not two
    return mesh


@dataclass(frozen=True)
class World:
    """The position of this rank among all ranks."""

    rank: int
    size: int
    device: torch.device
    degrees: Degrees
    mesh: DeviceMesh | None
    experts: DeviceMesh | None
    """The same ranks as the experts lie on them; None where each rank has parts of all."""

    @property
    def data_rank(self) -> int:
        """Which share of the data this rank reads."""
        return self.rank


def degrees(config: Parallelism, world_size: int) -> Degrees:
    """Return the degrees of a job of `world_size` ranks; -1 takes what remains.

    Raises:
        ConfigError: They do not multiply to the world size, or the experts' degree does not divide that of sharding.
    """
    replicate, shard = config.data_parallel_replicate_degree, config.data_parallel_shard_degree
    # A world that is too small must end in the error below, not in a degree of 0.
    if shard == -1 and replicate > 0:
        shard = max(world_size // replicate, 1)
    if replicate < 1 or shard < 1 or math.prod((replicate, shard)) != world_size:
        raise ConfigError(
            f"data_parallel_replicate_degree {replicate} x shard_degree {shard} is not {world_size} ranks",
            "change a degree (-1 for the shard degree takes what remains) or the number of processes",
        )
    experts = config.expert_parallel_degree
    if experts < 1 or shard % experts:
        raise ConfigError(
            f"expert_parallel_degree {experts} does not divide {shard} ranks that share one copy",
            "give a divisor of data_parallel_shard_degree: the experts are divided among those ranks",
        )
    return Degrees(replicate, shard, experts)
