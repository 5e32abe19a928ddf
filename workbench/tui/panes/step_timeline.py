"""Read the memory of a device over time, and the positions of the training steps on the same axis."""

from functools import lru_cache
from typing import NamedTuple

import pandas as pd

from analyzers.memory import views
from analyzers.run import Artefact
from analyzers.store import Options
from workbench.step_axis import StepMarks
from workbench.tui.widgets.charts.memory_timeline import StepStart


class TimelineOfSteps(NamedTuple):
    """Rows of a memory timeline, as `memory.views.timeline` returns them, and the entry at which each step begins."""

    instants: pd.DataFrame
    steps: list[StepStart]


def step_timeline(
    artefact: Artefact, options: Options, device: int, columns: int, window: tuple[int, int] | None = None
) -> TimelineOfSteps:
    """Return the memory of a device over time in at most `columns` rows, and the positions of the steps.

    `window` is the range of trace entries (first, end); None stands for all.

    Raises:
        WorkbenchError: The snapshot cannot be read.
    """
    instants = views.timeline(artefact, options, device=device, buckets=columns, window=window)
    return TimelineOfSteps(instants, step_starts(artefact, options, device))


@lru_cache(maxsize=64)
def step_starts(artefact: Artefact, options: Options, device: int) -> list[StepStart]:
    """Return the trace entry at which each step begins; the result is cached, because zooming does not change it."""
    starts = StepMarks.of(views.clock(artefact, options, device)).starts()
    return [StepStart(step, int(entry)) for step, entry in starts]
