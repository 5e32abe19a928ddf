"""Divide parameters into the models that a script builds, such as a policy and its frozen reference model.

Worked example, user frames outermost first: `main:10 > build > __init__` and `main:12 > load_teacher > __init__` part
after `main`, so each line of `main` builds a model. The frames below `__init__` part too, but a constructor that calls
several others builds one model.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from analyzers.columns import Integers, Mask
from analyzers.frames import Origin, Place, last_parts, origin_of
from analyzers.memory.categorise import NUMBER_OF, Guess
from analyzers.memory.evidence import innermost
from analyzers.memory.lifetimes import Replay
from analyzers.memory.model import AvoidableKind, AvoidableUse, Purpose
from analyzers.memory.phases import PATTERN, Sign, stacks_showing, stacks_with_any
from analyzers.memory.rank_difference import PURPOSE_ADVICE
from analyzers.memory.snapshot import Category, Snapshot
from analyzers.memory.stacks import call_site, stack_lines
from analyzers.memory.unusual_use import blocks_of_passes, stacks_of_loss, stacks_of_scores
from analyzers.words import LOAD_ON_HOST, size

_STACKS_AT_MOST = 20_000
_BLOCKS_AT_LEAST = 8
"""A model has at least this many parameters; single tensors beside a model belong to it."""


class ModelGroup(NamedTuple):
    """The parameters of one model: bytes, the line that builds it, and the stack of one of them."""

    bytes: int
    line: str
    frames: list[str]


def _largest_model(replay: Replay, rows: Integers) -> ModelGroup | None:
    """Return the model with the most bytes among the parameters with these rows in `Lifetimes`.

    The result is None unless at least two models are built.
    """
    lives, frames = replay.lifetimes, replay.trace.snapshot.frames
    stacks, inverse, counts = np.unique(lives.allocating_stack[rows], return_inverse=True, return_counts=True)
    if len(stacks) > _STACKS_AT_MOST:
        return None
    size = np.bincount(inverse, lives.size[rows], len(stacks))
    paths = {
        number: frames.user_stack(int(stack))[::-1]
        for number, stack in enumerate(stacks)
        if frames.has_user_line(stack)
    }
    depth = _common_depth(list(paths.values()))
    groups: defaultdict[Place, list[int]] = defaultdict(list)
    for number, path in paths.items():
        if len(path) > depth + 1 and path[depth][0] != "__init__":
            groups[path[depth]].append(number)
    models = [group for group in groups.values() if counts[group].sum() >= _BLOCKS_AT_LEAST]
    if len(models) <= 1:
        return None
    largest = max(models, key=lambda group: size[group].sum())
    path = paths[largest[0]]
    return ModelGroup(int(size[largest].sum()), str(path[depth + 1]), [str(f) for f in path[::-1]])


def _common_depth(paths: list[list[Place]]) -> int:
    shortest = min(map(len, paths), default=0)
    return next((depth for depth in range(shortest) if len({path[depth] for path in paths}) > 1), shortest)


# Find, in the memory that was in use when a request failed, what one particular change of the code would avoid.
#
# Examples: the evaluation that keeps a graph for a backward pass which never comes, the copies of a multi-tensor
# optimizer step, the float32 logits of a loss. Categories do not show these: all three are activations or temporary
# tensors, for which the general advice is a smaller batch or recomputation.

_LOSS_SHARE = _SCORES_SHARE = _GATHERED_SHARE = 0.25
_BUCKETS_SHARE = _PURPOSE_SHARE = 0.05
"""The shares of the memory that was needed from which on each use explains the failure; set by hand."""
_GRAPH_STACKS, _GRAPH_BLOCKS = 4, 3
"""A graph is kept if this many lines each have this many live blocks: one for each layer, or for each batch.

Without a graph each layer's tensors are freed by the next layer, and a list or a cache is filled by one or two lines.
"""
COPIES = re.compile(r" _multi_tensor_\w+$|_foreach_\w+")
_LOADING = re.compile(r"torch/serialization\.py \w+$")
_OFFLOADED_SHARE = 0.25
_PURPOSES = {
    AvoidableKind.EVALUATION: re.compile(
        r"(?i)^(?!.*train).*(^|_)(eval|evaluate|evaluation|val|valid|validate|validation"
        r"|(test|prediction)_(step|loop|epoch))(_|$)"
    ),
    AvoidableKind.AVERAGE: re.compile(r"(?i)(^|_)(ema|swa|polyak)(_|$)|moving_average|averag(e|ed|ing)_(model|weight)"),
    AvoidableKind.CHECKPOINT: re.compile(
        r"(?i)^(?!.*load).*(state_dict|full_tensor|(save|write|gather)_\w*(checkpoint|ckpt|model|state))"
    ),
    AvoidableKind.OFFLOADED: re.compile(r"(?i)^(?!.*(data|batch|input|sample)).*(prefetch|offload|onload)"),
}
"""{kind: pattern of the functions whose stacks show it}; `train_and_evaluate` also trains, so it shows nothing."""
_NAMED_BY_FILE = (AvoidableKind.AVERAGE, AvoidableKind.OFFLOADED)
"""The kinds that the name of a module shows, too: all of `ema.py` is about the average."""


@dataclass(frozen=True)
class FailedRequest:
    """A request that failed at trace entry `index`, for `requested` bytes."""

    replay: Replay
    guess: Guess
    index: int
    requested: int

    @cached_property
    def rows(self) -> Integers:
        return self.replay.lifetimes.alive(self.index)

    @cached_property
    def stack(self) -> int:
        return int(self.replay.trace.entry("stack")[self.index])

    @property
    def snapshot(self) -> Snapshot:
        return self.replay.trace.snapshot

    @cached_property
    def wanted(self) -> int:
        return int(self.replay.live_bytes[self.index]) + self.requested

    @cached_property
    def stacks(self) -> Integers:
        return np.unique(np.append(self.replay.lifetimes.allocating_stack[self.rows], self.stack))

    def showing(self, *patterns: re.Pattern[str]) -> list[Mask]:
        return stacks_showing(self.snapshot, patterns, self.stacks)

    def alive(self, stacks: Mask) -> Integers:
        return self.rows[stacks[self.replay.lifetimes.allocating_stack[self.rows]]]

    def bytes_of(self, rows: Integers, stacks: Mask) -> int:
        return int(self.replay.lifetimes.size[rows].sum()) + self.requested * bool(stacks[self.stack])

    def use(self, kind: AvoidableKind, total: int, share: float, stack: int) -> Iterator[AvoidableUse]:
        if total and total >= share * self.wanted:
            yield AvoidableUse(kind=kind, bytes=total, frames=stack_lines(self.snapshot, stack))

    def largest_stack(self, rows: Integers) -> int:
        """Return the stack with the most bytes among some blocks; that of the request if there are none."""
        if not len(rows):
            return self.stack
        stacks, inverse = np.unique(self.replay.lifetimes.allocating_stack[rows], return_inverse=True)
        return int(stacks[np.bincount(inverse, self.replay.lifetimes.size[rows]).argmax()])


def avoidable_uses(replay: Replay, guess: Guess, index: int) -> list[AvoidableUse]:
    """Return what a particular change of the code would avoid, for a request that failed at trace entry `index`.

    First comes what costs nothing to avoid, then what the failing line itself was doing; the rest follows by how
    certain its advice is.
    """
    request = FailedRequest(replay, guess, index, int(replay.trace.entry("size")[index]))
    return [
        *_bucket_copies(request),
        *optimizer_copies(request),
        *loaded(request),
        *_purposes(request),
        *loss(request),
        *scores(request),
        *gathered(request),
        *model(request),
    ]


def optimizer_copies(request: FailedRequest) -> Iterator[AvoidableUse]:
    """Yield the copies that a multi-tensor optimizer step makes, if the request was for one of them.

    `torch.optim` calls `torch._foreach_sqrt` and the like on all parameters at once, each of which returns new tensors.
    """
    optimizer, copies = request.showing(re.compile(PATTERN[Sign.OPTIMIZER]), COPIES)
    stacks = optimizer & copies
    if stacks[request.stack]:
        rows = request.alive(stacks)
        rows = rows[request.guess.category[rows] == Category.TEMPORARY]
        yield from request.use(AvoidableKind.OPTIMIZER_COPIES, request.bytes_of(rows, stacks), 0.0, request.stack)


def loaded(request: FailedRequest) -> Iterator[AvoidableUse]:
    """Yield what `torch.load` put onto the device, if the request was for it."""
    [stacks] = request.showing(_LOADING)
    if stacks[request.stack]:
        total = request.bytes_of(request.alive(stacks), stacks)
        yield from request.use(AvoidableKind.LOADED, total, _PURPOSE_SHARE, request.stack)


def _purposes(request: FailedRequest) -> Iterator[AvoidableUse]:
    purpose = purpose_of(request)
    if purpose is None:
        return
    kind, line = purpose
    rows = request.alive(stacks := _stacks_for(request.snapshot, kind))
    if kind is AvoidableKind.EVALUATION and _keeps_graph(request, rows):
        kind = AvoidableKind.EVALUATION_GRAPH
    share = _OFFLOADED_SHARE if kind is AvoidableKind.OFFLOADED else _PURPOSE_SHARE
    for use in request.use(kind, request.bytes_of(rows, stacks), share, request.stack):
        yield msgspec.structs.replace(use, line=line)


def _stacks_for(snapshot: Snapshot, kind: AvoidableKind) -> Mask:
    frames = range(len(snapshot.columns["frame_file"]))
    shown = [_is_for(kind, snapshot.frames.frame(number)) for number in frames]
    return stacks_with_any(snapshot, np.array(shown, bool))


def _is_for(kind: AvoidableKind, frame: Place) -> bool:
    """Return whether a frame in the user's code, or in a package that the user chose, shows a purpose by its names."""
    if origin_of(frame.file) < Origin.PACKAGE:
        return False
    module = last_parts(frame.file, 1).removesuffix(".py")
    pattern = _PURPOSES[kind]
    return bool(pattern.search(frame.function) or (kind in _NAMED_BY_FILE and pattern.search(module)))


def purpose_of(request: FailedRequest) -> tuple[AvoidableKind, str] | None:
    """Return what the request was for, and the frame that shows it: the innermost one with such a name.

    The result is None if none has, or if the stack is one of a backward pass, which no evaluation runs.
    """
    [engine] = request.showing(re.compile(PATTERN[Sign.ENGINE]))
    if engine[request.stack]:
        return None
    frames = request.snapshot.frames.whole_stack(request.stack)
    pairs = ((kind, frame) for frame in frames for kind in _PURPOSES if _is_for(kind, frame))
    kind, frame = next(pairs, (None, None))
    return (kind, str(frame)) if kind and frame else None


def _keeps_graph(request: FailedRequest, rows: Integers) -> bool:
    """Return whether these blocks, of a forward pass of an evaluation, are kept as if a backward pass followed."""
    lives = request.replay.lifetimes
    rows = rows[lives.size[rows] >= request.requested // 64]
    stacks, inverse, counts = np.unique(lives.allocating_stack[rows], return_inverse=True, return_counts=True)
    kept = counts >= _GRAPH_BLOCKS
    if np.count_nonzero(kept) < _GRAPH_STACKS:
        return False
    by_stack = np.bincount(inverse, lives.size[rows], len(stacks))
    return bool(by_stack[kept].sum() >= by_stack.sum() / 2)


def loss(request: FailedRequest) -> Iterator[AvoidableUse]:
    """Yield the logits of the loss and what it makes of them."""
    stacks = stacks_of_loss(request.replay, request.stacks)
    of_loss = blocks_of_passes(request.replay, request.guess, stacks)
    rows = request.rows[of_loss[request.rows]]
    size = request.replay.lifetimes.size
    largest = max(int(size[rows].max(initial=0)), request.requested * bool(stacks[request.stack]))
    # The logits, and a copy of them in another type, are as large as what the loss makes of them, or half as large.
    alike = np.isin(size[request.rows], (largest, largest // 2)) & _of_passes(request)
    rows = np.union1d(rows, request.rows[alike]) if largest >= _PURPOSE_SHARE * request.wanted else rows
    if largest:
        stack = request.stack if stacks[request.stack] else request.largest_stack(rows)
        yield from request.use(AvoidableKind.LOSS, request.bytes_of(rows, stacks), _LOSS_SHARE, stack)


def _of_passes(request: FailedRequest) -> Mask:
    """Return, for each block alive, whether it may belong to a forward or backward pass.

    Where a step is not complete, the category of what its loss allocated may be unknown.
    """
    of_pass = (Category.ACTIVATIONS, Category.TEMPORARY, Category.UNKNOWN)
    return np.isin(request.guess.category[request.rows], of_pass)


def scores(request: FailedRequest) -> Iterator[AvoidableUse]:
    stacks = stacks_of_scores(request.replay, request.stacks)
    rows = request.rows[blocks_of_passes(request.replay, request.guess, stacks)[request.rows]]
    total = request.bytes_of(rows, stacks)
    yield from request.use(AvoidableKind.ATTENTION_SCORES, total, _SCORES_SHARE, request.largest_stack(rows))


def gathered(request: FailedRequest) -> Iterator[AvoidableUse]:
    rows = request.rows[request.guess.rule[request.rows] == NUMBER_OF["unsharded"]]
    total = int(request.replay.lifetimes.size[rows].sum())
    yield from request.use(AvoidableKind.GATHERED, total, _GATHERED_SHARE, request.largest_stack(rows))


def _bucket_copies(request: FailedRequest) -> Iterator[AvoidableUse]:
    """Yield DDP's buckets, if gradients have memory of their own beside them.

    With gradient_as_bucket_view=True the gradients are views of the buckets.
    """
    category, size = request.guess.category[request.rows], request.replay.lifetimes.size[request.rows]
    [stacks] = request.showing(re.compile(PATTERN[Sign.BUCKETS]))
    rows = request.alive(stacks)
    total = int(request.replay.lifetimes.size[rows].sum())
    if total and int(size[category == Category.GRADIENTS].sum()) >= total / 2:
        yield from request.use(AvoidableKind.BUCKETS, total, _BUCKETS_SHARE, request.largest_stack(rows))


def model(request: FailedRequest) -> Iterator[AvoidableUse]:
    """Yield the largest of several models, if it has most of the parameters and parameters are most of the memory."""
    category = request.guess.category[request.rows]
    built = (category == Category.PARAMETERS) & (request.guess.rule[request.rows] != NUMBER_OF["unsharded"])
    size = request.replay.lifetimes.size
    of_all = int(size[request.rows[built]].sum())
    if of_all < request.wanted / 2 or _is_trained(request, of_all):
        return
    largest = _largest_model(request.replay, request.rows[built])
    if largest and largest.bytes >= of_all / 2:
        yield AvoidableUse(
            kind=AvoidableKind.MODEL, bytes=largest.bytes, frames=largest.frames, line=largest.line, of_bytes=of_all
        )


def _is_trained(request: FailedRequest, parameters: int) -> bool:
    """Return whether gradients in the trace are enough for most of the parameters, given in bytes."""
    lives = request.replay.lifetimes
    rows = np.flatnonzero(request.guess.category == Category.GRADIENTS)
    # In several steps the same gradients are allocated again.
    return bool(len(rows)) and int(lives.size[rows].sum()) >= parameters / 2


ADVICE = {
    AvoidableKind.OPTIMIZER_COPIES: "Construct the optimizer with fused=True, or with foreach=False: its multi-tensor"
    " step makes copies of all parameters or of their state at once, of which {bytes} existed or were asked for.",
    AvoidableKind.EVALUATION_GRAPH: "Run {line} under torch.no_grad() or torch.inference_mode(): its forward pass keeps"
    " {bytes} for a backward pass, which an evaluation does not run.",
    AvoidableKind.EVALUATION: "Evaluate with a smaller batch, or with shorter sequences: {line} took {bytes}. It needs"
    " no batch as large as that of training.",
    AvoidableKind.CHECKPOINT: "Do not gather or copy the state on the device in {line}, where it took {bytes}."
    f" {PURPOSE_ADVICE[Purpose.CHECKPOINT]}",
    AvoidableKind.LOADED: f"Load the checkpoint into host memory with {LOAD_ON_HOST}: on the device it took {{bytes}}"
    " beside the model in {line}.",
    AvoidableKind.AVERAGE: "Do not copy the weights on the device in {line}, where copies took {bytes}. "
    + PURPOSE_ADVICE[Purpose.AVERAGE],
    AvoidableKind.OFFLOADED: "Bring fewer layers back to the device ahead of their use (a shorter prefetch), and free"
    " each after it: {line} took {bytes}.",
    AvoidableKind.LOSS: "Compute the loss in pieces (chunked cross-entropy), or with a kernel that fuses it with the"
    " output layer: the logits, and what the loss makes of them, took {bytes} with the request{where}.",
    AvoidableKind.ATTENTION_SCORES: "Use torch.nn.functional.scaled_dot_product_attention, whose fused kernels keep no"
    " scores: those of the attention{where} took {bytes}, and grow with the square of the sequence length.",
    AvoidableKind.GATHERED: "Give gathered parameters back after each layer: reshard_after_forward=True in FSDP2"
    " (FULL_SHARD in FSDP1), and prefetch fewer layers. Gathered parameters took {bytes}.",
    AvoidableKind.BUCKETS: "Construct DistributedDataParallel with gradient_as_bucket_view=True: its buckets are a"
    " second copy of the gradients, {bytes}.",
    AvoidableKind.MODEL: "Check whether the model that {line} builds is trained: {bytes} of {of_bytes} of parameters"
    " are its. If it is frozen, load it in fewer bits (bfloat16, or quantised to 8 or 4 bits), shard it, or keep it on"
    " the CPU while it is not used.",
}
WITHOUT_MORE = (
    AvoidableKind.EVALUATION_GRAPH,
    AvoidableKind.EVALUATION,
    AvoidableKind.CHECKPOINT,
    AvoidableKind.LOADED,
    AvoidableKind.AVERAGE,
    AvoidableKind.OFFLOADED,
)
"""What the job does beside its training steps, which fitted: changing these is of no use."""
IF_NOT_ENOUGH = "If that is not enough:"


def avoidable_advice(use: AvoidableUse) -> str:
    """Return what to change in order to avoid a use of memory, as sentences."""
    line = call_site(use.line) if use.line else innermost(use.frames, "the failing line")
    where = f" in {innermost(use.frames)}" if use.frames else ""
    of_bytes = size(use.of_bytes) if isinstance(use.of_bytes, int) else ""
    return ADVICE[use.kind].format(bytes=size(use.bytes), line=line, where=where, of_bytes=of_bytes)
