"""A cost model: the estimated time of a training step, in seconds, for one choice of settings.

Large matrix products are limited by the device's floating-point operations per second, elementwise work by its memory
bandwidth, and the collectives of each kind of parallelism by the bandwidth between ranks. The estimate is good enough
to rank choices of settings; a real step may take longer or shorter.
"""

from dataclasses import dataclass

from trainer.config import JobConfig
from trainer.models.decoder import build_model, model_args
from trainer.plan.candidates import Candidate, DeviceSpeed


@dataclass(frozen=True)
class ModelSize:
    """The shape of a model, and the numbers of parameters in its layers.

    `in_layers` counts all parameters in the layers. `active` leaves out the experts that a token does not use.
    `compute_bytes` is the size of a value in the dtype in which the model computes.
    """

    dim: int
    hidden_dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    in_layers: int
    active: int
    seq_len: int
    compute_bytes: int
    tied: bool = False
    """Whether the output layer shares the weight of the embedding."""

    @classmethod
    def of(cls, config: JobConfig) -> "ModelSize":
        """Return the sizes of the model that a configuration names.

        Raises:
            ConfigError: There is no such model.
        """
        shape = model_args(config)
        parameters = list(build_model(config).named_parameters())
        in_layers = sum(p.numel() for name, p in parameters if name.startswith("layers."))
        # Only the weights of experts have three dimensions.
        experts = sum(p.numel() for name, p in parameters if p.dim() > 2)
        used = getattr(shape, "top_k", 1) / max(getattr(shape, "n_experts", 1), 1)
        wide = config.training.mixed_precision_param == "float32"
        return cls(
            shape.dim, shape.hidden_dim, shape.n_layers, shape.n_heads, shape.n_kv_heads, shape.head_dim,
            shape.vocab_size, in_layers, round(in_layers - experts * (1 - used)), config.training.seq_len,
            4 if wide else 2, shape.enable_weight_tying,
        )  # fmt: skip

    @property
    def head(self) -> int:
        return self.vocab * self.dim

    @property
    def ends(self) -> int:
        """The number of parameters of the embedding and the output layer; a shared weight counts once."""
        return self.head if self.tied else 2 * self.head

    @property
    def attention_dim(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return 2 * self.kv_heads * self.head_dim

    @property
    def activations(self) -> int:
        """The number of values per token that a layer keeps for its backward pass, as in `analyzers.memory.job`."""
        return 4 * self.dim + 5 * self.attention_dim + 4 * self.hidden_dim

    @property
    def parameters(self) -> int:
        return self.in_layers + self.ends


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
        return self.compute + self.tensor + self.data + self.bubble + self.optimizer

    @property
    def tokens_per_second(self) -> float:
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


# A quick formula for a rank's peak memory; the search measures only candidates that may fit according to it.
#
# The error of the formula is some ten per cent. It is nearly equal for candidates that differ only in the batch size
# (a family). So the search corrects it with the measured peak of another candidate of the same family.

_STATE_COPIES = 4
"""The number of values that training keeps for each weight: the weight, its gradient, and the two moments of Adam."""


def state_bytes(model: ModelSize, candidate: Candidate) -> int:
    """Return the bytes of weights, gradients and optimizer state on the rank with the most of them."""
    width = 2 if candidate.dtype == "bfloat16" else _FLOAT32_BYTES
    # The first and the last stage have the embedding or the output layer beside their layers.
    ends = model.head if candidate.pipeline > 1 else model.ends
    held = model.in_layers / candidate.pipeline + ends
    shards = candidate.shard * candidate.context * candidate.tensor
    return round(_STATE_COPIES * width * held / shards)


def peak_bytes(model: ModelSize, candidate: Candidate, microbatch: int) -> int:
    """Return the approximate peak memory in bytes of the rank that needs the most.

    `microbatch` is the number of sequences in a microbatch of a pipeline. Activations are counted as in
    `analyzers.memory.job.Job`, by the formulas of Korthikanti et al. 2022 (arXiv:2205.05198).
    """
    state = 0 if candidate.offload else state_bytes(model, candidate)
    return round(state + _gathered_bytes(model, candidate) + _activation_bytes(model, candidate, microbatch))


def _gathered_bytes(model: ModelSize, candidate: Candidate) -> float:
    """Return the most bytes of gathered weights, and of their gradients, that FSDP holds at any time.

    Without a pipeline, these are the weights of two layers and the gradients of one layer; or the output layer and its
    gradients, if that is more. In a pipeline, they are all weights of the stage. Without FSDP, the result is the size
    of DDP's gradient buckets.
    """
    layer, width = model.in_layers / model.layers / candidate.tensor, model.compute_bytes
    if candidate.shard * candidate.context == 1:
        return _FLOAT32_BYTES * (model.in_layers + model.head) / candidate.tensor if candidate.replicate > 1 else 0.0
    end = model.head / candidate.tensor
    if candidate.pipeline > 1:
        # All microbatches use the gathered weights and add to the gradients before these are reduced.
        return 2 * width * (model.in_layers / candidate.pipeline / candidate.tensor + end)
    return max(2 * layer * width + layer * (width + _FLOAT32_BYTES), end * (2 * width + _FLOAT32_BYTES))


def _activation_bytes(model: ModelSize, candidate: Candidate, microbatch: int) -> float:
    """Return the bytes of activations: kept for the backward pass, recomputed in one layer, and the logits.

    `microbatch` is the number of sequences in a microbatch of a pipeline.
    """
    sequences = min(microbatch, candidate.batch) if candidate.pipeline > 1 else candidate.batch
    tokens = sequences * model.seq_len / candidate.context
    in_flight = min(candidate.pipeline, candidate.batch // sequences)
    layers = model.layers / candidate.pipeline
    whole, kept = _kept_values(model, "none"), _kept_values(model, candidate.mode)
    if candidate.mode == "selective" and candidate.option.isdecimal():
        kept = whole - (whole - _kept_values(model, "full")) / int(candidate.option)
    if candidate.tensor > 1 and candidate.mode != "full":
        # Sequence parallelism gathers all tokens before the products of attention and of the feed-forward layer.
        kept += 2 * model.dim * model.compute_bytes * candidate.tensor
    recomputed = 0.0 if candidate.mode == "none" else whole
    logits = model.vocab * (model.compute_bytes + 2 * _FLOAT32_BYTES)
    return tokens / candidate.tensor * (in_flight * layers * kept + recomputed + logits)


def _kept_values(model: ModelSize, mode: str) -> float:
    """Return the bytes per token that one layer keeps for the backward pass; `mode` is the checkpointing mode."""
    values = {
        "selective": 3 * model.dim + 2 * model.attention_dim + model.kv_dim + 2 * model.hidden_dim,
        "full": model.dim,
    }.get(mode, model.activations)
    return values * model.compute_bytes + (8 + 4 * model.heads if mode == "none" else 0)
