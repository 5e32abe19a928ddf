"""Find the steps of a training loop: steps marked by annotations, or else steps inferred from recurring stacks."""

from typing import NamedTuple

from analyzers.columns import Column
from analyzers.memory.categories.stack_signs import phase_of_entries, stack_signs
from analyzers.memory.replay.inferred_steps import inferred_steps
from analyzers.memory.replay.lifetimes import Replay
from analyzers.memory.replay.phases import Phase, StepSpan, whole_steps


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
    """Return the complete steps of a trace; none if it has neither marked steps nor a loop of at least five."""
    annotated = whole_steps(replay.trace)
    return TrainingLoop(annotated, True) if annotated else inferred_loop(replay)


def inferred_loop(replay: Replay) -> TrainingLoop:
    """Return the steps inferred from recurring stacks, if each has a forward or backward pass or an optimizer step.

    Otherwise there are none: loading weights layer by layer also repeats stacks, and its memory stays allocated without
    being a leak. If some passes have a backward pass and others do not, the others are evaluation and not steps.
    """
    steps = inferred_steps(replay.trace, replay.live_bytes)
    if not steps:
        return TrainingLoop([], False)
    phases = phase_of_entries(replay.trace, stack_signs(replay.trace.snapshot))
    if not all(part_of(phases, step).any() for step in steps):
        return TrainingLoop([], False)
    training = [step for step in steps if (part_of(phases, step) == Phase.BACKWARD).any()]
    is_forward_only = not training and not (phases == Phase.OPTIMIZER).any()
    return TrainingLoop(training or steps, False, is_forward_only)


def part_of(phases: Column, step: StepSpan) -> Column:
    """Return the phases of the trace entries in a step; `phases` has the phases of all entries (0: `NONE`)."""
    return phases[step.start : step.end]
