"""The allocation that failed, and how much of the reserved memory could not be used for it."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from analyzers.memory.answers.stacks import shown
from analyzers.memory.answers.step_use import held_after
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.model import Growth, Oom, StepUse
from analyzers.memory.reading.reader import CATEGORY_OF
from analyzers.memory.replay.lifetimes import Replay
from analyzers.memory.replay.phases import step_at
from analyzers.memory.replay.reserved import reserved

LAYER = re.compile(r"^(.*?\.\d+)\..*$")
GROWN, SPIKED = 0.1, 1.25
MODULES_AT_MOST = 8
INPUTS = CATEGORY_OF["inputs"]


def last_oom(replay: Replay, guess: Guess, rising: Sequence[Growth], uses: Sequence[StepUse]) -> Oom | None:
    """The last allocation that failed; earlier ones the program survived."""
    trace = replay.trace
    failed = trace.where("oom")
    if not len(failed):
        return None
    index = int(failed[-1])
    lives = replay.lifetimes
    wanted = int(replay.live[index]) + int(trace.entry("size")[index])
    before = [use for use in uses if use.last_entry < index]
    usual = max((use.peak_bytes for use in before), default=None)
    inputs = held_after(replay, guess, np.array([use.peak_index for use in before], np.int64))[INPUTS]
    pattern, since = pattern_of(wanted, usual, rising)
    return Oom(
        modules=by_module(replay, index),
        pattern=pattern,
        since_step=since,
        usual_peak_bytes=usual,
        usual_inputs_bytes=int(inputs.max()) if before else None,
        requested_bytes=int(trace.entry("size")[index]),
        device_free_bytes=int(trace.entry("addr")[index]),
        allocated_bytes=int(replay.live[index]),
        reserved_bytes=int(reserved(trace)[index]),
        index=index,
        step=step_at(trace, index),
        frames=shown(trace.snapshot, int(trace.entry("stack")[index])),
        categories=guess.sums(lives, lives.alive(index)),
    )


def pattern_of(wanted: int, usual: int | None, rising: Sequence[Growth]) -> tuple[str, int | None]:
    """How the failing step differs from those before, and the step in which growth began."""
    if rising and sum(growth.total_bytes for growth in rising) >= GROWN * wanted:
        return "growth", min(growth.first_step for growth in rising)
    if usual is None:
        return "unknown", None
    return ("spike" if wanted > SPIKED * usual else "steady"), None


def by_module(replay: Replay, index: int) -> dict[str, int]:
    """Bytes alive after an entry by the name that was noted, the largest first; of numbered layers each by itself."""
    lives = replay.lifetimes
    rows = lives.alive(index)
    held: Counter[str] = Counter()
    for label in np.unique(lives.label[rows]):
        name = replay.trace.snapshot.text(int(label))
        held[LAYER.sub(r"\1", name)] += int(lives.size[rows][lives.label[rows] == label].sum())
    del held[""]
    return dict(held.most_common(MODULES_AT_MOST))
