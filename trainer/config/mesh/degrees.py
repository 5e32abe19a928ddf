"""Compute the degree of each kind of parallelism: the number of ranks that share the work in this way."""

import math
from dataclasses import dataclass

from trainer.config.sections import Parallelism
from trainer.errors import ConfigError

REPLICATE, SHARD, CONTEXT, TENSOR, PIPELINE = "dp_replicate", "dp_shard", "cp", "tp", "pp"
EXPERT_SHARD, EXPERT = "efsdp", "ep"
KEYS = {
    REPLICATE: "data_parallel_replicate_degree",
    SHARD: "data_parallel_shard_degree",
    CONTEXT: "context_parallel_degree",
    TENSOR: "tensor_parallel_degree",
    PIPELINE: "pipeline_parallel_degree",
    EXPERT: "expert_parallel_degree",
}
"""{dimension of the device mesh: key of the section `parallelism` that sets its size}."""


class WrongWorldSize(ConfigError):
    """Raised if the product of the degrees is not the number of ranks; it would be right for `fitting` ranks."""

    def __init__(self, message: str, hint: str, fitting: int) -> None:
        super().__init__(message, hint)
        self.fitting = fitting


@dataclass(frozen=True)
class Degrees:
    """The degree of each kind of parallelism: the number of ranks along that dimension of the mesh."""

    dp_replicate: int = 1
    dp_shard: int = 1
    ep: int = 1
    """The number of neighbouring ranks among which the experts of one copy of the model are divided."""
    cp: int = 1
    tp: int = 1
    pp: int = 1
    offload: bool = False
    """Whether weights are kept in CPU memory. Only FSDP can do that, so FSDP is then used even on a single rank."""

    @property
    def data_parallel(self) -> int:
        """Number of data-parallel groups, each of which reads different data."""
        return self.dp_replicate * self.dp_shard

    @property
    def per_batch(self) -> int:
        """Number of ranks that compute together on the same batch, by context, tensor and pipeline parallelism."""
        return self.cp * self.tp * self.pp

    @property
    def sharding(self) -> int:
        """Number of ranks that FSDP shards a weight over: the shard degree times the context-parallel degree."""
        return self.dp_shard * self.cp

    @property
    def uses_fsdp(self) -> bool:
        """Whether FSDP, and not DDP, averages the gradients.

        FSDP is used if weights are sharded or offloaded. It is also used if there are several copies of the model and
        tensor or pipeline parallelism splits each copy, because this trainer does not combine DDP with these.
        """
        return self.offload or self.sharding > 1 or (self.dp_replicate > 1 and self.tp * self.pp > 1)

    def dense(self) -> dict[str, int]:
        """Return {dimension: degree} of the mesh for all weights except the experts, outermost dimension first."""
        return {
            PIPELINE: self.pp, REPLICATE: self.dp_replicate, SHARD: self.dp_shard, CONTEXT: self.cp, TENSOR: self.tp,
        }  # fmt: skip

    def sparse(self) -> dict[str, int]:
        """Return {dimension: degree} of the mesh for the experts.

        Ranks along "ep" hold different experts. Ranks along "efsdp" hold shards of the same experts.
        """
        shards = self.sharding * self.tp // self.ep
        return {PIPELINE: self.pp, REPLICATE: self.dp_replicate, EXPERT_SHARD: shards, EXPERT: self.ep}

    def described(self) -> dict[str, int]:
        """Return {kind of parallelism: degree} as it is written to run.json."""
        return {name: getattr(self, name) for name in KEYS}


def degrees(config: Parallelism, world_size: int, *, offload: bool = False) -> Degrees:
    """Return the degrees of a job of `world_size` ranks; a shard degree of -1 uses all remaining ranks.

    Raises:
        ConfigError: The degrees do not multiply to the world size, or the expert degree does not divide the number of
            ranks that share one copy of the model.
    """
    asked = {name: int(getattr(config, key)) for name, key in KEYS.items()}
    for name, degree in asked.items():
        if degree < 1 and (name, degree) != (SHARD, -1):
            raise ConfigError(f"parallelism.{KEYS[name]} = {degree} is not a degree", "give 1 or more")
    others = math.prod(degree for name, degree in asked.items() if name not in (SHARD, EXPERT))
    # A world that is too small must end in the error below, not in a degree of 0.
    filled = asked | {SHARD: max(world_size // others, 1) if asked[SHARD] == -1 else asked[SHARD]}
    if filled[SHARD] * others != world_size:
        raise _wrong_world(asked, filled[SHARD], others, world_size)
    found = Degrees(**filled, offload=offload)
    ranks_of_copy = found.sharding * found.tp
    if ranks_of_copy % found.ep:
        raise ConfigError(
            f"parallelism.expert_parallel_degree {found.ep} does not divide {ranks_of_copy} ranks that share one copy",
            f"give a divisor of {ranks_of_copy}: the experts are divided among those ranks",
        )
    return found


def _nearest_degree(asked: dict[str, int], others: int, world_size: int) -> tuple[str, int] | None:
    """Return (name, new value) of the degree whose change makes all degrees together divide `world_size`.

    The smallest change is chosen. `asked` has the configured degrees; `others` is the product of all degrees except the
    shard degree. Return None if changing a single degree is not enough. Example: tensor 3 on 8 ranks becomes tensor 2.
    """
    changes = [
        (abs(new - degree), name, new)
        for name, degree in asked.items()
        if name not in (SHARD, EXPERT) and degree > 1
        for new in range(1, world_size + 1)
        if world_size % (others // degree * new) == 0
    ]
    return min(changes)[1:] if changes else None


def _wrong_world(asked: dict[str, int], shard: int, others: int, world_size: int) -> WrongWorldSize:
    """Return the error for degrees whose product is not the world size; its hint names the nearest mesh that fits.

    `asked` has the configured degrees, `shard` is the data-parallel shard degree, and `others` is the product of the
    other degrees.
    """
    factors = [f"{KEYS[name]} {degree}" for name, degree in asked.items() if degree not in (1, -1) and name != EXPERT]
    fault = "does not divide" if asked[SHARD] == -1 else "is not"
    nearest = max(round(world_size / others), 1) * others
    fits = others * shard if asked[SHARD] != -1 else nearest
    hint = f"start {fits} processes (--nproc {fits} on one node)"
    if world_size % others == 0:
        hint += f", or set parallelism.{KEYS[SHARD]} to {world_size // others} (-1 takes what remains)"
    elif near := _nearest_degree(asked, others, world_size):
        hint += f", or set parallelism.{KEYS[near[0]]} to {near[1]}"
    product = " x ".join(factors) or f"{KEYS[SHARD]} 1"
    message = f"parallelism: {product} {fault} {world_size} ranks"
    return WrongWorldSize(message, f"{hint}, or change a degree", fits)


def smallest_world(config: Parallelism, least: int) -> int:
    """Return the smallest number of ranks that fits the configured degrees.

    A shard degree of -1 allows several numbers. Then the result is `least` if possible. Otherwise it is a larger number
    with at least two shards, because settings of FSDP have no effect with one shard.
    """
    asked = {name: int(getattr(config, key)) for name, key in KEYS.items()}
    others = math.prod(degree for name, degree in asked.items() if name not in (SHARD, EXPERT))
    if asked[SHARD] != -1:
        return others * asked[SHARD]
    # Experts are divided among the ranks that share a copy: dp_shard x cp x tp.
    in_copy = asked[CONTEXT] * asked[TENSOR]
    step = others * (asked[EXPERT] // math.gcd(asked[EXPERT], in_copy))
    return least if least % step == 0 else math.ceil(max(least, 2 * others) / step) * step
