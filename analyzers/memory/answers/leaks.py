"""Live bytes that grow from step to step, by the stack that allocated them."""

from collections.abc import Sequence

import numpy as np

from analyzers.columns import Column
from analyzers.memory.answers.stacks import groups, shown
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.model import Device, Growth, TopStack
from analyzers.memory.reading.reader import CATEGORIES
from analyzers.memory.replay.lifetimes import Replay
from analyzers.memory.replay.phases import steps

RISES_AT_LEAST, RISES_TO_BE_SURE = 4, 8
"""Blocks that go late, or whose end nobody noted, rise for some steps too. So few rises prove a leak only if each step
keeps blocks of the same sizes; many must still be about equally large.
"""
STEPS_AT_MOST = 64
BYTES_AT_LEAST, SHARE_AT_LEAST = 64 << 10, 0.005
# Caches fill during the first steps, so few snapshots prove less than many steps do.
BETWEEN_AT_LEAST, BETWEEN_SHARE, BETWEEN_RISES = 1 << 20, 0.05, 2
STEADY = 0.5


def growing(replay: Replay, guess: Guess) -> list[Growth]:
    """Stacks whose live bytes rose at each of the last steps, the steepest first; needs the steps to be marked."""
    whole = [step for step in steps(replay.trace) if step.end][-STEPS_AT_MOST:]
    if len(whole) <= RISES_AT_LEAST:
        return []
    instants = [whole[0].start - 1, *(step.end - 1 for step in whole if step.end)]
    keys, group = np.unique(groups(replay.lifetimes, guess), return_inverse=True)
    held = held_at(replay, group, instants)
    rises = np.array([rising(series) for series in held.T], np.int64)
    total = held[-1] - held[len(whole) - rises, np.arange(len(keys))]
    worth = max(BYTES_AT_LEAST, SHARE_AT_LEAST * replay.end)
    grown = [k for k in np.argsort(-total, kind="stable") if rises[k] >= RISES_AT_LEAST and total[k] >= worth]
    leaking = [k for k in grown if is_steady(replay, group == k, [s.start for s in whole[-rises[k] :]], held[:, k])]
    return [
        Growth(
            bytes_per_step=int(total[k]) // int(rises[k]),
            total_bytes=int(total[k]),
            steps=int(rises[k]),
            first_step=whole[-int(rises[k])].number,
            category=CATEGORIES[keys[k] % len(CATEGORIES)],
            frames=shown(replay.trace.snapshot, int(keys[k]) // len(CATEGORIES)),
        )
        for k in leaking[:10]
    ]


def held_at(replay: Replay, group: Column, instants: Sequence[int]) -> Column:
    """Bytes alive at each instant by group: (instant, group)."""
    lives = replay.lifetimes
    alive = [lives.alive(instant) for instant in instants]
    count = int(group.max(initial=-1)) + 1
    held = [np.bincount(group[rows], weights=lives.size[rows], minlength=count) for rows in alive]
    return np.array(held, np.int64).reshape(len(instants), count)


def is_steady(replay: Replay, chosen: Column, births: Sequence[int], held: Column) -> bool:
    """Whether the steps that begin at `births` kept about the same each; `held` is what the chosen blocks held."""
    kept = np.diff(held)[-len(births) :]
    if len(births) >= RISES_TO_BE_SURE:
        return bool(np.median(kept) >= STEADY * kept.mean())
    return same_of_each(replay, chosen, births) * len(births) >= STEADY * int(kept.sum())


def same_of_each(replay: Replay, chosen: Column, births: Sequence[int]) -> int:
    """Bytes in blocks of those sizes of which each step that begins at `births` left one to the end."""
    lives = replay.lifetimes
    kept = chosen & (lives.died == len(replay.trace)) & (lives.born >= births[0])
    step = np.searchsorted(births, lives.born[kept], side="right")
    sizes, count = np.unique(np.unique(np.stack([lives.size[kept], step]), axis=1)[0], return_counts=True)
    return int(sizes[count == len(births)].sum())


def rising(series: Column) -> int:
    """How many of the last changes in a row are rises."""
    falls = np.flatnonzero(np.diff(series) <= 0)
    return len(series) - 1 - (int(falls[-1]) + 1 if len(falls) else 0)


def growing_over_snapshots(devices: Sequence[Device]) -> Growth | None:
    """The rise of what is alive at the end of one device's snapshots, taken at different steps of a run."""
    ends = np.array([device.end_allocated_bytes for device in devices], np.int64)
    rises = rising(ends) if len(ends) > 1 else 0
    if rises < BETWEEN_RISES:
        return None
    first, last = devices[-1 - rises], devices[-1]
    total = last.end_allocated_bytes - first.end_allocated_bytes
    span = (last.step or 0) - (first.step or 0)
    if span <= 0 or total < max(BETWEEN_AT_LEAST, BETWEEN_SHARE * last.end_allocated_bytes):
        return None
    if (ends[-1] - ends[-2]) / max(1, (last.step or 0) - (devices[-2].step or 0)) < STEADY * total / span:
        return None  # it levels off
    stack = grown_most(first, last)
    return Growth(
        bytes_per_step=total // span,
        total_bytes=total,
        steps=span,
        first_step=(first.step or 0) + 1,
        category=stack.category if stack else "unknown",
        frames=stack.frames if stack else [],
    )


def grown_most(first: Device, last: Device) -> TopStack | None:
    """Of the stacks that hold the most at the end of the later snapshot the one that grew most."""
    before = {(*stack.frames, stack.category): stack.bytes for stack in first.end_stacks}
    grown = [(stack.bytes - before.get((*stack.frames, stack.category), 0), stack) for stack in last.end_stacks]
    return max(grown, key=lambda pair: pair[0], default=(0, None))[1]
