"""Step by step: the peak of each, and who held what at its end."""

import numpy as np

from analyzers.columns import Column
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.model import StepUse
from analyzers.memory.reading.reader import CATEGORIES
from analyzers.memory.replay.lifetimes import Lifetimes, Replay
from analyzers.memory.replay.phases import steps

STEPS_AT_MOST = 200


def step_uses(replay: Replay, guess: Guess) -> list[StepUse]:
    """The last whole steps, in order."""
    spans = [(step.number, step.start, step.end - 1) for step in steps(replay.trace) if step.end]
    spans = [span for span in spans if span[1] <= span[2]][-STEPS_AT_MOST:]
    held = held_after(replay, guess, np.array([last for _, _, last in spans], np.int64))
    found = []
    for (number, first, last), categories in zip(spans, held.T.tolist(), strict=True):
        peak = first + int(replay.live[first : last + 1].argmax())
        found.append(
            StepUse(
                step=number,
                first_entry=first,
                last_entry=last,
                peak_bytes=int(replay.live[peak]),
                peak_index=peak,
                end_bytes=int(replay.live[last]),
                end_categories=dict(zip(CATEGORIES, categories, strict=True)),
            )
        )
    return found


def held_after(replay: Replay, guess: Guess, instants: Column) -> Column:
    """Bytes alive after each of the ascending entries: (category, instant)."""
    return alive_after(replay.lifetimes, guess.category, len(CATEGORIES), instants)


def alive_after(lives: Lifetimes, group: Column, groups: int, instants: Column) -> Column:
    """The same of any grouping, (group, instant); `group` has the number of each block's."""
    columns = len(instants) + 1
    shape = (groups, columns)
    row = group.astype(np.int64) * columns
    comes, goes = (
        np.bincount(row + np.searchsorted(instants, when), lives.size, shape[0] * columns).reshape(shape)
        for when in (lives.born, lives.died)
    )
    held: Column = (comes - goes).cumsum(axis=1)[:, :-1].astype(np.int64)
    return held
