"""The settings that a plan may choose: mesh, local batch size, activation checkpointing, offload and dtype."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from trainer.config import JobConfig
from trainer.config.checks import validate
from trainer.errors import ConfigError

_TENSOR_AT_MOST = 8
"""Largest degree of tensor, pipeline and context parallelism that is tried: the usual number of devices in a node.

Tensor parallelism waits for collectives in every layer, so the links between nodes would be too slow.
"""
_CONTEXT_TOKENS_AT_LEAST = 8192
"""The shortest sequence, in tokens, for which context parallelism is tried."""
_ROUNDS_AT_MOST = 8
"""The largest batch that is tried in a pipeline, in sequences per stage: with 4 stages, 32 sequences.

Still more microbatches make a pipeline hardly faster.
"""
_RECOMPUTATION = (("none", "2"), ("selective", "op"), ("full", "2"))
"""(mode, selective_ac_option) of each kind of activation checkpointing to try; the first keeps most activations."""


@dataclass(frozen=True)
class Candidate:
    """One choice of the settings that the search varies: mesh, recomputation, batch size, offload, weight dtype."""

    replicate: int
    shard: int
    context: int
    tensor: int
    pipeline: int
    mode: str
    option: str
    batch: int
    offload: bool
    dtype: str

    @property
    def family(self) -> "Candidate":
        """The same candidate with a batch size of one.

        Candidates that differ only in the batch size have the same family.
        """
        return replace(self, batch=1)

    @property
    def layout(self) -> "Candidate":
        mode, option = _RECOMPUTATION[0]
        return replace(self, batch=1, mode=mode, option=option)

    def settings(self) -> dict[str, Any]:
        """Return the candidate as {configuration key: value}, such as "training.dtype": "bfloat16"."""
        values: dict[str, Any] = {
            "parallelism.data_parallel_replicate_degree": self.replicate,
            "parallelism.data_parallel_shard_degree": self.shard,
            "parallelism.context_parallel_degree": self.context,
            "parallelism.tensor_parallel_degree": self.tensor,
            "parallelism.pipeline_parallel_degree": self.pipeline,
            "training.local_batch_size": self.batch,
            "training.enable_cpu_offload": self.offload,
            "training.dtype": self.dtype,
            "activation_checkpoint.mode": self.mode,
        }
        return values | ({"activation_checkpoint.selective_ac_option": self.option} if self.mode == "selective" else {})


def configured(config: JobConfig, candidate: Candidate) -> JobConfig:
    sections: dict[str, dict[str, Any]] = {}
    for key, value in candidate.settings().items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    changed = {name: replace(getattr(config, name), **values) for name, values in sections.items()}
    return replace(config, **changed)


def candidates(config: JobConfig, world_size: int, kept: Sequence[str], largest_batch: int) -> Iterator[Candidate]:
    """Yield every candidate that the trainer can run on `world_size` ranks.

    The keys in `kept` keep their configured values in each candidate. Batch sizes are at most `largest_batch`
    sequences; in a pipeline, they are at most `_ROUNDS_AT_MOST` sequences for each stage.
    """
    fixed = {key: current(config, key) for key in kept}
    batches = [1 << power for power in range(largest_batch.bit_length()) if 1 << power <= largest_batch]
    own = fixed.get("training.local_batch_size")
    batches = batches if own is None else [own]
    for mesh in meshes(config, world_size):
        for (mode, option), offload, dtype in product(recomputation(config), (False, True), dtypes(config)):
            # Each stage of a pipeline needs at least one sequence.
            family = Candidate(*mesh, mode, option, batches[0] * mesh[4], offload, dtype)
            family = family if own is None else replace(family, batch=own)
            if _is_fixed(family, fixed) and _can_run(configured(config, family), world_size):
                sizes = batches if own is not None else _batches_of(family, batches)
                yield from (replace(family, batch=batch) for batch in sizes)


def _batches_of(family: Candidate, batches: Sequence[int]) -> list[int]:
    """Return the batch sizes to try with the settings in `family`, in sequences.

    Without a pipeline, these are `batches`. With a pipeline, they are multiples of the number of stages, so that each
    stage gets at least one microbatch.
    """
    if family.pipeline == 1:
        return list(batches)
    return [batch * family.pipeline for batch in batches if batch <= _ROUNDS_AT_MOST]


def meshes(config: JobConfig, world_size: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the degrees (replicate, shard, context, tensor, pipeline) of each mesh to try.

    The product of the degrees is `world_size`, the number of ranks.
    """
    contexts = _divisors(world_size) if config.training.seq_len >= _CONTEXT_TOKENS_AT_LEAST else [1]
    for tensor, pipeline, context in product(_divisors(world_size), _divisors(world_size), contexts):
        inner = tensor * pipeline * context
        if tensor > _TENSOR_AT_MOST or world_size % inner or pipeline > _TENSOR_AT_MOST or context > _TENSOR_AT_MOST:
            continue
        for shard in _divisors(world_size // inner):
            yield world_size // inner // shard, shard, context, tensor, pipeline


def recomputation(config: JobConfig) -> list[tuple[str, str]]:
    """Return (mode, selective_ac_option) of each kind of activation checkpointing to try.

    These are the kinds in `_RECOMPUTATION`. If the configured kind is selective with another option, it is tried too.
    """
    own = config.activation_checkpoint.mode, config.activation_checkpoint.selective_ac_option
    known = own[0] in ("none", "full") or own in _RECOMPUTATION or own[0] == "memory_budget"
    return [*_RECOMPUTATION] if known else [*_RECOMPUTATION, own]


def dtypes(config: JobConfig) -> list[str]:
    return list(dict.fromkeys((config.training.dtype, "bfloat16")))


def _can_run(config: JobConfig, world_size: int) -> bool:
    try:
        validate(config, world_size)
    except ConfigError:
        return False
    return True


def _is_fixed(candidate: Candidate, fixed: dict[str, Any]) -> bool:
    """Return whether a candidate has all values in `fixed`, {configuration key: value that must not change}.

    A value of -1, which means an automatic shard degree, allows any degree.
    """
    settings = candidate.settings()
    return all(settings.get(key, value) == value or value == -1 for key, value in fixed.items())


def current(config: JobConfig, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


@dataclass(frozen=True)
class DeviceSpeed:
    """The speed of one rank's device.

    `flops` and `flops_float32` are the floating-point operations per second that large matrix products reach in
    bfloat16 and in float32; the peak in the data sheet is higher. The bandwidths `memory`, `near` (between ranks of one
    node), `far` (between nodes) and `host` (between device and host) are in bytes per second. `latency` is the shortest
    time of a collective, in seconds. A matrix product for `half_tokens` tokens reaches half of `flops`.
    """

    flops: float
    flops_float32: float
    memory: float
    near: float
    far: float
    host: float
    latency: float
    ranks_of_node: int = 8
    half_tokens: int = 512


# Achievable products are 60 to 80 % of the dense peak; links as collectives of large messages measure them.
SPEEDS = {
    "a100": DeviceSpeed(230e12, 110e12, 1.6e12, 230e9, 20e9, 20e9, 2e-5),
    "h100": DeviceSpeed(650e12, 350e12, 2.8e12, 370e9, 40e9, 40e9, 2e-5),
    "h200": DeviceSpeed(650e12, 350e12, 4.0e12, 370e9, 40e9, 40e9, 2e-5),
    "b200": DeviceSpeed(1500e12, 700e12, 6.5e12, 700e9, 45e9, 50e9, 2e-5),
    "mi300x": DeviceSpeed(600e12, 300e12, 4.0e12, 310e9, 40e9, 40e9, 2e-5),
    # One core; bfloat16 is computed in float32 and converted.
    "cpu": DeviceSpeed(1.5e10, 3e10, 4e9, 1e9, 1e9, 4e9, 1e-3, ranks_of_node=1 << 20, half_tokens=64),
}


def speed_of(name: str, world_size: int) -> DeviceSpeed:
    """Return the speed of a device named in `SPEEDS`; on a CPU, the ranks share the cores."""
    speed = SPEEDS[name]
    if name != "cpu":
        return speed
    part = min((os.cpu_count() or 1) / world_size, 1.0)
    return replace(
        speed, flops=speed.flops * part, flops_float32=speed.flops_float32 * part, memory=speed.memory * part
    )
