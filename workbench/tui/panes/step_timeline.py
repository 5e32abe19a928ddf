"""Read the memory of a device over time, and the trace entries at which training steps begin."""

from functools import lru_cache
from typing import NamedTuple

import pandas as pd

from analyzers.memory import views
from analyzers.run import Artefact
from analyzers.store import Options
from workbench.axes import StepMarks
from workbench.tui.widgets.charts.memory_timeline import StepStart


class TimelineOfSteps(NamedTuple):
    """The rows of a memory timeline (see `memory.views.timeline`), and the trace entry at which each step begins."""

    instants: pd.DataFrame
    steps: list[StepStart]


def step_timeline(
    artefact: Artefact, options: Options, device: int, columns: int, window: tuple[int, int] | None = None
) -> TimelineOfSteps:
    """Return the memory of a device over time in at most `columns` rows, and the trace entry of each step's start.

    `window` is the range of trace entries (first, end); None means all.

    Raises:
        WorkbenchError: The snapshot cannot be read.
    """
    instants = views.timeline(artefact, options, device=device, buckets=columns, window=window)
    return TimelineOfSteps(instants, _step_starts(artefact, options, device))


@lru_cache(maxsize=64)
def _step_starts(artefact: Artefact, options: Options, device: int) -> list[StepStart]:
    """Return the trace entry at which each step begins; the result is cached, because a zoom needs it again."""
    starts = StepMarks.of(views.clock(artefact, options, device)).starts()
    return [StepStart(step, int(entry)) for step, entry in starts]
