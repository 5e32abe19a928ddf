"""Find training phases and steps in a trace, from annotations and from the stacks of its entries."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum, auto
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

from analyzers.columns import Column, Integers, Mask
from analyzers.memory.snapshot import Action, DeviceTrace, Snapshot

# `ProfilerStep#7` is written by torch.profiler, `step#7` by our recorder.
_STEP_ANNOTATION = re.compile(r"(?:ProfilerStep|step)#(\d+)")
_NEVER = int(np.iinfo(np.int64).max)
"""The index that stands for "no such trace entry"; it is larger than any real index."""


class Phase(IntEnum):
    """A phase of a training step; `NONE` where no annotation or stack shows a phase."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


@dataclass(frozen=True)
class EntryWindows:
    """Ranges of trace entries, in ascending order: entry k is inside range i if `start[i] <= k < end[i]`."""

    start: Integers
    end: Integers

    def contains(self, index: Integers) -> Mask:
        """Return, for each trace entry index, whether it is inside a range; False for -1, which is before the trace."""
        if not len(self.start):
            return np.zeros(len(index), bool)
        inside: Mask = (index < self.end_after(index)) & (index >= 0)
        return inside

    def end_after(self, index: Integers) -> Integers:
        return np.concatenate([[-1], self.end])[np.searchsorted(self.start, index, side="right")]


@dataclass(frozen=True)
class PhaseTimeline:
    """The training phases over a trace; `kind` has the phase that each trace entry's own stack shows (NONE: no phase).

    Methods take indexes of trace entries, -1 for "before the trace". Example: `kind` = [FORWARD, NONE, BACKWARD, NONE,
    OPTIMIZER]. The stack of entry 1 shows no phase, so the last phase shown is FORWARD. After entry 1, the next
    BACKWARD entry is 2, and there is no next FORWARD entry (`_NEVER`). A new interval begins where the last phase shown
    changes: 0-1, 2-3, 4.
    """

    kind: Column

    @classmethod
    def of(cls, trace: DeviceTrace) -> "PhaseTimeline":
        return cls(phase_of_entries(trace, stack_signs(trace.snapshot)))

    @property
    def count(self) -> int:
        return len(self.kind)

    @cached_property
    def _last(self) -> Integers:
        """The last phase shown at or before each trace entry: the value for entry k is at index k + 1.

        Index 0 stands for "before the trace".
        """
        shown = np.where(self.kind != Phase.NONE, np.arange(1, self.count + 1), 0)
        latest = np.maximum.accumulate(np.concatenate([[0], shown]))
        return np.concatenate([[int(Phase.NONE)], self.kind])[latest]

    @cached_property
    def _spans(self) -> Integers:
        return np.cumsum(np.diff(self._last, prepend=self._last[0]) != 0)

    @cached_property
    def _next(self) -> dict[Phase, Integers]:
        phases = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
        return {phase: np.append(self._first_from(phase), _NEVER) for phase in phases}

    def _first_from(self, phase: Phase) -> Integers:
        shown = np.where(self.kind == phase, np.arange(self.count), _NEVER)
        return np.minimum.accumulate(shown[::-1])[::-1]

    def at(self, index: Integers) -> Integers:
        """Return the phase shown by the stack of each given trace entry; NONE for an index outside of the trace."""
        if not self.count:
            return np.zeros(len(index), np.int64)
        inside = (index >= 0) & (index < self.count)
        return np.where(inside, self.kind[index * inside], int(Phase.NONE))

    def last(self, index: Integers) -> Integers:
        return self._last[index + 1]

    def span(self, index: Integers) -> Integers:
        """Return, for each given trace entry, the number of the interval that contains it.

        A new interval begins where the last phase shown changes; intervals are numbered from 0.
        """
        return self._spans[index + 1]

    def next(self, phase: Phase, index: Integers) -> Integers:
        """Return, for each given trace entry, the first entry after it that shows the phase; `_NEVER` if none does."""
        return self._next[phase][index + 1]


@dataclass(frozen=True)
class StepSpan:
    """A training step: the trace entries k with `start <= k < end`.

    `end` is None if the trace ends before the step does.
    """

    number: int
    start: int
    end: int | None


def annotated_windows(trace: DeviceTrace, prefix: str) -> EntryWindows:
    """Return the ranges of trace entries that are inside an annotation whose name begins with `prefix`.

    A range that is not closed when the trace ends includes the last trace entry.
    """
    bounds: list[tuple[int, int]] = []
    begun: dict[str, int] = {}
    for name, is_start, index in trace.annotations:
        if not name.startswith(prefix):
            continue
        if is_start:
            begun[name] = index
        elif name in begun:
            bounds.append((begun.pop(name), index))
    bounds += [(index, len(trace)) for index in begun.values()]
    table = np.array(sorted(bounds), np.int64).reshape(-1, 2)
    return EntryWindows(table[:, 0], table[:, 1])


def annotated_steps(trace: DeviceTrace) -> list[StepSpan]:
    """Return the training steps that annotations mark (`step#7`, `ProfilerStep#7`), in order of their start."""
    spans: dict[int, StepSpan] = {}
    for name, is_start, index in trace.annotations:
        if not (matched := _STEP_ANNOTATION.fullmatch(name)):
            continue
        number = int(matched[1])
        # An END without its START: the step began before the trace did.
        start = spans[number].start if number in spans else 0
        spans[number] = StepSpan(number, index, None) if is_start else StepSpan(number, start, index)
    return sorted(spans.values(), key=lambda step: step.start)


def whole_steps(trace: DeviceTrace) -> list[StepSpan]:
    return [step for step in annotated_steps(trace) if step.end]


def step_at(trace: DeviceTrace, index: int) -> int | None:
    """Return the number of the annotated training step that contains this trace entry; None if no step contains it."""
    # Backwards, so that of nested steps (a profiler's within the loop's) the inner one answers.
    for step in reversed(annotated_steps(trace)):
        if step.start <= index and (step.end is None or index < step.end):
            return step.number
    return None


_POINTS = 32
"""The number of (trace entry, step) points for each training step.

Between two points, the same time is assumed to pass at each trace entry.
"""

StepTimes = tuple[int, int, int]
"""A training step, as (number, time in µs at which it begins, time in µs at which it ends)."""


def step_clock(trace: DeviceTrace, logged: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return a table that maps trace entries to training steps: points (entry, step) to interpolate between.

    A step of 6.25 means that a quarter of the time of step 6 has passed. Both columns ascend. Steps come from the
    trace's annotations; if there are none, from the wall-clock times in `logged` (columns step, start_ns, end_ns).
    The table is empty if neither shows a step.
    """
    # Files that were edited or merged may step back in time; interpolation needs ascending times.
    time = np.maximum.accumulate(trace.entry("time").astype(np.int64))
    spans = _annotated_times(trace, time) or ([] if logged is None or not len(time) else _logged_times(logged, time))
    return _points_of(spans, time) if spans else pd.DataFrame(columns=["entry", "step"])


def _annotated_times(trace: DeviceTrace, time: Integers) -> list[StepTimes]:
    """Return the training steps marked by annotations, with their times; `time` has the µs of each trace entry.

    A step without an end (memory ran out, for example) lasts to the last trace entry.
    """
    last = len(time) - 1
    spans = ((s.number, s.start, last if s.end is None else min(s.end, last)) for s in annotated_steps(trace))
    return [(number, int(time[start]), int(time[end])) for number, start, end in spans if start <= end]


def _logged_times(logged: pd.DataFrame, time: Integers) -> list[StepTimes]:
    """Return (step, start µs, end µs) of each training step of a step log that overlaps the trace in time."""
    begin, end = (logged[name].to_numpy() // 1000 for name in ("start_ns", "end_ns"))
    overlaps = (end >= time[0]) & (begin <= time[-1])
    return list(zip(logged["step"][overlaps].tolist(), begin[overlaps].tolist(), end[overlaps].tolist(), strict=True))


def _points_of(spans: list[StepTimes], time: Integers) -> pd.DataFrame:
    """Return up to `_POINTS` rows (trace entry, step) per training step; a step number has a fraction, such as 6.25.

    `spans` has (step, start µs, end µs) of each step; `time` has the µs of each trace entry.
    """
    number, begin, end = np.array(spans, np.int64).reshape(-1, 3, 1).transpose(1, 0, 2)
    entries = np.linspace(np.searchsorted(time, begin), np.searchsorted(time, end), _POINTS, axis=1)[:, :, 0]
    entries = np.sort(entries.astype(np.int64), axis=1)
    elapsed = (time[np.minimum(entries, len(time) - 1)] - begin) / np.maximum(1, end - begin)
    is_new = np.diff(entries, axis=1, prepend=-1) > 0
    return pd.DataFrame({"entry": entries[is_new], "step": (number + elapsed.clip(0, 1))[is_new]})


class Sign(StrEnum):
    """A kind of code that can be recognised from a stack frame, such as the optimizer or a collective."""

    WORKSPACE = auto()
    ACCUMULATE = auto()
    COLLECTIVE = auto()
    UNSHARDED = auto()
    REDUCED = auto()
    BUCKETS = auto()
    COMMUNICATION = auto()
    OPTIMIZER = auto()
    OPTIMIZER_INIT = auto()
    ZERO_GRAD = auto()
    PARAMETERS = auto()
    BUILT = auto()
    ENGINE = auto()
    BACKWARD = auto()
    FORWARD = auto()
    INPUT = auto()


# A frame is written "file name" here, so `^ ` is a frame without a file: native code, or a profiler's range.
PATTERN = {
    # ATen/cuda/CublasHandlePool.cpp and cudnn's: allocated once by whichever operation comes first, and kept.
    Sign.WORKSPACE: r"getCurrentCUDABlasHandle|[cC]ublas\w*Workspace|CUDABlasLtWorkspace|cudnn\w*[wW]orkspace",
    # The autograd node that stores a gradient in `parameter.grad`.
    Sign.ACCUMULATE: r"AccumulateGrad",
    Sign.COLLECTIVE: r"ProcessGroup(NCCL|Gloo|XCCL)|c10d(::|_functional::)|(^| )(nccl|gloo):",
    # FSDP2 (fsdp_param.py), FSDP1 (_flat_param.py), and the range that FSDP2 records around its copies.
    Sign.UNSHARDED: r"fsdp_param\.py (alloc_all_gather_outputs|init_all_gather_outputs|init_unsharded_param)$"
    r"|_flat_param\.py _alloc_padded_unsharded_flat_param$|^ FSDP::all_gather_copy_out( |$)",
    Sign.REDUCED: r" foreach_reduce$|^ FSDP::post_backward_reduce",
    # DDP: its Python constructor and its C++ reducer allocate the buckets.
    Sign.BUCKETS: r"parallel/distributed\.py (_pre_forward|_ddp_init_helper)$|c10d::Reducer::",
    Sign.COMMUNICATION: r"_fsdp_collectives|distributed/_functional_collectives|^ aten::flatten_dense_tensors$"
    r"|^ FSDP::(all_gather \(|post_backward_reduce)",
    # Optimizers outside torch.optim are recognised by file name; `Optimizer.step#` is PyTorch's own profiler range.
    Sign.OPTIMIZER: r"torch/optim/|\w*optim\w*\.py (step|_init_group|update)$|^ Optimizer\.step#",
    Sign.OPTIMIZER_INIT: r" _init_group$|\w*optim\w*\.py __init__$",
    Sign.ZERO_GRAD: r" zero_grad$",
    Sign.PARAMETERS: r"module\.py (_apply|convert|load_state_dict)$|torch/nn/modules/\w+\.py __init__$"
    r"| (reset_parameters|from_pretrained|(init|load)_weights?\w*|load_(checkpoint|model))$",
    # Classes of other people's models: a guess by the usual file names, so its rule has less confidence than
    # PARAMETERS.
    Sign.BUILT: r"(?i)(module|model|layer|block|linear|embed|norm|attention|transformer|net|lm)\w*\.py __init__$",
    # The C++ engine, as symbolised stacks name it and as our recorder does.
    Sign.ENGINE: r"autograd::(python::Python)?[Ee]ngine",
    Sign.BACKWARD: r" (_?run_backward|_engine_run_backward)$|torch/utils/checkpoint\.py (recompute_fn|unpack_hook)$",
    Sign.FORWARD: r" (forward|fwd|_call_impl)$|torch/nn/functional\.py (\w*loss\w*|cross_entropy)$"
    # What only models call, for stacks that end in C++; below the autograd engine it belongs to the backward pass.
    r"|(^ aten|at::(_ops|native))::(linear|embedding|conv(olution|\dd)|matmul|scaled_dot_product_attention"
    # Not linalg_vector_norm, with which gradients are clipped.
    r"|(native_|fused_)?(layer|batch|group|instance|rms)_norm|gelu|silu|relu|dropout|cross_entropy_loss)(::|$)",
    Sign.INPUT: r"dataloader\.py| (get_(batch|input)\w*|collate\w*|pin_memory|next_batch)$",
}

_PHASE_OF_SIGN = {
    Sign.FORWARD: Phase.FORWARD,
    Sign.ENGINE: Phase.BACKWARD,
    Sign.BACKWARD: Phase.BACKWARD,
    Sign.OPTIMIZER: Phase.OPTIMIZER,
}
"""{kind of code in a stack: training phase that it shows}; if a stack shows several kinds, the last one here decides.

Backward and optimizer code may run below a frame of a forward function.
"""


_STACKS_AT_ONCE = 1 << 14
"""The number of stacks that are searched at once; the frames of all stacks may take a hundred megabytes."""


_SIGNS_OF: "WeakKeyDictionary[Snapshot, dict[Sign, Mask]]" = WeakKeyDictionary()
"""The results of `stack_signs` for the snapshots that are in use, as several findings of each device ask for them."""


def stack_signs(snapshot: Snapshot) -> dict[Sign, Mask]:
    """Return, for each kind of code, a mask of the snapshot's stacks that contain a frame of this kind."""
    if snapshot not in _SIGNS_OF:
        masks = stacks_showing(snapshot, list(map(re.compile, PATTERN.values())))
        _SIGNS_OF[snapshot] = dict(zip(PATTERN, masks, strict=True))
    return _SIGNS_OF[snapshot]


def stacks_showing(
    snapshot: Snapshot, patterns: Sequence[re.Pattern[str]], among: Integers | None = None
) -> list[Mask]:
    """Return, for each pattern, a mask of the stacks in which a frame's text (`Snapshot.frame_texts`) matches it.

    With `among`, only the stacks with these numbers matter: the masks may be false for all others.
    """
    texts = snapshot.frame_texts
    # A bit for each pattern: one pass over the frames of the stacks, which may be many millions.
    bits = np.zeros(len(texts), np.uint32)
    for number, pattern in enumerate(patterns):
        bits |= _frames_matching(texts, pattern).astype(np.uint32) << np.uint32(number)
    few = among is not None and len(found := np.unique(among)) <= _STACKS_AT_ONCE
    of_stacks = _combined_bits_among(snapshot, bits, found) if few else _combined_bits(snapshot, bits)
    return [(of_stacks >> np.uint32(number) & np.uint32(1)) != 0 for number in range(len(patterns))]


def _frames_matching(texts: Sequence[str], pattern: re.Pattern[str]) -> Mask:
    return np.fromiter((pattern.search(text) is not None for text in texts), bool, len(texts))


def stacks_with_any(snapshot: Snapshot, frames: Mask) -> Mask:
    has_any: Mask = _combined_bits(snapshot, frames.astype(np.uint32)) != 0
    return has_any


def _combined_bits(snapshot: Snapshot, bits: Column) -> Column:
    """Return, for each stack, the bitwise OR of its frames' numbers; `bits` has a number for each distinct frame."""
    frames, ends = snapshot.columns["stack_frames"], np.asarray(snapshot.columns["stack_end"])
    starts = np.concatenate([[0], ends[:-1]])
    # `reduceat` goes from one start to the next, and a stack without frames has no place between them.
    filled = np.flatnonzero(ends > starts)
    combined = np.zeros(len(ends), bits.dtype)
    for first in range(0, len(filled), _STACKS_AT_ONCE):
        stacks = filled[first : first + _STACKS_AT_ONCE]
        low, high = starts[stacks[0]], ends[stacks[-1]]
        combined[stacks] = np.bitwise_or.reduceat(bits[frames[low:high]], starts[stacks] - low)
    return combined


def _combined_bits_among(snapshot: Snapshot, bits: Column, stacks: Integers) -> Column:
    """Return what `_combined_bits` does, but 0 for all but the stacks with these numbers, which are in order."""
    ends = np.asarray(snapshot.columns["stack_end"])
    sizes = np.diff(ends, prepend=0)
    stacks = stacks[sizes[stacks] > 0]
    combined = np.zeros(len(ends), bits.dtype)
    if len(stacks):
        size = sizes[stacks]
        first = np.cumsum(size) - size
        places = np.repeat(ends[stacks] - size - first, size) + np.arange(size.sum())
        combined[stacks] = np.bitwise_or.reduceat(bits[snapshot.columns["stack_frames"][places]], first)
    return combined


def phase_of_entries(trace: DeviceTrace, signs: Mapping[Sign, Mask]) -> Column:
    """Return the training phase shown by the stack of each trace entry, as int8 values of `Phase`.

    `signs` has, for each kind of code (`Sign`), a mask of the stacks with a frame of this kind.
    """
    of_stack = np.full(len(signs[Sign.FORWARD]), Phase.NONE, np.int8)
    for sign, phase in _PHASE_OF_SIGN.items():
        of_stack[signs[sign]] = phase
    stack = trace.entry("stack")
    phases: Column = of_stack[stack]
    if signs[Sign.FORWARD].any() and not signs[Sign.ENGINE].any():
        # stacks="python": the autograd engine's threads have no Python frames, so an allocation without any is theirs.
        # Frees lack frames in other places too.
        phases[(stack == 0) & (trace.entry("action") == Action.ALLOC)] = Phase.BACKWARD
    return phases
