"""Find the steps of a training loop: those that annotations mark, or else those that recurring stacks show."""

from typing import NamedTuple

import numpy as np

from analyzers.memory.categories.stack_signs import phase_of_entries, stack_signs
from analyzers.memory.replay.inferred_steps import inferred_steps
from analyzers.memory.replay.lifetimes import Replay
from analyzers.memory.replay.phases import Phase, StepSpan, whole_steps


class TrainingLoop(NamedTuple):
    """The complete steps of a trace, in order.

    If they are not annotated they were inferred, and their numbers count from the first complete step of the trace.
    """

    steps: list[StepSpan]
    is_annotated: bool


def training_loop(replay: Replay) -> TrainingLoop:
    """Return the complete steps of a trace; none if it neither marks steps nor shows a loop of at least five."""
    annotated = whole_steps(replay.trace)
    return TrainingLoop(annotated, True) if annotated else TrainingLoop(training_steps(replay), False)


def training_steps(replay: Replay) -> list[StepSpan]:
    """Return the steps inferred from recurring stacks, if each has a forward or backward pass or an optimizer step.

    If not, the list is empty: loading weights layer by layer also repeats stacks, and its memory stays allocated
    without being a leak.
    """
    steps = inferred_steps(replay.trace, replay.live_bytes)
    if not steps:
        return []
    phases = phase_of_entries(replay.trace, stack_signs(replay.trace.snapshot))
    working = np.append(np.flatnonzero(phases != Phase.NONE), len(phases))
    next_work = working[np.searchsorted(working, [step.start for step in steps])]
    return steps if (next_work < [step.end or 0 for step in steps]).all() else []
