"""Compute the degree of each kind of parallelism: the number of ranks that share the work in this way."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.config.sections import JobConfig, Parallelism
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
        return self.dp_replicate * self.dp_shard

    @property
    def per_batch(self) -> int:
        return self.cp * self.tp * self.pp

    @property
    def sharding(self) -> int:
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


SINGLE = ("1F1B", "GPipe")
"""The pipeline schedules with one part of the model on each rank."""
_LOOPED = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
"""The schedules with several parts of the model on each rank, in turn: of 4 parts on 2 ranks, rank 0 has 0 and 2."""
_V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
"""The schedules with two parts on each rank, one from either end: of 4 parts on 2 ranks, rank 0 has 0 and 3."""
SPLIT_BACKWARD = ("InterleavedZeroBubble", *_V_SHAPED)
"""The schedules that split the backward pass: first the gradients of activations, later those of weights."""
BY_NAME = {name.lower(): name for name in (*SINGLE, *_LOOPED, *_V_SHAPED)}
_IN_ROUNDS = ("Interleaved1F1B", "InterleavedZeroBubble")


@dataclass(frozen=True)
class Part:
    """Part `number` (from 0) of a model that is divided into `count` parts for a pipeline.

    `layers` has the indices of the layers in this part.
    """

    number: int
    count: int
    layers: range

    @property
    def first(self) -> bool:
        return self.number == 0

    @property
    def last(self) -> bool:
        return self.number == self.count - 1


def model_parts(rank: int, layers: int, config: Parallelism) -> list[Part]:
    """Return the parts of a model of `layers` layers that belong to pipeline rank `rank`.

    In interleaved schedules, a rank has several parts.

    Raises:
        ConfigError: There is no such schedule, or the layers cannot be divided into its number of parts.
    """
    ranks = config.pipeline_parallel_degree
    if ranks == 1:
        return [Part(0, 1, range(layers))]
    looped = schedule_name(config) not in SINGLE
    count = ranks * (2 if looped else 1)
    ends = config.pipeline_parallel_first_stage_less_layers, config.pipeline_parallel_last_stage_less_layers
    if config.pipeline_parallel_layers_per_stage:
        # -(-a // b) rounds up.
        count = -(-(layers + sum(ends)) // config.pipeline_parallel_layers_per_stage)
    layer_ranges = _divide_layers(layers, count, *ends)
    if count % ranks or (count > ranks) != looped or any(start > stop for start, stop in layer_ranges):
        raise ConfigError(
            f"{layers} layers cannot make {count} stages on {ranks} ranks for {config.pipeline_parallel_schedule}",
            "change parallelism.pipeline_parallel_layers_per_stage, pipeline_parallel_degree or the schedule",
        )
    return [Part(number, count, range(*layer_ranges[number])) for number in _part_numbers(rank, ranks, count, config)]


def _divide_layers(layers: int, count: int, first_less: int, last_less: int) -> list[tuple[int, int]]:
    """Return the range of layer indices (first, end) of each of `count` parts, as even as possible; `end` is excluded.

    The first part also has the embedding, which is as much work as `first_less` layers. The last part has the output
    layer, which is as much work as `last_less` layers. Excess layers go to the first parts. Example: 10 layers in 4
    parts, embedding and output counted as one layer each: 12 / 4 = 3, so the parts have 2, 3, 3 and 2 layers.
    """
    each, excess = divmod(layers + first_less + last_less, count)
    sizes = [each + (number < excess) for number in range(count)]
    # The embedding and the output take time but are no layers.
    sizes[0] -= first_less
    sizes[-1] -= last_less
    ends = [sum(sizes[: number + 1]) for number in range(count)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _part_numbers(rank: int, ranks: int, count: int, config: Parallelism) -> Sequence[int]:
    if schedule_name(config) in _V_SHAPED:
        return rank, count - 1 - rank
    return range(rank, count, ranks)


def rank_of(number: int, ranks: int, config: Parallelism) -> int:
    if schedule_name(config) in _V_SHAPED:
        return min(number, 2 * ranks - 1 - number)
    return number % ranks


def schedule_name(config: Parallelism) -> str:
    """Return PyTorch's name of the configured schedule; older names with underscores (interleaved_1f1b) are accepted.

    Raises:
        ConfigError: There is no such schedule.
    """
    written = config.pipeline_parallel_schedule
    if name := BY_NAME.get(written.lower().replace("_", "")):
        return name
    raise ConfigError(
        f"parallelism.pipeline_parallel_schedule = {written!r} is unknown", f"give one of {', '.join(BY_NAME.values())}"
    )


def microbatch_count(config: JobConfig) -> int:
    return config.training.local_batch_size // config.parallelism.pipeline_parallel_microbatch_size


def schedule_to_run(config: JobConfig) -> str:
    """Return PyTorch's name of the schedule that runs: the configured one, or GPipe for 1F1B with one microbatch.

    PyTorch's 1F1B refuses fewer microbatches than stages. With a single microbatch both schedules do the same: each
    stage runs one forward and one backward pass.

    Raises:
        ConfigError: There is no such schedule.
    """
    name = schedule_name(config.parallelism)
    return "GPipe" if name == "1F1B" and microbatch_count(config) == 1 else name


def replaced_schedule(config: JobConfig) -> list[str]:
    ranks = config.parallelism.pipeline_parallel_degree
    if ranks == 1 or schedule_to_run(config) == schedule_name(config.parallelism):
        return []
    sentence = (
        "parallelism.pipeline_parallel_schedule 1F1B becomes GPipe: with 1 microbatch they are the same, and PyTorch's"
        f" 1F1B refuses fewer microbatches than stages; only 1 of {ranks} stages works at a time until"
        f" training.local_batch_size is {config.training.local_batch_size * ranks}"
    )
    return [sentence]


def check_pipeline(config: JobConfig, layers: int) -> None:
    """Raise ConfigError if the layers or the batch cannot be divided for the pipeline."""
    parallelism = config.parallelism
    ranks = parallelism.pipeline_parallel_degree
    if ranks == 1:
        return
    model_parts(0, layers, parallelism)
    size, batch = parallelism.pipeline_parallel_microbatch_size, config.training.local_batch_size
    if size < 1 or batch % size:
        raise ConfigError(
            f"parallelism.pipeline_parallel_microbatch_size {size} does not divide training.local_batch_size {batch}",
            f"give a divisor of {batch}",
        )
    check_microbatches(schedule_to_run(config), size, batch, ranks)


def check_microbatches(schedule: str, size: int, batch: int, ranks: int) -> None:
    """Raise ConfigError if PyTorch's `schedule` on `ranks` pipeline ranks does not accept the number of microbatches.

    A microbatch has `size` sequences, and the batch has `batch` sequences.
    """
    count = batch // size
    if accepts(schedule, count, ranks):
        return
    least = _fewest_microbatches(schedule, ranks)
    needed = f"at least {least}" if count < least else f"a multiple of {count // ranks}"
    raise ConfigError(
        f"parallelism.pipeline_parallel_schedule {schedule} on {ranks} ranks needs {needed} microbatches in PyTorch,"
        f" and gets {count}",
        _nearest_microbatches(schedule, size, batch, ranks),
    )


def _fewest_microbatches(schedule: str, ranks: int) -> int:
    return {"1F1B": ranks, "DualPipeV": 2 * ranks}.get(schedule, 1)


def accepts(schedule: str, count: int, ranks: int) -> bool:
    # PyTorch divides the microbatches of these schedules into rounds of equal size.
    rounds = max(1, count // ranks) if schedule in _IN_ROUNDS else 1
    return count >= _fewest_microbatches(schedule, ranks) and count % rounds == 0


def _nearest_microbatches(schedule: str, size: int, batch: int, ranks: int) -> str:
    # Every schedule accepts 2 * ranks microbatches and all multiples of it.
    count = next(n for n in range(batch // size + 1, batch // size + 2 * ranks + 1) if accepts(schedule, n, ranks))
    smaller = [part for part in range(size - 1, 0, -1) if batch % part == 0 and accepts(schedule, batch // part, ranks)]
    return (
        f"set training.local_batch_size to {count * size}"
        + (f", or parallelism.pipeline_parallel_microbatch_size to {smaller[0]}" if smaller else "")
        + (", or the schedule to GPipe, which accepts any number" if schedule in SINGLE else "")
    )
