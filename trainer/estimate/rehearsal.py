"""A training step without memory: fake tensors on a fake process group, the trainer's own model, sharding and step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.config import JobConfig
from trainer.estimate.tensor_parallel import apply_tensor_parallel, loss_over
from trainer.estimate.tracker import MemoryTracker, Peak, TrackedRoles
from trainer.models.decoder import Decoder, build_model
from trainer.optim import build_optimizer
from trainer.parallel.mesh import World, degrees
from trainer.parallel.plan import lay_out
from trainer.recorders.notes import COMMUNICATION, INPUTS
from trainer.step import Batch, OptimizerStep

STEPS = 2
"""The first step makes the optimizer's state, so that the second is like all that follow."""
TENSOR = "tp"
MOST_BATCHES = 2
"""Batches of a step that are rehearsed: all after the first find the gradients of those before."""


@dataclass(frozen=True)
class Pretended(World):
    """A place among ranks that do not exist, each of which is `tensor` ranks of tensor parallelism."""

    tensor: DeviceMesh | None


def join_fake(config: JobConfig, rank: int, size: int, tensor: int = 1) -> Pretended:
    """Join a process group that exists in name only: rank `rank` of `size`, the first of its `tensor` parts."""
    wanted = degrees(config.parallelism, size)
    dist.init_process_group("fake", rank=rank * tensor, world_size=size * tensor)
    sizes = {name: count for name, count in {**asdict(wanted), TENSOR: tensor}.items() if count > 1}
    whole = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes)) if sizes else None
    data = tuple(name for name in sizes if name != TENSOR)
    return Pretended(
        rank, size, torch.device("cpu"), wanted, whole[data] if whole and data else None,
        whole[TENSOR] if whole and tensor > 1 else None,
    )  # fmt: skip


def rehearse(config: JobConfig, world: Pretended, args: Any, ends: int) -> dict[str, Peak]:
    """The highest moment of each window of a step of a model of shape `args`.

    Windows are the phases; fwd and bwd are cut at the `ends` layers at either end of the model ("bwd +0" is the first
    layer, "bwd -1" the last one), as these differ from those between.
    """
    model = build_model(config, args)
    if world.tensor:
        apply_tensor_parallel(model, world.tensor)
    lay_out(model, config, world)
    # The weights come from the meta device: FSDP shards there much faster than on fake tensors.
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device=world.device)
        model.reset_buffers()
        return Rehearsal(config, world, model, ends).peaks()


@dataclass
class Rehearsal:
    """The steps of one model, tracked. Made and used inside FakeTensorMode."""

    config: JobConfig
    world: Pretended
    model: Decoder
    ends: int

    def __post_init__(self) -> None:
        self.tracker = MemoryTracker()
        self.optimizer = build_optimizer(self.model, self.config.optimizer)
        self.compute = OptimizerStep(self.config, self.world, self.model, self.optimizer, self.phase)
        self.roles = TrackedRoles(self.model, self.optimizer, self.tracker)

    def peaks(self) -> dict[str, Peak]:
        """The highest moments of the last of `STEPS` steps."""
        buckets = self.buckets()
        for storage in buckets:
            self.tracker.see(storage.untyped_storage(), COMMUNICATION)
        handles = list(self.mark_layers())
        with self.roles.noting(), self.tracker:
            for _ in range(STEPS):
                self.tracker.peaks.clear()
                self.step()
        for handle in handles:
            handle.remove()
        return self.tracker.peaks

    def step(self) -> None:
        """As the training loop has it."""
        for _ in range(min(self.compute.accumulation, MOST_BATCHES)):
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
        return [torch.empty_like(parameter) for parameter in self.model.parameters()]

    def mark_layers(self) -> Iterator[Any]:
        """Hooks that name a window at the begin of each layer's forward and backward pass."""
        count = len(self.model.layers)
        for place, layer in enumerate(self.model.layers.values()):
            name = place_of(place, count, self.ends)
            yield layer.register_forward_pre_hook(self.begins(f"fwd {name}"))
            yield layer.register_forward_hook(self.ends_forward(name, last=place == count - 1))

    def begins(self, window: str) -> Callable[[nn.Module, Any], None]:
        return lambda *_: self.tracker.window(window)

    def ends_forward(self, name: str, *, last: bool) -> Callable[[nn.Module, Any, Tensor], None]:
        """The gradient of a layer's output comes when its backward pass begins."""

        def end(_: nn.Module, __: Any, output: Tensor) -> None:
            if last:
                self.tracker.window("fwd head")
            if output.requires_grad:
                output.register_hook(lambda _: self.tracker.window(f"bwd {name}"))  # type: ignore[no-untyped-call]

        return end


def place_of(place: int, count: int, ends: int) -> str:
    """`+0` for the first layer, `-1` for the last, `middle` for those not near an end."""
    if place < ends:
        return f"+{place}"
    return f"-{count - place}" if count - place <= ends else "middle"
