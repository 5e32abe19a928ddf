"""A cost model: the estimated time of a training step, in seconds, for one choice of settings.

Large matrix products are limited by the device's floating-point operations per second, elementwise work by its memory
bandwidth, and the collectives of each kind of parallelism by the bandwidth between ranks. The estimate is good enough
to rank choices of settings; a real step may take longer or shorter.
"""

from dataclasses import dataclass

from trainer.plan.candidates import Candidate
from trainer.plan.devices import DeviceSpeed
from trainer.plan.model_size import ModelSize

_RECOMPUTED = {"none": 0.0, "selective": 0.15, "full": 1.0}
"""{mode of activation checkpointing: share of the forward pass that is computed twice}."""
_HIDDEN = 0.8
"""The share of the computation time during which FSDP's collectives run without making the step longer."""
_FLOAT32_BYTES = 4
_ELEMENTWISE_PASSES = 6
"""The number of times that a step reads or writes each value that a layer computes between its matrix products."""


@dataclass(frozen=True)
class StepTime:
    """The estimated seconds of a step by what the time is spent on, and the tokens that all ranks train on."""

    compute: float
    tensor: float
    data: float
    bubble: float
    optimizer: float
    tokens: int

    @property
    def seconds(self) -> float:
        """The estimated time of the whole step, in seconds."""
        return self.compute + self.tensor + self.data + self.bubble + self.optimizer

    @property
    def tokens_per_second(self) -> float:
        """Tokens that all ranks train on in a second."""
        return self.tokens / self.seconds


def step_time(model: ModelSize, candidate: Candidate, speed: DeviceSpeed, microbatch: int) -> StepTime:
    """Return the time of a step in which each rank trains on one batch, without gradient accumulation.

    `microbatch` is the number of sequences in a microbatch of a pipeline.
    """
    passes = candidate.batch // min(microbatch, candidate.batch) if candidate.pipeline > 1 else 1
    tokens = candidate.batch // passes * model.seq_len / candidate.context
    compute = passes * _compute_seconds(model, candidate, speed, tokens)
    tensor = passes * _tensor_seconds(model, candidate, speed, tokens)
    # The last pass leaves the pipeline when the first rank has waited for all the others.
    bubble = (candidate.pipeline - 1) / passes * (compute + tensor)
    return StepTime(
        compute,
        tensor,
        _data_seconds(model, candidate, speed, compute),
        bubble,
        _optimizer_seconds(model, candidate, speed),
        candidate.batch * model.seq_len * candidate.replicate * candidate.shard,
    )


def _compute_seconds(model: ModelSize, candidate: Candidate, speed: DeviceSpeed, tokens: float) -> float:
    """Return the seconds that the busiest rank computes for `tokens` tokens: forward, backward and recomputation.

    `tokens` is the number of tokens of a batch; in a pipeline, of a microbatch.
    """
    again = _RECOMPUTED.get(candidate.mode, 0.5)
    if candidate.mode == "selective" and candidate.option.isdecimal():
        again = 1 / int(candidate.option)
    # A token's products with each weight, and with the positions before it (half of them on average).
    attention = 2 * model.seq_len * model.attention_dim * model.layers
    layers = (2 * model.active + attention) / candidate.pipeline * (3 + again)
    head = 2 * model.head * 3
    flops = speed.flops_float32 if model.compute_bytes == _FLOAT32_BYTES else speed.flops
    efficiency = tokens / (tokens + speed.half_tokens)
    products = (layers + head) * tokens / candidate.tensor / (flops * efficiency)
    values = model.activations * model.compute_bytes * model.layers / candidate.pipeline
    elementwise = (_ELEMENTWISE_PASSES + 2 * again) * values * tokens / candidate.tensor / speed.memory
    return products + elementwise


def _tensor_seconds(model: ModelSize, candidate: Candidate, speed: DeviceSpeed, tokens: float) -> float:
    """Return the seconds that a rank waits for the collectives of tensor and context parallelism.

    `tokens` is the number of tokens of a batch; in a pipeline, of a microbatch.
    """
    layers, seconds = model.layers / candidate.pipeline, 0.0
    again = candidate.mode == "full"
    if candidate.tensor > 1:
        # Two gathers and two reductions of all tokens in each direction of a layer.
        sent = tokens * model.dim * model.compute_bytes * (candidate.tensor - 1) / candidate.tensor
        seconds += layers * (8 + 4 * again) * (sent / bandwidth(candidate.tensor, 1, speed) + speed.latency)
    if candidate.context > 1:
        kv = tokens * model.kv_dim * model.compute_bytes / candidate.tensor
        sent = kv * (candidate.context - 1)
        link = bandwidth(candidate.context, candidate.tensor, speed)
        seconds += layers * (3 + again) * (sent / link + (candidate.context - 1) * speed.latency)
    return seconds


def _data_seconds(model: ModelSize, candidate: Candidate, speed: DeviceSpeed, compute: float) -> float:
    """Return the seconds that a step waits for the collectives of FSDP and DDP.

    Some collectives overlap with the computation, which takes `compute` seconds; the overlap is not counted.
    """
    held = (model.in_layers / candidate.pipeline + model.ends) / candidate.tensor
    inner, shards = candidate.tensor, candidate.shard * candidate.context
    seconds = 0.0
    if shards > 1:
        # Gathered for each direction, reduced once in float32.
        sent = (2 * model.compute_bytes + _FLOAT32_BYTES) * held * (shards - 1) / shards
        layers = model.layers / candidate.pipeline
        seconds += sent / bandwidth(shards, inner, speed) + 3 * layers * speed.latency
    if candidate.replicate > 1:
        sent = 2 * _FLOAT32_BYTES * held / shards * (candidate.replicate - 1) / candidate.replicate
        seconds += sent / bandwidth(candidate.replicate, inner * shards, speed) + speed.latency
    # The first layer's gather and the last one's reduction have nothing to hide behind.
    return max(seconds - _HIDDEN * compute, seconds / max(model.layers, 1))


def _optimizer_seconds(model: ModelSize, candidate: Candidate, speed: DeviceSpeed) -> float:
    """Return the seconds of the optimizer's update.

    With CPU offload, all weights and gradients are copied between the device and the host.
    """
    width = 2 if candidate.dtype == "bfloat16" else _FLOAT32_BYTES
    shards = candidate.shard * candidate.context * candidate.tensor * candidate.pipeline
    held = model.parameters * width / shards
    if candidate.offload:
        return 10 * held / speed.host
    # Adam reads weight, gradient and both moments, and writes all but the gradient.
    return 7 * held / speed.memory


def bandwidth(ranks: int, inner: int, speed: DeviceSpeed) -> float:
    """Return the bandwidth in bytes per second within a group of `ranks` ranks, inside a node or between nodes.

    `inner` is the difference between consecutive rank numbers in the group. It decides whether the group is within a
    node.
    """
    return speed.near if ranks * inner <= speed.ranks_of_node else speed.far
