"""Search for the fastest settings that fit into memory.

A formula discards settings that need too much memory. The other settings are rehearsed: one step runs on fake tensors,
and the peak memory measured in this step decides whether the settings fit.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from trainer.config import JobConfig
from trainer.errors import TrainerError
from trainer.estimate.__main__ import Case, answer, start
from trainer.estimate.rehearsal import VALIDATION, local_problem
from trainer.models.decoder import build_model, model_args
from trainer.plan.candidates import Candidate, DeviceSpeed, configured


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
    """Return the bandwidth in bytes per second within a group of `ranks` ranks, inside a node or between nodes."""
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


_OPTIMISM = 0.85
"""Factor on the formula's memory for a candidate, until the same settings are measured with another batch size.

It is below 1, so that no candidate is discarded that may fit.
"""
_PATIENCE = 30.0
"""The seconds after the deadline within which measurements of memory must end."""
_NEVER_LOWER = 0.5
"""The smallest factor by which a measured peak may reduce the formula's estimate for other batch sizes."""


class Measured(NamedTuple):
    """The peak memory of a rank in bytes: of a training step, and of the validation (0: there is none)."""

    step: int
    validation: int


@dataclass(frozen=True)
class Plan:
    """A candidate (one choice of settings), its measured peak memory in bytes, and its estimated step time."""

    candidate: Candidate
    peak: int
    time: StepTime


@dataclass
class Search:
    """A search for the fastest settings of one job on `world_size` ranks that fit into `usable` bytes on each rank.

    The search ends at `deadline`, a time of the monotonic clock. `rehearsed` has the measured peak memory of candidates
    in bytes, and `steps` the peak of a training step alone. `validations` is {layout: bytes of the validation}, which
    has no batch of the training and no recomputation. `refused` has the candidates that the trainer cannot run.
    """

    config: JobConfig
    world_size: int
    usable: float
    speed: DeviceSpeed
    deadline: float
    rehearsed: dict[Candidate, int] = field(default_factory=dict)
    steps: dict[Candidate, int] = field(default_factory=dict)
    validations: dict[Candidate, int] = field(default_factory=dict)
    refused: set[Candidate] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.model = ModelSize.of(self.config)
        self.microbatch = self.config.parallelism.pipeline_parallel_microbatch_size

    def run(self, choices: Iterable[Candidate], wanted: int) -> list[Plan]:
        """Return up to `wanted` plans that fit into memory, the fastest first.

        The result has fewer plans if no more fit, or if the time is over. Plans differ in more than the batch size.
        """
        ordered = sorted(choices, key=lambda choice: -self.time_of(choice).tokens_per_second)
        while time.monotonic() < self.deadline:
            batch = self.next_to_rehearse(ordered, wanted)
            if not batch:
                break
            self.rehearse(batch)
        return self.plans(ordered)[:wanted]

    def next_to_rehearse(self, ordered: Sequence[Candidate], wanted: int) -> list[Candidate]:
        """Return the candidates to measure next: the fastest unmeasured ones that may fit according to the formula.

        The list has at most one candidate of each family (candidates that differ only in the batch size). It has at
        most one for each CPU core, because each is measured in its own process. It is empty when the `wanted` fastest
        families are measured.
        """
        chosen: dict[Candidate, Candidate] = {}
        settled: set[Candidate] = set()
        for choice in ordered:
            if choice.family in settled or choice.family in chosen or choice in self.refused:
                continue
            if choice in self.rehearsed:
                settled |= {choice.family} if self.rehearsed[choice] <= self.usable else set()
            elif self.corrected(choice) <= self.usable:
                chosen[choice.family] = choice
            if len(chosen) >= (os.cpu_count() or 1) or len(settled) + len(chosen) >= wanted:
                break
        return list(chosen.values())

    def corrected(self, choice: Candidate) -> float:
        """Return the estimated peak memory of a candidate in bytes: the formula's value times a measured correction.

        The correction comes from a measured candidate that differs only in the batch size, as little as possible. If
        there is none, the estimate is optimistic, so that the candidate is measured if it may fit. No peak is below
        that of the validation.
        """
        return max(self.corrected_step(choice), self.validations.get(choice.layout, 0))

    def corrected_step(self, choice: Candidate) -> float:
        """Return the estimated peak memory of a training step in bytes; see `corrected`."""
        family = [(abs(known.batch - choice.batch), known) for known in self.steps if known.family == choice.family]
        if not family:
            return _OPTIMISM * self.formula(choice)
        _, nearest = min(family, key=lambda item: item[0])
        return self.formula(choice) * max(self.steps[nearest] / self.formula(nearest), _NEVER_LOWER)

    def formula(self, choice: Candidate) -> int:
        return peak_bytes(self.model, choice, self.microbatch)

    def time_of(self, choice: Candidate) -> StepTime:
        return step_time(self.model, choice, self.speed, self.microbatch)

    def rehearse(self, choices: Sequence[Candidate]) -> None:
        """Measure the peak memory of several candidates in parallel, each by a step on fake tensors.

        The peaks are stored in `self.rehearsed`. Candidates that the trainer cannot run are added to `self.refused`.
        """
        running = [(choice, [start(case) for case in self.cases(choice)]) for choice in choices]
        for choice, processes in running:
            measured = list[Measured]()
            for process in processes:
                try:
                    measured.append(_measured_of(self.answer(process)))
                except TrainerError:
                    self.refused.add(choice)
            if choice not in self.refused:
                # A rehearsal keeps on the device what offload keeps on the host.
                moved = state_bytes(self.model, choice) if choice.offload else 0
                self.steps[choice] = max(rank.step for rank in measured) - moved
                validation = max(rank.validation for rank in measured) - moved
                self.rehearsed[choice] = max(self.steps[choice], validation)
                if self.config.validation.enable:
                    self.validations[choice.layout] = validation

    def answer(self, process: Connection) -> dict[str, object]:
        """Return the memory of a rank, measured by the process at the other end of the pipe `process`.

        Raises:
            TrainerError: The trainer cannot run the candidate, or the process did not end in time.
        """
        if not process.poll(max(self.deadline + _PATIENCE - time.monotonic(), 0)):
            raise TrainerError(
                "a step on tensors without values did not end in time", "plan again on a machine with more free cores"
            )
        return answer(process)

    def cases(self, choice: Candidate) -> Iterator[Case]:
        """Yield the memory estimates to make for a candidate: one rank of the first pipeline stage, one of the last.

        Ranks in these two stages need the most memory.
        """
        # More microbatches than stages are never in flight at once.
        in_flight = min(choice.batch, choice.pipeline * self.microbatch) if choice.pipeline > 1 else choice.batch
        config = configured(self.config, replace(choice, batch=in_flight))
        local = local_problem(config, self.world_size)
        for stage in sorted({0, choice.pipeline - 1}):
            # The last of the ranks that share a sequence attends to all of it, and so needs the most memory.
            yield Case(local, model_args(config), stage, choice.context - 1, 1)

    def plans(self, ordered: Sequence[Candidate]) -> list[Plan]:
        """Return a plan for each measured candidate that fits into memory, the fastest first."""
        best: dict[Candidate, Plan] = {}
        for choice in ordered:
            if self.rehearsed.get(choice, self.usable + 1) <= self.usable and choice.family not in best:
                best[choice.family] = Plan(choice, self.rehearsed[choice], self.time_of(choice))
        return list(best.values())

    def next_larger(self, plan: Plan, choices: Iterable[Candidate]) -> Plan | None:
        """Return `plan` with the next larger batch size among `choices`, after measuring its memory.

        The plan is returned even if it does not fit into memory. Return None if there is no larger batch size, or if
        the trainer cannot run it.
        """
        larger = [c for c in choices if c.family == plan.candidate.family and c.batch > plan.candidate.batch]
        following = min(larger, key=lambda choice: choice.batch, default=None)
        if following is None:
            return None
        if following not in self.rehearsed and following not in self.refused:
            self.rehearse([following])
        peak = self.rehearsed.get(following)
        return Plan(following, peak, self.time_of(following)) if peak is not None else None


def _measured_of(memory: dict[str, Any]) -> Measured:
    windows = dict(memory["windows"])
    validation = windows.pop(VALIDATION, 0)
    return Measured(max(windows.values()), validation)
