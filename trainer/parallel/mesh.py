"""How many ranks each kind of parallelism takes, and the device mesh of them."""

import math
from dataclasses import asdict, dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.config import ConfigError
from trainer.config.sections import Parallelism


@dataclass(frozen=True)
class Degrees:
    """Ranks along each dimension of the mesh, outermost first."""

    dp_replicate: int = 1
    dp_shard: int = 1

    @property
    def data_parallel(self) -> int:
        """Ranks that read different data."""
        return self.dp_replicate * self.dp_shard

    def mesh(self, device_type: str) -> DeviceMesh | None:
        """The mesh of all dimensions larger than 1; None on a single rank."""
        sizes = {name: size for name, size in asdict(self).items() if size > 1}
        if not sizes:
            return None
        return init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    def described(self) -> dict[str, int]:
        """As run.json has it."""
        return {"dp_replicate": self.dp_replicate, "dp_shard": self.dp_shard, "cp": 1, "tp": 1, "pp": 1}


@dataclass(frozen=True)
class World:
    """This rank's place among all."""

    rank: int
    size: int
    device: torch.device
    degrees: Degrees
    mesh: DeviceMesh | None

    @property
    def data_rank(self) -> int:
        """Which share of the data this rank reads."""
        return self.rank


def degrees(config: Parallelism, world_size: int) -> Degrees:
    """The degrees of a job of `world_size` ranks; -1 takes what remains.

    Raises:
        ConfigError: They do not multiply to the world size.
    """
    replicate, shard = config.data_parallel_replicate_degree, config.data_parallel_shard_degree
    if shard == -1 and replicate > 0:
        shard = max(world_size // replicate, 1)
    if replicate < 1 or shard < 1 or math.prod((replicate, shard)) != world_size:
        raise ConfigError(
            f"data_parallel_replicate_degree {replicate} x shard_degree {shard} is not {world_size} ranks",
            "change a degree, -1 for sharding takes what remains, or the number of processes",
        )
    return Degrees(replicate, shard)
