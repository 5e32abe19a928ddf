"""Pipeline parallelism as PyTorch does it: the model in parts, through which microbatches follow one another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from trainer.config import ConfigError, JobConfig
from trainer.config.sections import Parallelism
from trainer.models.decoder import Decoder
from trainer.models.llama3.flavors import ModelArgs
from trainer.parallel.tensor_parallel import split_loss
from trainer.step import Batch, OptimizerStep, mean_loss

V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


@dataclass(frozen=True)
class Part:
    """One of `count` parts of a model, and the numbers of its layers."""

    number: int
    count: int
    layers: range

    @property
    def first(self) -> bool:
        """Whether this part has the embedding."""
        return self.number == 0

    @property
    def last(self) -> bool:
        """Whether this part has the output layer."""
        return self.number == self.count - 1


def model_parts(rank: int, layers: int, config: Parallelism) -> list[Part]:
    """Return the parts that rank `rank` of the pipeline has of a model of `layers`.

    Raises:
        ConfigError: There is no such schedule, or the layers do not make its parts.
    """
    ranks, looped = config.pipeline_parallel_degree, has_several_parts(config.pipeline_parallel_schedule)
    count = ranks * (2 if looped else 1)
    ends = config.pipeline_parallel_first_stage_less_layers, config.pipeline_parallel_last_stage_less_layers
    if config.pipeline_parallel_layers_per_stage:
        # -(-a // b) rounds up.
        count = -(-(layers + sum(ends)) // config.pipeline_parallel_layers_per_stage)
    layer_ranges = divide(layers, count, *ends)
    if count % ranks or (count > ranks) != looped or any(start > stop for start, stop in layer_ranges):
        raise ConfigError(
            f"{layers} layers cannot make {count} stages on {ranks} ranks for {config.pipeline_parallel_schedule}",
            "change pipeline_parallel_layers_per_stage, the degree or the schedule",
        )
    return [Part(number, count, range(*layer_ranges[number])) for number in part_numbers(rank, ranks, count, config)]


def divide(layers: int, count: int, first_less: int, last_less: int) -> list[tuple[int, int]]:
    """Return (first, beyond last) layer of each part: even, with the embedding and the output counted as some layers.

    Excess layers go to the first parts. Example: 10 layers in 4 parts, embedding and output counted as one layer each:
    12 / 4 = 3, so the parts have 2, 3, 3 and 2 layers.
    """
    each, excess = divmod(layers + first_less + last_less, count)
    sizes = [each + (number < excess) for number in range(count)]
    # The embedding and the output take time but are no layers.
    sizes[0] -= first_less
    sizes[-1] -= last_less
    ends = [sum(sizes[: number + 1]) for number in range(count)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def part_numbers(rank: int, ranks: int, count: int, config: Parallelism) -> Sequence[int]:
    """Return the numbers of a rank's parts."""
    if config.pipeline_parallel_schedule in V_SHAPED:
        return rank, count - 1 - rank
    return range(rank, count, ranks)


def has_several_parts(schedule: str) -> bool:
    """Return whether each rank has several parts.

    Raises:
        ConfigError: There is no such schedule.
    """
    try:
        return issubclass(get_schedule_class(schedule), PipelineScheduleMulti)
    except ValueError as error:
        raise ConfigError(f"pipeline_parallel_schedule = {schedule!r}", str(error)) from error


def keep_part(model: Decoder, part: Part) -> Decoder:
    """Remove from a model what belongs to other parts."""
    for number in range(len(model.layers)):
        if number not in part.layers:
            del model.layers[str(number)]
    if not part.first:
        model.tok_embeddings = nn.Identity()  # type: ignore[assignment]
    if not part.last:
        model.norm = model.output = nn.Identity()
    return model


@dataclass(frozen=True)
class Microbatch:
    """The tensors that go through a pipeline.

    They are tokens (rows, length), then hidden states (rows, length / split, dim), at last logits (rows, length, V).
    """

    rows: int
    length: int
    split: int
    args: ModelArgs
    hidden: torch.dtype
    logits: torch.dtype

    def input_of(self, part: Part) -> Tensor:
        """Return what a part is given."""
        return torch.empty(self.rows, self.length, dtype=torch.int64) if part.first else self.hidden_states()

    def output_of(self, part: Part) -> Tensor:
        """Return what a part returns."""
        vocabulary: int = self.args.vocab_size
        return torch.empty(self.rows, self.length, vocabulary, dtype=self.logits) if part.last else self.hidden_states()

    def hidden_states(self) -> Tensor:
        """Return what goes from one part to the next."""
        return torch.empty(self.rows, self.length // self.split, self.args.dim, dtype=self.hidden, requires_grad=True)


class Schedule(Protocol):
    """What this module needs of PyTorch's schedules."""

    def step(self, *args: object, **kwargs: object) -> object: ...


class Stage(PipelineStage):
    """A stage that does not ask the other ranks for their shapes: here all know them."""

    def _warmup_forward_vote(self, *_: object, **__: object) -> Tensor:
        return torch.tensor([1])

    def _warmup_backward_result(self, *_: object, **__: object) -> Tensor:
        return torch.tensor([1])


def build_schedule(
    models: Sequence[Decoder],
    parts: Sequence[Part],
    microbatch: Microbatch,
    config: JobConfig,
    group: dist.ProcessGroup,
) -> Schedule:
    """Return the schedule of a rank's parts.

    Raises:
        ConfigError: It cannot take that number of microbatches.
    """
    stages = [
        Stage(
            model, part.number, part.count, torch.device("cpu"), group=group,
            input_args=(microbatch.input_of(part),), output_args=(microbatch.output_of(part),),
        )
        for model, part in zip(models, parts, strict=True)
    ]  # fmt: skip
    name = config.parallelism.pipeline_parallel_schedule
    microbatches = config.training.local_batch_size // microbatch.rows
    try:
        schedule: Schedule = get_schedule_class(name)(
            stages if has_several_parts(name) else stages[0],
            n_microbatches=microbatches,
            loss_fn=mean_loss,
            scale_grads=True,
        )
    except ValueError as error:
        message = f"{name} cannot take {microbatches} microbatches: {error}"
        raise ConfigError(message, "change local_batch_size or pipeline_parallel_microbatch_size") from error
    return schedule


@dataclass
class PipelinedStep(OptimizerStep):
    """A step whose passes a schedule orders; `model` has the rank's parts."""

    schedule: Schedule
    parts: Sequence[Part]

    def forward_backward(self, batch: Batch) -> Tensor:
        """Add the gradients of all microbatches of a batch; only the end of the pipeline knows the loss."""
        inputs, labels = batch
        losses: list[Tensor] = []
        inputs_of_schedule = (inputs,) if any(part.first for part in self.parts) else ()
        targets = {"target": labels, "losses": losses} if any(part.last for part in self.parts) else {}
        with self.phase("fwd_bwd"), self.autocast(), split_loss(self.world.tensor):
            self.schedule.step(*inputs_of_schedule, **targets)
        return torch.stack(losses).mean() if losses else torch.zeros(())
