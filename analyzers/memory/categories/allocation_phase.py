"""Find the phase of training in which each block was allocated."""

import numpy as np

from analyzers.columns import Integers
from analyzers.memory.categories.stack_signs import phase_of_entries, stack_signs
from analyzers.memory.replay.lifetimes import BEFORE, Replay
from analyzers.memory.replay.phases import Phase, PhaseTimeline, annotated_windows

_OLDER = len(Phase)
"""The number that stands for the phase of blocks that were allocated before the trace begins."""
PHASE_NAMES = {
    Phase.NONE: "other",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
    _OLDER: "before the trace",
}
_ANNOTATION_OF = {Phase.FORWARD: "fwd", Phase.BACKWARD: "bwd", Phase.OPTIMIZER: "Optimizer.step"}
"""The prefix of the annotations that mark each phase; this project's recorder and PyTorch's optimizer write them."""


def allocation_phases(replay: Replay) -> Integers:
    """Return the training phase in which each block was allocated, as a key of `PHASE_NAMES`.

    An annotation that marks a phase has priority. Without one, the stack that allocated the block shows the phase.
    """
    trace, born = replay.trace, replay.lifetimes.born
    phase = PhaseTimeline(phase_of_entries(trace, stack_signs(trace.snapshot))).at(born)
    for annotated, prefix in _ANNOTATION_OF.items():
        phase = np.where(annotated_windows(trace, prefix).contains(born), int(annotated), phase)
    return np.where(born == BEFORE, _OLDER, phase)
