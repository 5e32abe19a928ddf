"""Measure the memory of each training step: its peak, and the live bytes by category at its end."""

from collections.abc import Sequence

import numpy as np

from analyzers.columns import Column, Integers
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.model import StepUse
from analyzers.memory.reading.schema import CATEGORIES
from analyzers.memory.replay.lifetimes import Lifetimes, Replay
from analyzers.memory.replay.phases import StepSpan

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
    """Return the live bytes of each category after each of the trace entries `instants`: an array [category, instant].

    `instants` is in ascending order.
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
