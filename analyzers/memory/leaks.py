"""Find leaks: live bytes that grow from step to step, grouped by the stack that allocated them."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile

import msgspec
import numpy as np

from analyzers.columns import Integers, Mask
from analyzers.holders import HOW_TO_ASK, Holder, cure, holder_of, how_it_grew, what_keeps
from analyzers.memory.categorise import Guess
from analyzers.memory.evidence import FORWARD_ONLY, STEPS_INFERRED, fact, in_words, innermost, ranks_of
from analyzers.memory.lifetimes import Replay
from analyzers.memory.model import Device, Growth, TopStack, UnusualUse
from analyzers.memory.phases import StepSpan
from analyzers.memory.snapshot import CATEGORIES
from analyzers.memory.stacks import stack_and_category, stack_lines
from analyzers.memory.training_loop import TrainingLoop
from analyzers.report import Finding, Severity
from analyzers.words import bounded, quantity, size, size_change

_RISES_AT_LEAST, _RISES_TO_BE_SURE = 4, 8
"""The number of steps that must add live bytes for a leak, and the number that is enough to be sure.

Blocks that are freed late, or whose free was not recorded, grow for some steps too. So a few steps prove a leak only if
each of them keeps blocks of the same sizes; with many steps it is enough that they add about equally many bytes.
"""
_PAUSE_AT_MOST = 1
"""The most steps without growth between two that grow: a tensor that every second step keeps is a leak too."""
# Each step takes a pass over all blocks; 64 are more than enough for proof.
_STEPS_AT_MOST = 64
_BYTES_AT_LEAST, SHARE_AT_LEAST = 64 << 10, 0.005
_STACKS_AT_MOST = 10
# Caches fill during the first steps, so a few snapshots prove less than many steps do: thresholds are higher.
_SNAPSHOT_BYTES_AT_LEAST, _SNAPSHOT_SHARE_AT_LEAST, _SNAPSHOT_RISES_AT_LEAST = 1 << 20, 0.05, 2
STEADY = 0.5
_KEPT_BY_LAYERS = 0.5
"""The share of what a forward pass allocates from which on it keeps its activations for a backward pass."""
_OOM_SHARE_AT_LEAST = 0.1
"""The share of the allocated bytes below which growth does not explain why a request failed."""


def growing_stacks(replay: Replay, guess: Guess, loop: TrainingLoop) -> list[Growth]:
    """Return the stacks whose live bytes grew over the last steps without a fall, the stack that grew most first.

    The list is empty for a training loop with fewer than five complete steps. Example: live bytes of a stack before the
    first step and at the ends of five steps are 8, 8, 9, 10, 11, 12 MiB: 4 rises in a row, 4 MiB in all. This is a leak
    if each of these 4 steps left a block of the same size (1 MiB) alive to the end.
    """
    steps = loop.steps[-_STEPS_AT_MOST:]
    if len(steps) <= _RISES_AT_LEAST:
        return []
    instants = [steps[0].start - 1, *(step.end - 1 for step in steps if step.end)]
    # A guessed category depends on how long a block lives: the last blocks of a queue have one of their own.
    origin = stack_and_category(replay.lifetimes, guess) if guess.exact else replay.lifetimes.allocating_stack
    group = np.unique(origin, return_inverse=True)[1].reshape(-1)
    # Something small always grows; a leak must matter at the scale of what is alive.
    worthwhile = max(_BYTES_AT_LEAST, SHARE_AT_LEAST * replay.end)
    # No group can have grown by more than it has at the end: few of a million need a closer look.
    is_large = _live_bytes_at(replay, group, instants[-1:])[0] >= worthwhile
    group = np.where(is_large, np.cumsum(is_large) - 1, -1)[group]
    live = _live_bytes_at(replay, group, instants)
    lasting = np.array([_growing_steps(series) for series in live.T], np.int64)
    total = live[-1] - live[len(steps) - lasting, np.arange(live.shape[1])]
    candidates = [k for k in np.argsort(-total, kind="stable").tolist() if total[k] >= worthwhile]
    return [
        growth(replay, guess, group == k, int(total[k]), loop._replace(steps=steps[-int(lasting[k]) :]))
        for k in candidates
        if _is_steady(replay, group == k, [step.start for step in steps[-int(lasting[k]) :]], live[:, k])
        and not (loop.is_forward_only and _is_one_pass(replay, steps[-int(lasting[k]) :]))
    ][:_STACKS_AT_MOST]


def _is_one_pass(replay: Replay, steps: Sequence[StepSpan]) -> bool:
    """Return whether what recurs are the layers of one forward pass, and not steps.

    Its layers keep most of what they allocate, and all run below one line of the model's forward function; steps also
    run what comes before and after the layers. What follows the last of them, as the loss does, does not count. If no
    stack has a line of the user's code, only the first counts.
    """
    lives, trace = replay.lifetimes, replay.trace
    new = (lives.born >= steps[0].start) & (lives.born < steps[-1].start)
    kept = new & (lives.died == len(trace))
    if int(lives.size[kept].sum()) < _KEPT_BY_LAYERS * int(lives.size[new].sum()):
        return False
    frames, stacks = trace.snapshot.frames, np.unique(lives.allocating_stack[new]).tolist()
    paths = [frames.user_stack(stack)[::-1] if frames.has_user_line(stack) else [] for stack in stacks]
    if not any(paths):
        return True
    shared = takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return any(level[0][0] == "forward" for level in shared)


def growth(replay: Replay, guess: Guess, selected: Mask, total: int, loop: TrainingLoop) -> Growth:
    """Return the `Growth` of one stack: its blocks grew by `total` bytes over the steps of `loop`.

    The blocks are those marked in `selected`. Its category is the one with the most bytes still alive at the end of the
    trace.
    """
    steps = loop.steps
    lives = replay.lifetimes
    kept = np.flatnonzero(selected & (lives.died == len(replay.trace)))
    category = int(np.bincount(guess.category[kept], lives.size[kept]).argmax())
    stack = int(lives.allocating_stack[kept[0]])
    return Growth(
        bytes_per_step=total // len(steps),
        total_bytes=total,
        steps=len(steps),
        first_step=steps[0].number if loop.is_annotated else None,
        category=CATEGORIES[category],
        frames=stack_lines(replay.trace.snapshot, stack),
        forward_only=loop.is_forward_only or msgspec.UNSET,
    )


def _live_bytes_at(replay: Replay, group: Integers, instants: Sequence[int]) -> Integers:
    """Return the live bytes of each group of blocks after each entry in `instants`: an array (instant, group).

    `group` has the number of the group of each row in `Lifetimes`; rows of group -1 are left out.
    """
    lives = replay.lifetimes
    count = int(group.max(initial=-1)) + 1
    alive = [rows[group[rows] >= 0] for rows in map(lives.alive, instants)]
    live = [np.bincount(group[rows], weights=lives.size[rows], minlength=count) for rows in alive]
    return np.array(live, np.int64).reshape(len(instants), count)


def _is_steady(replay: Replay, selected: Mask, starts: Sequence[int], live: Integers) -> bool:
    """Return whether live bytes grew steadily: in enough steps, and by about the same number of bytes in each.

    `starts` has the first trace entry of each step since the growth began; `live` has the bytes of the `selected`
    blocks before the first step and at the end of each step.
    """
    changes = np.diff(live)[-len(starts) :] if starts else np.array([], np.int64)
    kept = changes[changes > 0]
    if len(kept) < _RISES_AT_LEAST:
        return False
    if len(kept) >= _RISES_TO_BE_SURE:
        return bool(np.median(kept) >= STEADY * kept.mean())
    return _bytes_kept_every_time(replay, selected, starts, len(kept)) * len(kept) >= STEADY * int(kept.sum())


def _bytes_kept_every_time(replay: Replay, selected: Mask, starts: Sequence[int], times: int) -> int:
    """Return the sum of the block sizes that at least `times` steps kept, each size counted once.

    A step keeps a size if a block of that size, allocated in the step, is alive at the end of the trace. `starts` has
    the first trace entry of each step; only `selected` blocks count.
    """
    lives = replay.lifetimes
    kept = selected & (lives.died == len(replay.trace)) & (lives.born >= starts[0])
    step = np.searchsorted(starts, lives.born[kept], side="right")
    # Distinct (size, step) pairs: a size that occurs with every step is one that every step kept.
    pairs = np.unique(np.stack([lives.size[kept], step]), axis=1)
    sizes, steps_with_it = np.unique(pairs[0], return_counts=True)
    return int(sizes[steps_with_it >= times].sum())


def _growing_steps(series: Integers) -> int:
    """Return for how many steps live bytes have been growing at the end of a series, including pauses of one step.

    There may be no fall among these steps. Example: for 5, 4, 6, 6, 7 the result is 3, because the last fall is before
    4. For 5, 4, 6, 6, 6 it is 0, because the pause at the end is too long.
    """
    changes = np.diff(series)
    falls = np.flatnonzero(changes < 0)
    rises = np.flatnonzero(changes > 0)
    rises = rises[rises > falls[-1]] if len(falls) else rises
    pauses = np.diff(np.append(rises, len(changes)))
    if not len(rises) or pauses[-1] > _PAUSE_AT_MOST + 1:
        return 0
    breaks = np.flatnonzero(pauses > _PAUSE_AT_MOST + 1)
    return len(changes) - int(rises[breaks[-1] + 1 if len(breaks) else 0])


def _trailing_rises(series: Integers) -> int:
    falls = np.flatnonzero(np.diff(series) <= 0)
    return len(series) - 1 - (int(falls[-1]) + 1 if len(falls) else 0)


def leaking_devices(devices: Sequence[Device]) -> Iterator[tuple[Device, list[Growth]]]:
    """Yield each device whose last snapshot shows a leak, with the growth of its stacks.

    If the last snapshot alone does not show growth, growth from snapshot to snapshot counts. Growth that only an
    earlier snapshot shows has ended, and does not count.
    """

    def series(device: Device) -> tuple[int, int]:
        return (-1 if device.rank is None else device.rank, device.device)

    in_order = sorted(devices, key=lambda d: (series(d), d.step or 0, d.oom is not None))
    for _, snapshots in groupby(in_order, key=series):
        of_device = list(snapshots)
        last = of_device[-1]
        # One taken in mid-step holds what the step's end would have freed; on a CPU some frees are never recorded, so
        # its levels can be compared only if the recorder looked for what was alive before each window.
        settled = [d for d in of_device if not d.oom and (d.older_blocks_known or not d.fragmentation.made_up_segments)]
        if last.growing and not (last.oom and _is_minor(last.growing[0], last.oom.allocated_bytes)):
            yield last, last.growing
        elif rise := _growth_between_snapshots(settled):
            yield settled[-1], [rise]


def _is_minor(rise: Growth, allocated: int) -> bool:
    return rise.total_bytes < _OOM_SHARE_AT_LEAST * allocated


def _growth_between_snapshots(devices: Sequence[Device]) -> Growth | None:
    """Return the growth of the live bytes over the snapshots of one device, which are given in order of time.

    The result is None if the live bytes do not grow, or if their growth slows down (a cache that fills, for example).
    """
    ends = np.array([device.end_allocated_bytes for device in devices], np.int64)
    rises = _trailing_rises(ends) if len(ends) > 1 else 0
    if rises < _SNAPSHOT_RISES_AT_LEAST:
        return None
    first, last = devices[-1 - rises], devices[-1]
    total = last.end_allocated_bytes - first.end_allocated_bytes
    steps = (last.step or 0) - (first.step or 0)
    if steps <= 0 or total < max(_SNAPSHOT_BYTES_AT_LEAST, _SNAPSHOT_SHARE_AT_LEAST * last.end_allocated_bytes):
        return None
    last_steps = max(1, (last.step or 0) - (devices[-2].step or 0))
    if (ends[-1] - ends[-2]) / last_steps < STEADY * total / steps:
        return None  # it levels off: a cache that fills, not a leak
    stack = _most_grown_stack(first, last)
    return Growth(
        bytes_per_step=total // steps,
        total_bytes=total,
        steps=steps,
        first_step=(first.step or 0) + 1,
        category=stack.category if stack else "unknown",
        frames=stack.frames if stack else [],
    )


def _most_grown_stack(first: Device, last: Device) -> TopStack | None:
    """Return the stack whose live bytes grew most from the first to the last snapshot; None if the last has no stacks.

    Only the stacks with the most live bytes at the end of the last snapshot are considered.
    """
    before = {(*stack.frames, stack.category): stack.bytes for stack in first.end_stacks}
    grown = [(stack.bytes - before.get((*stack.frames, stack.category), 0), stack) for stack in last.end_stacks]
    return max(grown, key=lambda pair: pair[0], default=(0, None))[1]


_LEAK_CAUSES = (
    "Common causes are a list that is appended to, a loss summed up without .item() or .detach(), and a stored output"
    " that keeps its autograd graph."
)


_NO_HOLDER = (
    "The recorder found no object of Python that keeps as much as this: look for what C++ code keeps, such as graphs"
    " that `backward(create_graph=True)` or `retain_graph=True` leaves."
)
_CACHE = re.compile(r"(?i)kv_?cache|cache_utils\.py|past_key_value|key_value_cache")
_GROWING_CACHE = (
    "This is a cache of keys and values, which grows with each token. Bound the length of a sequence (max_new_tokens)"
    ' or the number of sequences, or allocate the cache once: cache_implementation="static" in transformers.'
)


def _holder(device: Device, growing: Sequence[Growth]) -> Holder | None:
    """Return what keeps the growing memory of a device, if its recorder found it and the sizes agree."""
    return holder_of(device.holders or [], sum(growth.bytes_per_step for growth in growing))


def leak_advice(device: Device, growth: Growth, line: str) -> str:
    if any(map(_CACHE.search, growth.frames)):
        return _GROWING_CACHE
    if holder := _holder(device, [growth]):
        return cure(holder)
    how = HOW_TO_ASK if isinstance(device.holders, msgspec.UnsetType) else _NO_HOLDER
    return f"Find what keeps the tensors of {line} alive. {_LEAK_CAUSES} {how}"


def leak_finding(device: Device, growing: Sequence[Growth]) -> Finding:
    """Return the finding that the live bytes of some stacks grow; `growing` has the stack that grew most first."""
    worst = growing[0]
    where = innermost(worst.frames, "an unknown line")
    is_annotated = worst.first_step is not None
    since = f" from step {worst.first_step} on" if is_annotated else ""
    how = "" if is_annotated else f" {STEPS_INFERRED}"
    how += FORWARD_ONLY if worst.forward_only else ""
    holder = _holder(device, growing)
    kept = f" {what_keeps(holder)} keeps them. {how_it_grew(holder)}" if holder else ""
    together = sum(growth.total_bytes for growth in growing)
    all_lines = f" All lines in the evidence together left {size(together)}." if len(growing) > 1 else ""
    return Finding(
        id="memory.leak",
        severity=Severity.WARNING,
        title=f"Memory grows by {size(worst.bytes_per_step)} per step{since} in {where}"
        + (f", kept by `{bounded(holder.name)}`" if holder else ""),
        why=f"In each of the last {worst.steps} steps this line allocated memory that was not freed by the end of the"
        f" recording, {size(worst.total_bytes)} in total.{all_lines}{kept}{how}",
        next=leak_advice(device, worst, "this line"),
        ranks=ranks_of(device),
        step=worst.first_step,
        evidence=[
            fact(
                device,
                f"{size_change(growth.bytes_per_step)} per step in {quantity(growth.steps, 'step')}:"
                f" {in_words(growth.category)}",
                innermost(growth.frames),
            )
            for growth in growing
        ]
        + ([fact(device, f"kept by {what_keeps(holder)}")] if holder else []),
        confidence=min(0.95 if is_annotated else 0.8, 0.6 + 0.05 * worst.steps),
    )


def late_frees_finding(device: Device, use: UnusualUse) -> Finding:
    where = f" in {innermost(use.frames)}" if use.frames else ""
    return Finding(
        id="memory.late_frees",
        severity=Severity.INFO,
        title=f"Up to {size(use.bytes)} stays allocated for several steps{where}, and is then freed at once",
        why="Objects in a reference cycle stay until Python's garbage collector runs, and tensors that they refer to"
        " stay with them. A list that is emptied every few steps looks the same.",
        next="Break the reference cycle: it goes through what holds these tensors, such as an object that refers to"
        " itself, a closure or a stored exception. Its effect can be checked with gc.collect() after each step, after"
        f" which the peak is up to {size(use.bytes)} lower.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"freed late and together: {size(use.bytes)}", innermost(use.frames))],
        confidence=0.85,
    )
