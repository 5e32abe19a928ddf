"""Find the training loop of a run in its allocations, and what its steps need and free too late."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.memory.categorise import Guess
from analyzers.memory.lifetimes import Lifetimes, Replay
from analyzers.memory.model import StepUse, UnusualKind, UnusualUse
from analyzers.memory.phases import Phase, StepSpan, phase_of_entries, stack_signs, whole_steps
from analyzers.memory.snapshot import CATEGORIES, Action, DeviceTrace
from analyzers.memory.stacks import stack_lines

# Find the steps of a training loop in a trace without step annotations, from a stack that recurs once per step.
#
# Code that runs once per step (the loss, the embedding, the optimizer's norm) allocates at even distances throughout
# the loop; code that runs once per layer allocates in bursts. Worked example, with the stacks e (embedding), l (a
# layer) and c (loss) in a loop of four steps:
#
#     e l l l c  e l l l c  e l l l c  e l l l c     12 l, 4 e, 4 c
#
# The distances between two e are 5, 5 and 5: even. The distances between two l are 1, 1, 3, 1, 1, 3, ..: uneven. So e
# and c are the stacks that mark steps. A step begins at e, because less memory is alive at e than at c.

_RECURS_AT_LEAST = 5
"""The number of times that a stack must occur to show a loop; a loop of fewer steps is not recognised."""
_UNEVEN_AT_MOST = 0.4
"""The highest standard deviation of the distances between a stack's allocations, divided by their mean.

Evaluation or a checkpoint after some of the steps gives 0.1 to 0.3; two layers that are a quarter of a step apart
give 0.5.
"""
_WHOLE_FROM = 0.9
"""The entries after the last step mark count as a complete step if they are at least this share of a usual step."""
_COVERED_AT_LEAST = 0.6
"""The share of all allocations in the trace that the loop must span.

A stack that recurs within the forward pass of a single step spans only a third.
"""


def inferred_steps(trace: DeviceTrace, live_bytes: Integers) -> list[StepSpan]:
    """Return the training steps inferred from a recurring stack, numbered from 1; empty if there is no such stack.

    The stack must recur at even distances, at least five times. `live_bytes` has the bytes alive after each trace
    entry.
    """
    allocations = trace.where(Action.ALLOC)
    stack = trace.entry("stack")[allocations]
    order = np.argsort(stack, kind="stable")
    known, first, counts = np.unique(stack[order], return_index=True, return_counts=True)
    enough = np.flatnonzero((counts >= _RECURS_AT_LEAST) & (known != 0))
    even = [row for row in enough.tolist() if _recurs_evenly(order[first[row] :][: counts[row]], len(order))]
    if not even:
        return []
    occurrences, votes = np.unique(counts[even], return_counts=True)
    usual = int(occurrences[votes.argmax()])
    candidates = [allocations[order[first[row] :][:usual]] for row in even if counts[row] == usual]
    # Between steps the least memory is alive, and blocks that only seem to be kept are fewest.
    bounds = min(candidates, key=lambda entries: int(live_bytes[np.maximum(entries - 1, 0)].sum())).tolist()
    if len(trace) - bounds[-1] >= _WHOLE_FROM * (bounds[-1] - bounds[0]) / (usual - 1):
        bounds.append(len(trace))
    return [StepSpan(i + 1, start, end) for i, (start, end) in enumerate(pairwise(bounds))]


def _recurs_evenly(positions: Integers, total: int) -> bool:
    """Return whether the allocations of one stack lie at even distances and span most of the trace."""
    distances = np.diff(positions)
    mean = float(distances.mean())
    return bool(distances.std() <= _UNEVEN_AT_MOST * mean and mean * len(positions) >= _COVERED_AT_LEAST * total)


class TrainingLoop(NamedTuple):
    """The complete steps of a trace, in order.

    If the steps are not annotated, they were inferred, and their numbers count from the first complete step of the
    trace. `is_forward_only`: no stack of an inferred step shows a backward pass or an optimizer; this is so in
    inference.
    """

    steps: list[StepSpan]
    is_annotated: bool
    is_forward_only: bool = False


def training_loop(replay: Replay) -> TrainingLoop:
    annotated = whole_steps(replay.trace)
    return TrainingLoop(annotated, True) if annotated else _inferred_loop(replay)


def _inferred_loop(replay: Replay) -> TrainingLoop:
    """Return the steps inferred from recurring stacks, if each has a forward or backward pass or an optimizer step.

    Otherwise there are none: loading weights layer by layer also repeats stacks, and its memory stays allocated without
    being a leak. If some passes have a backward pass and others do not, the others are evaluation and not steps.
    """
    steps = inferred_steps(replay.trace, replay.live_bytes)
    if not steps:
        return TrainingLoop([], False)
    phases = phase_of_entries(replay.trace, stack_signs(replay.trace.snapshot))
    if not all(contain(phases != Phase.NONE, steps)):
        return TrainingLoop([], False)
    training = [step for step, trains in zip(steps, contain(phases == Phase.BACKWARD, steps), strict=True) if trains]
    is_forward_only = not training and not (phases == Phase.OPTIMIZER).any()
    return TrainingLoop(training or steps, False, is_forward_only)


def contain(is_selected: Mask, steps: Sequence[StepSpan]) -> list[bool]:
    """Return, for each step, whether any of its trace entries is selected; `is_selected` is for all entries."""
    before = np.append(0, np.cumsum(is_selected))
    starts, ends = ([getattr(step, name) for step in steps] for name in ("start", "end"))
    selected: list[bool] = (before[ends] > before[starts]).tolist()
    return selected


_STEPS_AT_MOST = 200


def step_uses(replay: Replay, guess: Guess, steps: Sequence[StepSpan]) -> list[StepUse]:
    """Return the memory use of the last `_STEPS_AT_MOST` of `steps` that have an end, in order."""
    spans = [(step.number, step.start, step.end - 1) for step in steps if step.end]
    # A step whose annotations follow one another without an entry has no memory to speak of.
    spans = [(number, first, last) for number, first, last in spans if first <= last][-_STEPS_AT_MOST:]
    ends = live_bytes_by_category(replay, guess, np.array([last for _, _, last in spans], np.int64))
    return [_step_use(replay, *span, categories) for span, categories in zip(spans, ends.T.tolist(), strict=True)]


def _step_use(replay: Replay, number: int, first: int, last: int, end_categories: list[int]) -> StepUse:
    """Return the memory use of step `number`, whose trace entries are those from `first` to `last`, both included.

    `end_categories` has the live bytes of each category at the end of the step, in the order of `CATEGORIES`.
    """
    peak = first + int(replay.live_bytes[first : last + 1].argmax())
    return StepUse(
        step=number,
        first_entry=first,
        last_entry=last,
        peak_bytes=int(replay.live_bytes[peak]),
        peak_index=peak,
        end_bytes=int(replay.live_bytes[last]),
        end_categories=dict(zip(CATEGORIES, end_categories, strict=True)),
    )


def live_bytes_by_category(replay: Replay, guess: Guess, instants: Integers) -> Integers:
    """Return the live bytes of each category after each of the trace entries `instants`: an array [category,
    instant].
    """
    return live_bytes_by_group(replay.lifetimes, guess.category, len(CATEGORIES), instants)


def live_bytes_by_group(lives: Lifetimes, group: Column, groups: int, instants: Integers) -> Integers:
    """Return the live bytes of each group of blocks after each entry in `instants`: an array (group, instant).

    `group` has the number of each block's group, below `groups`; `instants` is in ascending order. The bytes of a
    block are added at the first instant at or after its allocation and subtracted at the first instant at or after
    its free; running sums give the live bytes.
    """
    columns = len(instants) + 1  # the last one is for what happens after all instants
    row = group.astype(np.int64) * columns
    allocated, freed = (
        np.bincount(row + np.searchsorted(instants, when), lives.size, groups * columns).reshape(groups, columns)
        for when in (lives.born, lives.died)
    )
    return (allocated - freed).cumsum(axis=1)[:, :-1].astype(np.int64)


# Find tensors that stay for several steps and are then freed together, as by Python's garbage collector.
#
# An object in a reference cycle is not freed when the last name of it goes, but when the collector runs, which it
# does after so many new objects. Worked example, steps in which the blocks of one stack were allocated and freed:
#
#     allocated in  1  2  3  4  5  6  7  8
#     freed in      3  3  3  6  6  6  -  -    three steps' blocks are freed in step 3, three steps' in step 6
#
# A list that is emptied now and then looks the same; a queue does not, as it frees the blocks of one step at a time.

STEPS_AT_LEAST, _BURSTS_AT_LEAST = 3, 2
"""A burst frees blocks of this many steps, and a stack must have this many bursts."""
SHARE_AT_LEAST = 0.05


def late_frees(replay: Replay, loop: TrainingLoop) -> UnusualUse | None:
    """Return the stack with the most bytes that are freed in bursts; None if they are less than a part of the peak.

    `bytes` is the size of its largest burst without the blocks of one step, which would be alive in any case.
    """
    starts = np.array([step.start for step in loop.steps], np.int64)
    if len(starts) < STEPS_AT_LEAST * _BURSTS_AT_LEAST:
        return None
    lives = replay.lifetimes
    rows = np.flatnonzero((lives.born >= starts[0]) & (lives.died < len(replay.trace)) & ~lives.freed_stack)
    born, died = (np.searchsorted(starts, when[rows], side="right") for when in (lives.born, lives.died))
    late = died - born >= STEPS_AT_LEAST - 1
    # Only stacks with such late frees need a closer look, and those are few in most jobs.
    chosen = np.isin(lives.stack[rows], np.unique(lives.stack[rows[late]]))
    order = np.flatnonzero(chosen)[np.argsort(lives.stack[rows[chosen]], kind="stable")]
    stacks, first = np.unique(lives.stack[rows[order]], return_index=True)
    best, most = 0, 0
    for stack, part in zip(stacks.tolist(), np.split(order, first[1:]), strict=False):
        kept = _bytes_of_bursts(born[part], died[part], lives.size[rows[part]])
        if stack and kept > most:
            best, most = stack, kept
    if most < SHARE_AT_LEAST * replay.peak[0] or not most:
        return None
    return UnusualUse(
        kind=UnusualKind.LATE_FREES,
        bytes=most,
        frees_bytes=most,
        step=None,
        frames=stack_lines(replay.trace.snapshot, best),
    )


def _bytes_of_bursts(born: Integers, died: Integers, size: Integers) -> int:
    """Return the bytes of the largest burst of one stack, less those of one step; 0 if it is not freed in bursts.

    `born` and `died` are the steps in which its blocks were allocated and freed.
    """
    when, burst = np.unique(died, return_inverse=True)
    steps = np.array([len(np.unique(born[burst == number])) for number in range(len(when))])
    total = np.bincount(burst, size, len(when))
    is_burst = steps >= STEPS_AT_LEAST
    if np.count_nonzero(is_burst) < _BURSTS_AT_LEAST or total[is_burst].sum() < total.sum() / 2:
        return 0
    return int((total * (1 - 1 / steps))[is_burst].max())


_LARGER_STEPS_AT_LEAST = 4
# Set by hand. Peaks of steps with batches of several sizes also differ: a spike must stand out from how they differ.
_SPIKE_RATIO, _SPREADS_AT_LEAST = 1.1, 2
_SHARE_AT_MOST = 0.25
"""The largest share of steps that may count as unusually large; if there are more, the job has two kinds of steps."""


def larger_steps(replay: Replay, uses: Sequence[StepUse], loop: TrainingLoop) -> Iterator[UnusualUse]:
    """Yield the spike of a training loop, if a few of its steps peak far above all others.

    The highest of these steps must be the peak of the whole trace. `uses` has the memory use of the steps of `loop`.
    Example: steps peak at 4, 4, 5, 9, 4 and 5 GiB. Sorted by size, the largest ratio of neighbours is 9 / 5, so the
    spike is the step with 9 GiB, which needs 4 GiB more than any other step.
    """
    order = sorted(range(len(uses)), key=lambda row: uses[row].peak_bytes)
    peaks = [uses[row].peak_bytes for row in order]
    counts = range(1, int(_SHARE_AT_MOST * len(uses)) + 1) if len(uses) >= _LARGER_STEPS_AT_LEAST else ()
    count = max(counts, key=lambda k: peaks[-k] / max(1, peaks[-k - 1]), default=0)
    if not count or not _stands_out(peaks, count) or peaks[-1] < replay.peak[0]:
        return
    highest, usual = uses[order[-1]], uses[order[-count - 1]]
    yield UnusualUse(
        kind=UnusualKind.SPIKE,
        bytes=highest.peak_bytes - usual.peak_bytes,
        frees_bytes=highest.peak_bytes - usual.peak_bytes,
        step=highest.step if loop.is_annotated else None,
        frames=stack_lines(replay.trace.snapshot, _stack_that_grew(replay, usual.peak_index, highest.peak_index)),
        larger_steps=count,
        compared_steps=len(uses),
        forward_only=loop.is_forward_only or msgspec.UNSET,
    )


def _stands_out(peaks: Sequence[int], count: int) -> bool:
    lowest, usual, median = peaks[-count], peaks[-count - 1], peaks[(len(peaks) - count) // 2]
    return lowest >= _SPIKE_RATIO * usual and lowest - usual >= _SPREADS_AT_LEAST * (usual - median)


def _stack_that_grew(replay: Replay, before: int, after: int) -> int:
    """Return the stack with the largest increase of its live bytes between two trace entries."""
    lives = replay.lifetimes
    difference = np.zeros(int(lives.allocating_stack.max(initial=0)) + 1)
    for entry, sign in ((before, -1), (after, 1)):
        rows = lives.alive(entry)
        difference += sign * np.bincount(lives.allocating_stack[rows], lives.size[rows], len(difference))
    difference[0] = -np.inf  # the blocks without a stack
    return int(difference.argmax()) if difference.max(initial=0) > 0 else 0
