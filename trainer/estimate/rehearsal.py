"""Run a step of the trainer's own code and model on fake tensors, which need no memory, in a fake process group."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.hooks import RemovableHandle

from trainer.config import JobConfig
from trainer.config.checks import check_divisions, recompute_interval
from trainer.config.converters import FLOAT8
from trainer.config.mesh import Degrees, Part, degrees, model_parts
from trainer.config.sections import Compile
from trainer.config.shape import ModelArgs
from trainer.estimate.tracker import MemoryTracker, Peak, TrackingHooks
from trainer.models import moe
from trainer.models.decoder import Decoder, model_args
from trainer.models.moe import moe_layers
from trainer.parallel import data_parallel
from trainer.parallel.mesh import World, build_world
from trainer.parallel.pipeline import build_step, join_parts
from trainer.parallel.plan import build_parts
from trainer.step import Batch, build_optimizer
from trainer.validation import untouched
from workbench.recorders.memory.tensor_hooks import COMMUNICATION, INPUTS


@dataclass(frozen=True)
class LocalProblem:
    """The job whose step runs on fake tensors to measure memory, in place of the configured job.

    `config` is the configuration without compilation, CPU offload and float8. `degrees` are the parallel degrees of the
    configured job. `notes` has sentences on what the estimate assumes.
    """

    config: JobConfig
    degrees: Degrees = field(default_factory=Degrees)
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """The number of ranks in a pipeline stage that shard or copy the weights.

        Ranks that split a matrix product together (tensor parallelism) count as one.
        """
        return self.degrees.dp_replicate * self.degrees.sharding


def local_problem(config: JobConfig, world_size: int) -> LocalProblem:
    """Return the job to run on fake tensors in place of the configured job of `world_size` ranks.

    Raises:
        ConfigError: There is no such model, it cannot be divided evenly, or the degrees do not fit the world size.
    """
    found = degrees(config.parallelism, world_size)
    check_divisions(config, found)
    filled = replace(config.parallelism, data_parallel_shard_degree=found.dp_shard)
    on_device = replace(config.training, enable_cpu_offload=False)
    converters = [name for name in config.model.converters if name != FLOAT8]
    model = replace(config.model, converters=converters)
    rehearsed = replace(config, parallelism=filled, compile=Compile(), training=on_device, model=model)
    return LocalProblem(rehearsed, found, tuple(assumptions(config)))


def assumptions(config: JobConfig) -> list[str]:
    """Return sentences on what the estimate assumes, for the configured settings that it does not model exactly."""
    has_experts = hasattr(model_args(config), "n_experts")
    assumed = {
        "products in the type of mixed_precision_param; float8 keeps smaller operands": FLOAT8
        in config.model.converters,
        "all experts get equally many tokens; in a run the router decides": has_experts,
        "weights, gradients and optimizer state on the device; training.enable_cpu_offload moves them to the CPU"
        "'s memory": config.training.enable_cpu_offload,
        "no compilation; compiled code keeps fewer activations": config.compile.enable,
    }
    return [text for text, applies in assumed.items() if applies]


class SizedProduct(torch.autograd.Function):
    """Multiply R tokens (R, D), sorted by expert, by the weights of E experts (E, D, F): only the size is computed.

    The result (R, F) has no values. The same tensors are saved for the backward pass as in torch's grouped product,
    which cannot run on fake float32 tensors.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(tokens, weights)
        return tokens.new_empty(len(tokens), weights.shape[-1])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, Tensor]:
        tokens, weights = ctx.saved_tensors
        return torch.empty_like(tokens), torch.empty_like(weights)


@contextmanager
def even_routing(copies: int) -> Iterator[None]:
    """Let experts run on fake tensors inside this context: their products have a size but no values.

    `copies` is the number of token copies that each rank sends to experts. All ranks that have experts are assumed to
    get equal parts of them.
    """
    originals = moe.grouped_mm, data_parallel.split_sizes
    moe.grouped_mm = lambda tokens, weights, **_: SizedProduct.apply(tokens, weights)  # type: ignore[no-untyped-call]
    data_parallel.split_sizes = lambda counts: _even_split(copies, len(counts))
    try:
        yield
    finally:
        moe.grouped_mm, data_parallel.split_sizes = originals


def _even_split(copies: int, ranks: int) -> list[int]:
    share, more = divmod(copies, ranks)
    return [share + (rank < more) for rank in range(ranks)]


_STEPS_WITH_EXPERTS = 2
"""The number of steps that are run of a model with experts, which keep tensors from one step to the next."""
_MAX_BATCHES = 2
"""The most accumulated batches that are run: from the second one on, gradients exist and memory stays the same."""
ENDS = 2
"""The number of layers at either end whose memory differs from that of the others; FSDP gathers one layer ahead."""
VALIDATION = "eval"
"""The name of the window of a validation."""
Phase = Callable[[str], AbstractContextManager[None]]
NUMBER_SIGN = " #"
"""The text between the name of a window (a part of the step) and the number of the pass through the pipeline."""


def join_fake(local: LocalProblem, rank: int, stage: int = 0) -> World:
    """Join PyTorch's fake process group as data-parallel rank `rank` of pipeline stage `stage`; return the `World`."""
    place = (stage * local.ranks + rank) * local.degrees.tp
    size = local.degrees.pp * local.ranks * local.degrees.tp
    dist.init_process_group("fake", rank=place, world_size=size)
    return build_world(local.degrees, place, size, torch.device("cpu"))


def rehearse(config: JobConfig, world: World, args: ModelArgs, parts: Sequence[Part]) -> dict[str, Peak]:
    """Run a training step on fake tensors with the model parts `parts`, and return {window: its peak memory}.

    `args` is the shape of the model. Windows are the phases of the step. In the forward and backward pass, the first
    and last `ENDS` layers of a part have their own windows ("bwd +0" is the first layer, "bwd -1" the last), because
    their memory differs from that of the other layers. In a pipeline, each pass has separate windows. The validation,
    if the configuration has one, is the window "eval".
    """
    models = build_parts(config, world, args, parts)
    # The weights come from the meta device: FSDP shards there much faster than on fake tensors.
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        even_routing(routed_tokens(config, args, world.degrees)),
    ):
        for model in models:
            model.to_empty(device=world.device)
            model.reset_buffers()
        return Rehearsal(config, world, models).peaks()


def routed_tokens(config: JobConfig, args: ModelArgs, mesh: Degrees) -> int:
    """Return the number of token copies that a rank sends to experts in one forward pass of a training step."""
    training, parallelism = config.training, config.parallelism
    is_pipeline = mesh.pp > 1
    rows = parallelism.pipeline_parallel_microbatch_size if is_pipeline else training.local_batch_size
    return _token_copies(rows, training.seq_len, args, mesh)


def _token_copies(rows: int, length: int, args: ModelArgs, mesh: Degrees) -> int:
    # A rank of tensor parallelism sends its part of the sequence.
    return rows * length // (mesh.cp * mesh.tp) * getattr(args, "top_k", 0)


@dataclass
class Rehearsal:
    """Runs steps of one rank on fake tensors and tracks their memory; it must be used inside FakeTensorMode.

    `models` are the model parts of the rank; there are several only in a pipeline. A window is a named part of the
    step, and the tracker keeps a separate peak for each window.
    """

    config: JobConfig
    world: World
    models: Sequence[Decoder]

    def __post_init__(self) -> None:
        self.tracker = MemoryTracker()
        model = join_parts(self.models)
        optimizer = build_optimizer(model, self.config.optimizer)
        self.compute = build_step(self.config, self.world, self.models, model, optimizer, self.phase)
        self.hooks = TrackingHooks(self.compute.model, self.compute.optimizer, self.tracker)
        self.passes: Counter[int] = Counter()

    def peaks(self) -> dict[str, Peak]:
        """Run a step and a validation, if there is one, and return {window: its peak memory}.

        The optimizer's state is created before the step, because it exists in all steps except the first. A model with
        experts runs `_STEPS_WITH_EXPERTS` steps, and the last one counts.
        """
        buckets = self.buckets()
        for storage in buckets:
            self.tracker.add_storage(storage.untyped_storage(), COMMUNICATION)
        handles = [handle for number in range(len(self.models)) for handle in self.mark_layers(number)]
        with self.hooks.active(), self.tracker:
            self.create_state()
            for _ in range(_STEPS_WITH_EXPERTS if any(moe_layers(self.compute.model)) else 1):
                self.tracker.peaks.clear()
                self.passes.clear()
                self.step()
            for handle in handles:
                handle.remove()
            if self.config.validation.enable:
                self.validate()
        return self.tracker.peaks

    def create_state(self) -> None:
        """Let the optimizer create its state, by a step with gradients without values.

        A whole first step would take as long as the step to measure.
        """
        for parameter in self.compute.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.empty_like(parameter)
        self.compute.optimizer.step()
        self.compute.optimizer.zero_grad()

    def step(self) -> None:
        """Run one optimizer step, with at most `_MAX_BATCHES` accumulated batches."""
        training = self.config.training
        for _ in range(min(self.compute.accumulation_steps, _MAX_BATCHES)):
            self.compute.forward_backward(self.batch(training.local_batch_size, training.seq_len))
        self.compute.update()

    def validate(self) -> None:
        validation, mesh = self.config.validation, self.world.degrees
        rows, length = validation.local_batch_size, validation.seq_len or self.config.training.seq_len
        routed = _token_copies(rows, length, self.models[0].args, mesh)
        with self.phase(VALIDATION), even_routing(routed), torch.no_grad(), untouched(self.models):
            self.compute.evaluate(self.batch(rows, length))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Track the peak memory inside this context as a separate window with the name `name`."""
        if name == "bwd":
            self.tracker.keep_for_backward()
        self.tracker.window(name)
        yield
        self.tracker.window("")

    def batch(self, rows: int, length: int) -> Batch:
        """Return fake (inputs, labels) that occupy as much memory as a batch of `rows` sequences from the data loader.

        As in the loader, both are views of one tensor. With context parallelism they are two copies.
        """
        ranks = self.world.degrees.cp
        tokens = torch.empty(rows, length // ranks + 1, dtype=torch.int64)
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        batch = (inputs.clone(), labels.clone()) if ranks > 1 else (inputs, labels)
        for tensor in batch:
            self.tracker.add_storage(tensor.untyped_storage(), INPUTS)
        return batch

    def buckets(self) -> list[Tensor]:
        """Return tensors with the total size of DDP's gradient buckets; an empty list without DDP.

        They replace the buckets of DDP's reducer, which works only on real memory.
        """
        if not self.world.data or self.world.degrees.uses_fsdp:
            return []
        return [torch.empty_like(parameter) for parameter in self.compute.model.parameters()]

    def mark_layers(self, number: int) -> Iterator[RemovableHandle]:
        """Add hooks to the layers of `models[number]`, and yield the handles with which these hooks are removed.

        At the start of a layer's forward or backward pass, the hooks start a new window of the memory tracker, such as
        `fwd +0`.
        """
        layers = list(self.models[number].layers.values())
        for place, layer in enumerate(layers):
            name = _layer_name(place, len(layers))
            yield layer.register_forward_pre_hook(self.at_begin(number, name, first=place == 0))
            yield layer.register_forward_hook(self.at_end_of_forward(number, name, last=layer is layers[-1]))

    def pass_suffix(self, number: int) -> str:
        """Return the suffix of window names for the current pass through `models[number]`; empty without a pipeline."""
        return f"{NUMBER_SIGN}{number}.{self.passes[number]}" if self.world.pipeline else ""

    def at_begin(self, number: int, name: str, *, first: bool) -> Callable[[nn.Module, object], None]:
        """Return a forward pre-hook for a layer of `models[number]`, which starts the window `fwd NAME`.

        A window is a named part of the step with a separate memory peak. At the `first` layer of the model part, the
        hook also counts the passes through the part.
        """

        def begin(*_: object) -> None:
            self.passes[number] += first
            self.tracker.window(f"fwd {name}{self.pass_suffix(number)}")

        return begin

    def at_end_of_forward(self, number: int, name: str, *, last: bool) -> Callable[[nn.Module, object, Tensor], None]:
        """Return a forward hook for a layer of `models[number]`, which prepares the layer's window `bwd NAME`.

        This window is for the backward pass, and starts when the gradient of the layer's output is ready. After the
        `last` layer of a model part, the hook also starts the window `fwd head`.
        """

        def end(_: nn.Module, __: object, output: Tensor) -> None:
            suffix = self.pass_suffix(number)
            if last:
                self.tracker.window(f"fwd head{suffix}")
            # The gradient of a layer's output is complete just before the backward pass of that layer.
            if output.requires_grad:
                output.register_hook(lambda _: self.tracker.window(f"bwd {name}{suffix}"))  # type: ignore[no-untyped-call]

        return end


def _layer_name(place: int, count: int) -> str:
    """Return the name of the layer with index `place` among `count` layers, for the names of windows.

    The first two layers are `+0` and `+1`, the last two `-2` and `-1`; all layers between are `middle`.
    """
    if place < ENDS:
        return f"+{place}"
    return f"-{count - place}" if count - place <= ENDS else "middle"


@dataclass(frozen=True)
class Shallow:
    """Two small numbers of layers, `few` and `more`, whose memory peaks are extrapolated to a model of `layers` layers.

    Example: the peak is 10 GiB with 4 layers and 12 GiB with 5. With 32 layers it is 10 + 2 * (32 - 4) = 66 GiB.
    """

    few: int
    more: int
    layers: int

    @classmethod
    def for_model(cls, layers: int, period: int, dense: int = 0) -> "Shallow | None":
        """Return the two numbers of layers to measure, `period` layers apart; None if the model has too few layers.

        The first `dense` layers differ from the layers after them, and are all kept. The kinds of layers repeat every
        `period` layers (such as dense and expert layers). So only whole periods are removed.
        """
        least = dense + 2 * max(ENDS, period)
        few = least + (layers - least) % period
        return cls(few, few + period, layers) if few + period < layers else None

    def peak(self, at_few: Peak, at_more: Peak) -> Peak | None:
        """Return the peak of the whole model, extrapolated from the peaks with `few` and `more` layers.

        Return None if a category is smaller with more layers. Then the two peaks occur at different instants of the
        step, and the extrapolated category could become negative.
        """
        times = (self.layers - self.few) // (self.more - self.few)  # without a remainder: see `for_model`
        holders = {
            key: at_few.holders.get(key, 0) + (at_more.holders.get(key, 0) - at_few.holders.get(key, 0)) * times
            for key in sorted({*at_few.holders, *at_more.holders})
        }
        peak = Peak(sum(holders.values()), holders)
        return without_negatives(peak) if min(peak.categories.values()) >= 0 else None


def without_negatives(peak: Peak) -> Peak:
    """Return the peak without modules below zero bytes; the sum of each category stays the same.

    Extrapolation makes a module negative if another module was running at the peak of the model with more layers. The
    missing bytes are taken from the modules with the most bytes in the category.
    """
    holders = dict(peak.holders)
    for category in peak.categories:
        mine = sorted((size, key) for key, size in holders.items() if key[0] == category)
        lacking = -sum(size for size, _ in mine if size < 0)
        for size, key in reversed(mine):
            taken = min(lacking, size) if size > 0 else size
            holders[key] = size - taken
            lacking -= max(taken, 0)
    return Peak(peak.total, holders)


def window_peaks(config: JobConfig, world: World, args: ModelArgs) -> dict[str, Peak]:
    """Return {window of a step: its peak memory}; a window is a part of a step, see `rehearsal.rehearse`.

    The peaks of a deep model are extrapolated from those of two shallow models. Windows of the first and last layers
    are enough, because the peaks of the layers between lie between theirs.
    """
    parts = model_parts(world.stage, args.n_layers, config.parallelism)
    if shallow := shallow_model(config, args, parts):
        few = rehearse(config, world, args, shortened(parts, shallow, shallow.few))
        more = rehearse(config, world, args, shortened(parts, shallow, shallow.more))
        peaks = {name: shallow.peak(peak, more[name]) for name, peak in few.items()}
        if all(peaks.values()):
            return {name: peak for name, peak in peaks.items() if peak}
    return rehearse(config, world, args, parts)


def shallow_model(config: JobConfig, args: ModelArgs, parts: Sequence[Part]) -> Shallow | None:
    """Return the numbers of layers to extrapolate from; None if `parts`, the parts of this rank, have too few."""
    interval, _ = recompute_interval(config.activation_checkpoint)
    period = math.lcm(max(interval, 1), getattr(args, "moe_every", 1))
    return Shallow.for_model(min(len(part.layers) for part in parts), period, getattr(args, "n_dense_layers", 0))


def shortened(parts: Sequence[Part], shallow: Shallow, layers: int) -> list[Part]:
    """Return `parts` with fewer layers: the smallest part keeps `layers` layers, all parts lose the same number."""
    return [replace(part, layers=part.layers[: len(part.layers) - shallow.layers + layers]) for part in parts]
