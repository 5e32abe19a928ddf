"""The phase of training in which each block was allocated."""

import numpy as np

from analyzers.columns import Column
from analyzers.memory.categories.rules import phase_of_entries, stack_signs
from analyzers.memory.replay.lifetimes import BEFORE, Replay
from analyzers.memory.replay.phases import BACKWARD, FORWARD, NO_PHASE, OPTIMIZER, Phases, windows

OLDER = OPTIMIZER + 1
NAMES = {
    NO_PHASE: "other",
    FORWARD: "forward",
    BACKWARD: "backward",
    OPTIMIZER: "optimizer",
    OLDER: "before the trace",
}
ANNOTATED = {FORWARD: "fwd", BACKWARD: "bwd", OPTIMIZER: "Optimizer.step"}


def phases_of(replay: Replay) -> Column:
    """The number in NAMES of each block's phase: as annotated, else as the stack of its allocation shows."""
    trace, born = replay.trace, replay.lifetimes.born
    found = Phases(phase_of_entries(trace, stack_signs(trace.snapshot))).at(born)
    for phase, prefix in ANNOTATED.items():
        found = np.where(windows(trace, prefix).inside(born), phase, found)
    result: Column = np.where(born == BEFORE, OLDER, found)
    return result
