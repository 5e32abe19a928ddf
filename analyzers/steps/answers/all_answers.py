"""Collect everything that the step logs show (stragglers, stalls, losses, goodput, ...) as the data of the report."""

import msgspec

from analyzers import store
from analyzers.steps.answers.goodput import goodput
from analyzers.steps.answers.lateness import Lateness
from analyzers.steps.answers.long_steps import single_stalls
from analyzers.steps.answers.losses import events, first_nonfinite
from analyzers.steps.answers.stalls import global_stalls
from analyzers.steps.answers.step_time_changes import step_time_changes
from analyzers.steps.answers.stragglers import stragglers
from analyzers.steps.answers.summary import summary
from analyzers.steps.answers.tagged_steps import tagged_steps
from analyzers.steps.model import StepsData
from analyzers.steps.table import Steps


def answer_all(steps: Steps, late: Lateness, options: store.Options | None = None) -> StepsData:
    """Return all results from the step logs of a run: ranks, stragglers, stalls, changes, losses, goodput.

    `late` is how late each rank is in each step. If `options` select a rank or a step, only `StepsData.ranks` is
    restricted to them; all other fields cover the whole run.

    Raises:
        InputError: There is no such rank or step.
    """
    options = options or store.Options()
    nonfinite = first_nonfinite(steps)
    return StepsData(
        world_size=steps.world_size,
        ranks=summary(steps, options.rank, options.step),
        stragglers=stragglers(steps, late),
        tagged=tagged_steps(steps),
        stalls=global_stalls(steps),
        changes=step_time_changes(steps),
        events=events(steps),
        goodput=goodput(steps, late),
        first_nonfinite_step=nonfinite.step if nonfinite else None,
        long_steps=single_stalls(steps, late) or msgspec.UNSET,
        logs=steps.logs or msgspec.UNSET,
    )
