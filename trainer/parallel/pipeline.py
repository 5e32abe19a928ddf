"""Pipeline parallelism with PyTorch's schedules: the model is divided into parts that process microbatches in turn."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from trainer.config import JobConfig
from trainer.config.mesh import SINGLE, Degrees, Part, microbatch_count, rank_of, schedule_to_run
from trainer.config.shape import ModelArgs
from trainer.models.decoder import Decoder
from trainer.parallel.mesh import World
from trainer.parallel.tensor_parallel import split_loss
from trainer.step import Batch, OptimizerStep, whole

Phase = Callable[[str], AbstractContextManager[None]]


def keep_part(model: Decoder, part: Part) -> Decoder:
    """Remove all layers from a model that belong to other parts of the pipeline than `part`, and return the model."""
    model.part = part
    for number in range(len(model.layers)):
        if number not in part.layers:
            del model.layers[str(number)]
    if not part.first:
        # Not None, so that all parts have the same `forward`.
        model.tok_embeddings = nn.Identity()  # type: ignore[assignment]
    if not part.last:
        model.norm = model.output = nn.Identity()  # type: ignore[assignment]
    return model


def join_parts(models: Sequence[Decoder]) -> nn.Module:
    if len(models) == 1:
        return models[0]
    joined = nn.Module()
    joined.layers = nn.ModuleDict()
    for model in models:
        joined.layers.update(dict(model.layers.items()))
        if model.part.first:
            joined.tok_embeddings = model.tok_embeddings
        if model.part.last:
            joined.norm, joined.output = model.norm, model.output
        for name, buffer in model.named_buffers(recurse=False):
            # Each part has a copy of its own, so the names must differ.
            joined.register_buffer(f"{name}_{model.part.number}", buffer, persistent=False)
    return joined


@dataclass(frozen=True)
class Microbatch:
    """The shapes and dtypes of the tensors that pass through a pipeline for one microbatch.

    The first part gets tokens (rows, length). Parts exchange hidden states (rows, length / split, dim), where the
    sequence is divided among the `split` ranks of tensor parallelism. The last part returns logits (rows, length, V).
    """

    rows: int
    length: int
    split: int
    args: ModelArgs
    hidden: torch.dtype
    logits: torch.dtype

    @classmethod
    def of(cls, config: JobConfig, args: ModelArgs, mesh: Degrees) -> "Microbatch":
        """Return the shapes and dtypes for a job.

        The dtype of hidden states depends on the kind of mixed precision: FSDP casts the inputs of modules, autocast
        casts only matrix products.
        """
        training, rows = config.training, config.parallelism.pipeline_parallel_microbatch_size
        compute_dtype, weight_dtype = getattr(torch, training.mixed_precision_param), getattr(torch, training.dtype)
        hidden = compute_dtype if mesh.uses_fsdp else weight_dtype
        return cls(rows, training.seq_len // mesh.cp, mesh.tp, args, hidden, compute_dtype)

    def input_of(self, part: Part) -> Tensor:
        return torch.empty(self.rows, self.length, dtype=torch.int64) if part.first else self.hidden_states()

    def output_of(self, part: Part) -> Tensor:
        vocabulary: int = self.args.vocab_size
        return torch.empty(self.rows, self.length, vocabulary, dtype=self.logits) if part.last else self.hidden_states()

    def hidden_states(self) -> Tensor:
        return torch.empty(self.rows, self.length // self.split, self.args.dim, dtype=self.hidden, requires_grad=True)


class Schedule(Protocol):
    """The interface of PyTorch's pipeline schedules; only what this module uses."""

    def step(self, *args: object, **kwargs: object) -> object: ...


class Stage(PipelineStage):
    """A pipeline stage with given tensor shapes, so that the ranks need not exchange shapes."""

    def _warmup_forward_vote(self, *_: object, **__: object) -> Tensor:
        return torch.tensor([1])

    def _warmup_backward_result(self, *_: object, **__: object) -> Tensor:
        return torch.tensor([1])


@dataclass
class PipelinedStep(OptimizerStep):
    """An optimizer step through a pipeline; `models` are this rank's parts, and `model` has all their weights."""

    models: Sequence[Decoder]
    schedule: Schedule = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.microbatches = microbatch_count(self.config)
        self.tensors = Microbatch.of(self.config, self.models[0].args, self.world.degrees)
        assert self.world.pipeline
        self.group = self.world.pipeline.get_group()
        self.schedule = self.build_schedule()

    @property
    def knows_loss(self) -> bool:
        return any(model.part.last for model in self.models)

    def build_schedule(self) -> Schedule:
        """Return PyTorch's pipeline schedule over this rank's parts."""
        tensors = self.tensors
        stages = [
            Stage(
                model, model.part.number, model.part.count, self.world.device, group=self.group,
                input_args=(tensors.input_of(model.part),), output_args=(tensors.output_of(model.part),),
            )
            for model in self.models
        ]  # fmt: skip
        name = schedule_to_run(self.config)
        schedule: Schedule = get_schedule_class(name)(
            stages[0] if name in SINGLE else stages,
            n_microbatches=self.microbatches,
            loss_fn=self.part_of_loss,
            # It would scale the gradients of earlier batches of the same step again.
            scale_grads=False,
        )
        return schedule

    def part_of_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.loss_fn(logits, labels) / (self.microbatches * self.accumulation_steps)

    def forward_backward(self, batch: Batch) -> Tensor:
        """Accumulate the gradients of one batch, and return its share of the step's loss.

        The result is 0 on ranks without the last part of the model. The schedule interleaves forward and backward
        passes, so both are recorded as one phase.
        """
        inputs, labels = batch
        losses: list[Tensor] = []
        inputs_of_schedule = (inputs,) if any(model.part.first for model in self.models) else ()
        targets = {"target": labels, "losses": losses} if self.knows_loss else {}
        with self.phase("fwd_bwd"), self.autocast(), split_loss(self.world.tensor):
            self.schedule.step(*inputs_of_schedule, **targets)
        return whole(torch.stack(losses).sum().detach()) if losses else torch.zeros((), device=self.world.device)

    def evaluate(self, batch: Batch) -> Tensor:
        """Return the loss of a validation batch; 0 on ranks without the last part of the model.

        The parts run one after the other: without a backward pass, no schedule of microbatches is needed.
        """
        inputs, labels = batch
        tensors, loss = replace(self.tensors, rows=len(inputs), length=inputs.shape[1]), torch.zeros(())
        hidden = inputs
        for model in self.models:
            if not model.part.first:
                hidden = self.received(hidden, tensors.hidden_states(), model.part.number - 1)
            with self.autocast(), split_loss(self.world.tensor):
                hidden = model(hidden)
                if model.part.last:
                    return whole(self.loss_fn(hidden, labels))
            self.send(hidden, model.part.number + 1)
        return loss.to(self.world.device)

    def received(self, hidden: Tensor, empty: Tensor, part: int) -> Tensor:
        """Return the output of part `part`: `hidden` if this rank computed it; else receive it into `empty`."""
        source = rank_of(part, self.world.degrees.pp, self.config.parallelism)
        if source == self.world.stage:
            return hidden
        received = empty.detach().to(self.world.device)
        dist.recv(received, group=self.group, group_src=source)
        return received

    def send(self, hidden: Tensor, part: int) -> None:
        target = rank_of(part, self.world.degrees.pp, self.config.parallelism)
        if target != self.world.stage:
            dist.send(hidden.contiguous(), group=self.group, group_dst=target)


def build_step(
    config: JobConfig,
    world: World,
    models: Sequence[Decoder],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    phase: Phase,
) -> OptimizerStep:
    if world.pipeline:
        return PipelinedStep(config, world, model, optimizer, phase, models)
    return OptimizerStep(config, world, model, optimizer, phase)
