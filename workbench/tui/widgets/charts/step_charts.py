"""Charts with a column per step: the phases of a rank's steps, and the loss."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pandas as pd

from analyzers.steps.views import NOT_TRAINING
from analyzers.words import duration
from workbench.colours import STATUSES, phase_colour
from workbench.tui.widgets.charts.axes import Unit, round_distance
from workbench.tui.widgets.charts.stacked_chart import FAILURE, StackedChart

_BASE = 0.05
"""The least height of the column of the lowest loss, as a share of the range of the losses, so that it is visible."""
_TICK_COLUMNS = 6
"""The columns of a chart for the label of each step."""
_FLOORS = 5
"""A chart of losses begins at a round number: a multiple of this part of their range, which is rounded up."""


class PhaseChart(StackedChart):
    """A chart of the phases of one rank's steps, in seconds: a column per step, as high as the step's duration."""

    UNIT: ClassVar[Unit] = Unit.SECONDS

    def show(self, frame: pd.DataFrame) -> None:
        """Draw the steps in `frame`: the largest phase is at the bottom, time outside the training at the top."""
        names = [str(name) for name in frame.columns if name not in ("step", "dur_s", "tagged")]
        spent = frame[names].sum().to_dict()
        ranked = sorted(names, key=lambda name: (name in NOT_TRAINING, -spent[name]))
        colours = {name: phase_colour(name) for name in ranked}
        self.draw(thinned(frame, "dur_s", self.columns), colours, "dur_s")

    def signs(self) -> dict[int, str]:
        """Return the mark above the chart as {index of a table row: sign}: `▼` over the longest step."""
        return {self.highest: "▼"}

    def value_text(self, value: float) -> str:
        return duration(value)

    def ticks(self) -> dict[int, str]:
        """Return the labels of the steps below the chart as {index of a table row: label}; a row is a step."""
        return step_ticks(self.instants, self.starts[-1])

    def ruler(self) -> Sequence[str]:
        return [_step_range(self.instants), f"▼ longest {duration(float(self.instants['dur_s'].max()))}"]


class LossChart(StackedChart):
    """A chart of the loss of each step, from `steps.views.series`; its lower edge is near the lowest loss, not 0."""

    _floor = 0.0

    def show(self, frame: pd.DataFrame) -> None:
        """Draw the losses in a table; a step whose loss is NaN or infinite has a mark instead.

        The cursor starts at the first such step, if there is one.
        """
        known = frame.dropna(subset="step")
        finite = known["loss"].replace([math.inf, -math.inf], math.nan)
        self._floor = floor_below(float(finite.min()), float(finite.max()))
        drawn = known.assign(height=(finite - self._floor).fillna(0.0), broken=known["broken"])
        self.draw(thinned(drawn, "height", self.columns), {"height": STATUSES["ok"]}, "height")
        self.cursor = min(self.signs(), default=self.cursor)

    def signs(self) -> dict[int, str]:
        """Return the marks above the chart as {index of a table row: sign}: `✗` over steps whose loss is not finite."""
        return {int(row): FAILURE for row in np.flatnonzero(self.instants["broken"].to_numpy(bool))}

    def value_text(self, value: float) -> str:
        return f"{self._floor + value:.6g}"

    def floor_text(self) -> str:
        return self.value_text(0.0)

    def ticks(self) -> dict[int, str]:
        """Return the labels of the steps below the chart as {index of a table row: label}; a row is a step."""
        return step_ticks(self.instants, self.starts[-1])

    def ruler(self) -> Sequence[str]:
        losses = self.instants["loss"]
        broken = [f"{FAILURE} not finite"] if self.signs() else []
        return [_step_range(self.instants), *broken, f"loss {losses.min():.4f} … {losses.max():.4f}"]


def floor_below(lowest: float, highest: float) -> float:
    """Return a round number a little below `lowest`, for the lower edge of a chart of losses.

    >>> floor_below(5.87, 6.11)
    5.85
    """
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        return 0.0
    # A constant loss has no range.
    span = (highest - lowest) or abs(lowest) or 1.0
    step = round_distance(span / _FLOORS)
    floor = float(f"{math.floor((lowest - _BASE * span) / step) * step:.12g}")
    return max(0.0, floor) if lowest >= 0 else floor


def _step_range(frame: pd.DataFrame) -> str:
    return f"step {int(frame['step'].iloc[0])} … {int(frame['step'].iloc[-1])}"


def step_ticks(frame: pd.DataFrame, columns: int) -> dict[int, str]:
    """Return {index of a row of `frame`: label of its step}: `step 5` for the first row, else only the number.

    Only multiples of a round number have labels, as many as fit into `columns`. If such a step was not recorded, the
    next recorded step has a label. If a row stands for several steps, its label is the round number.
    """
    steps = [int(step) for step in frame["step"]]
    apart = max(1, int(round_distance((steps[-1] - steps[0] + 1) / max(1, columns // _TICK_COLUMNS))))
    labelled = (row for row in range(1, len(steps)) if steps[row] // apart > steps[row - 1] // apart)
    several = len(steps) == columns and steps[-1] - steps[0] > columns
    named = ((row, steps[row] // apart * apart if several else steps[row]) for row in labelled)
    return {0: f"step {steps[0]}"} | {row: str(step) for row, step in named}


def thinned(frame: pd.DataFrame, by: str, rows: int) -> pd.DataFrame:
    """Return at most `rows` rows of a table, keeping every spike.

    Consecutive rows are grouped; of each group, only the row with the largest value in column `by` is kept.
    """
    if len(frame) <= rows or rows <= 0:
        return frame
    edges = np.linspace(0, len(frame), rows + 1).astype(int)
    values = np.nan_to_num(frame[by].to_numpy(float), nan=-math.inf)
    return frame.iloc[[a + int(values[a:b].argmax()) for a, b in pairwise(edges)]]
