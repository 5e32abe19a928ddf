"""Find the steps of a training loop: steps marked by annotations, or else steps inferred from recurring stacks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from analyzers.columns import Mask
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
