"""A training step without memory: fake tensors on a fake process group, the trainer's own model, sharding and step."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh

from trainer.config import JobConfig
from trainer.estimate.context_parallel import ring_over
from trainer.estimate.expert_parallel import evenly_routed
from trainer.estimate.mesh import Local
from trainer.estimate.pipeline import Part, Passed, PipelinedStep, build_schedule, cut
from trainer.estimate.tensor_parallel import apply_tensor_parallel, loss_over
from trainer.estimate.tracker import MemoryTracker, Peak, TrackedRoles
from trainer.models.decoder import Decoder, build_model
from trainer.optim import build_optimizer
from trainer.parallel.mesh import Degrees, World, degrees, mesh_of
from trainer.parallel.plan import lay_out
from trainer.step import Batch, OptimizerStep
from workbench.recorders.memory.tensor_hooks import COMMUNICATION, INPUTS

STEPS = 2
"""The first step makes the optimizer's state, so that the second is like all that follow."""
TENSOR, PIPELINE = "tp", "pp"
MOST_BATCHES = 2
"""Batches of a step that are rehearsed: all after the first find the gradients of those before."""
ENDS = 2
"""Layers at either end of a model that differ from those between: FSDP gathers one ahead."""
Phase = Callable[[str], AbstractContextManager[None]]
APART = " #"
"""Parts a window's name from the pass in a pipeline."""


@dataclass(frozen=True)
class Pretended(World):
    """A place among ranks that do not exist: of tensor and context parallelism, and in a pipeline."""

    tensor: DeviceMesh | None
    context: dist.ProcessGroup | None
    pipeline: dist.ProcessGroup | None
    stage: int = 0


def join_fake(local: Local, rank: int, stage: int = 0) -> Pretended:
    """Join a process group that exists in name only: rank `rank` of data parallelism in stage `stage`."""
    place = (stage * local.ranks + rank) * local.tensor
    dist.init_process_group("fake", rank=place, world_size=local.stages * local.ranks * local.tensor)
    return joined(local, place)


def joined(local: Local, place: int) -> Pretended:
    """What rank `place` of a process group is in the mesh: of a stage, a copy, a shard, a ring, a tensor."""
    wanted = degrees(replace(local.config.parallelism, expert_parallel_degree=1), local.ranks)
    experts = local.config.parallelism.expert_parallel_degree
    stage, rank = divmod(place // local.tensor, local.ranks)
    whole = mesh_of({PIPELINE: local.stages, **wanted.dense(), TENSOR: local.tensor}, "cpu")
    # Experts lie on all ranks that have parts of one copy, those of tensor parallelism too.
    sparse = Degrees(wanted.dp_replicate, wanted.dp_shard * local.tensor, experts).sparse()
    shared = mesh_of({PIPELINE: local.stages, **sparse}, "cpu") if experts > 1 else None
    ring = [place + (number - rank % local.context) * local.tensor for number in range(local.context)]
    return Pretended(
        rank, local.ranks, torch.device("cpu"), wanted, of_data(whole), of_data(shared),
        whole[TENSOR] if whole and local.tensor > 1 else None,
        dist.new_group(ring) if local.context > 1 else None,
        whole[PIPELINE].get_group() if whole and local.stages > 1 else None, stage,
    )  # fmt: skip


def of_data(mesh: DeviceMesh | None) -> DeviceMesh | None:
    """The dimensions of data parallelism, if it has any."""
    names = tuple(name for name in (mesh and mesh.mesh_dim_names) or () if name not in (TENSOR, PIPELINE))
    return mesh[names] if mesh and names else None


def rehearse(config: JobConfig, world: Pretended, args: Any, parts: Sequence[Part]) -> dict[str, Peak]:
    """The highest moment of each window of a step of the `parts` of a model of shape `args`.

    Windows are the phases; fwd and bwd are cut at the `ENDS` layers at either end of a part ("bwd +0" is the first
    layer, "bwd -1" the last one), as these differ from those between. In a pipeline each pass has windows of its own.
    """
    models = laid_out(config, world, args, parts)
    # The weights come from the meta device: FSDP shards there much faster than on fake tensors.
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        ring_over(world.context),
        evenly_routed(copies(config, args, world.tensor.size() if world.tensor else 1)),
    ):
        for model in models:
            model.to_empty(device=world.device)
            model.reset_buffers()
        return Rehearsal(config, world, models, parts).peaks()


def copies(config: JobConfig, args: Any, tensor: int) -> int:
    """Of tokens that a rank sends to experts at once."""
    training, parallelism = config.training, config.parallelism
    piped = parallelism.pipeline_parallel_degree > 1
    rows = parallelism.pipeline_parallel_microbatch_size if piped else training.local_batch_size
    # A rank of tensor parallelism sends its part of the sequence.
    return rows * training.seq_len // tensor * getattr(args, "top_k", 0)


def laid_out(config: JobConfig, world: Pretended, args: Any, parts: Sequence[Part]) -> list[Decoder]:
    """The parts of a model on the meta device, each as this rank has it."""
    models = [cut(build_model(config, args), part) for part in parts]
    for model in models:
        if world.tensor:
            apply_tensor_parallel(model, world.tensor, shared=world.experts is not None)
        lay_out(model, config, world)
    return models


def step_of(
    config: JobConfig, world: Pretended, models: Sequence[Decoder], parts: Sequence[Part], phase: Phase
) -> OptimizerStep:
    """The step that a rank with these parts takes."""
    if not world.pipeline:
        [model] = models
        return OptimizerStep(config, world, model, build_optimizer(model, config.optimizer), phase)
    whole = nn.ModuleList(models)
    passed = microbatch(config, models[0], world.tensor.size() if world.tensor else 1)
    schedule = build_schedule(models, parts, passed, config, world.pipeline)
    return PipelinedStep(config, world, whole, build_optimizer(whole, config.optimizer), phase, schedule, parts)


@dataclass
class Rehearsal:
    """The steps of one rank's models (several only in a pipeline), tracked. Made and used inside FakeTensorMode."""

    config: JobConfig
    world: Pretended
    models: Sequence[Decoder]
    parts: Sequence[Part]

    def __post_init__(self) -> None:
        self.tracker = MemoryTracker()
        self.compute = step_of(self.config, self.world, self.models, self.parts, self.phase)
        self.roles = TrackedRoles(self.compute.model, self.compute.optimizer, self.tracker)
        self.passes: Counter[int] = Counter()

    def peaks(self) -> dict[str, Peak]:
        """The highest moments of the last of `STEPS` steps."""
        buckets = self.buckets()
        for storage in buckets:
            self.tracker.see(storage.untyped_storage(), COMMUNICATION)
        handles = [handle for number in range(len(self.models)) for handle in self.mark_layers(number)]
        with self.roles.noting(), self.tracker:
            for _ in range(STEPS):
                self.tracker.peaks.clear()
                self.passes.clear()
                self.step()
        for handle in handles:
            handle.remove()
        return self.tracker.peaks

    def step(self) -> None:
        """As the training loop has it."""
        for _ in range(min(self.compute.accumulation_steps, MOST_BATCHES)):
            with loss_over(self.world.tensor):
                self.compute.forward_backward(self.batch())
        self.compute.update()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A window of its own."""
        if name == "bwd":
            self.tracker.keep_for_backward()
        self.tracker.window(name)
        yield
        self.tracker.window("")

    def batch(self) -> Batch:
        """As the loader cuts it: inputs and labels are views of one tensor."""
        training = self.config.training
        rows = torch.empty(training.local_batch_size, training.seq_len + 1, dtype=torch.int64)
        self.tracker.see(rows.untyped_storage(), INPUTS)
        return rows[:, :-1], rows[:, 1:]

    def buckets(self) -> list[Tensor]:
        """DDP's copies of all gradients; its reducer itself needs real memory."""
        if self.world.size == 1 or self.world.degrees.dp_shard > 1:
            return []
        return [torch.empty_like(parameter) for parameter in self.compute.model.parameters()]

    def mark_layers(self, number: int) -> Iterator[Any]:
        """Hooks that name a window at the begin of each layer's forward and backward pass."""
        layers = list(self.models[number].layers.values())
        for place, layer in enumerate(layers):
            name = place_of(place, len(layers))
            yield layer.register_forward_pre_hook(self.begins(number, name, first=place == 0))
            yield layer.register_forward_hook(self.ends_forward(number, name, last=layer is layers[-1]))

    def of_pass(self, number: int) -> str:
        """What tells a pass through a part from the others; they are alike where there is no pipeline."""
        return f"{APART}{number}.{self.passes[number]}" if self.world.pipeline else ""

    def begins(self, number: int, name: str, *, first: bool) -> Callable[[nn.Module, Any], None]:
        def begin(*_: Any) -> None:
            self.passes[number] += first
            self.tracker.window(f"fwd {name}{self.of_pass(number)}")

        return begin

    def ends_forward(self, number: int, name: str, *, last: bool) -> Callable[[nn.Module, Any, Tensor], None]:
        """The gradient of a layer's output comes when its backward pass begins."""

        def end(_: nn.Module, __: Any, output: Tensor) -> None:
            its_pass = self.of_pass(number)
            if last:
                self.tracker.window(f"fwd head{its_pass}")
            if output.requires_grad:
                output.register_hook(lambda _: self.tracker.window(f"bwd {name}{its_pass}"))  # type: ignore[no-untyped-call]

        return end


def microbatch(config: JobConfig, model: Decoder, tensor: int) -> Passed:
    """What goes through a pipeline; FSDP casts what its modules are given, autocast only what they multiply."""
    training, parallelism = config.training, config.parallelism
    mixed, kept = getattr(torch, training.mixed_precision_param), getattr(torch, training.dtype)
    return Passed(
        rows=parallelism.pipeline_parallel_microbatch_size, length=training.seq_len, split=tensor, args=model.args,
        hidden=mixed if parallelism.data_parallel_shard_degree > 1 else kept, logits=mixed,
    )  # fmt: skip


def place_of(place: int, count: int) -> str:
    """`+0` for the first layer, `-1` for the last, `middle` for those not near an end."""
    if place < ENDS:
        return f"+{place}"
    return f"-{count - place}" if count - place <= ENDS else "middle"
