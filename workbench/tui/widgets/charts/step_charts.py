"""Charts with a column per step: the phases of a rank's steps, and the loss."""

import math
from itertools import pairwise

import numpy as np
import pandas as pd

from analyzers.words import duration
from workbench.colours import PHASES, STATUSES
from workbench.tui.widgets.charts.stacked_chart import FAILURE, StackedChart

UNNAMED = ("residual", "unknown")
"""Time that no phase accounts for: drawn on top."""


class PhaseChart(StackedChart):
    """A chart of the phases of one rank's steps, in seconds, from `steps.views.phases` and the steps' `dur_s`."""

    def show(self, frame: pd.DataFrame) -> None:
        """Draw these steps, with the largest phase at the bottom."""
        names = [str(name) for name in frame.columns if name not in ("step", "dur_s", "tagged")]
        spent = frame[names].sum().to_dict()
        ranked = sorted(names, key=lambda name: (name in UNNAMED, -spent[name]))
        colours = {name: PHASES.get(name, PHASES["other"]) for name in ranked}
        self.draw(thinned(frame, "dur_s", self.size.width), colours, "dur_s")

    def signs(self) -> dict[int, str]:
        """Return the mark above the chart as {row: sign}: `▼` over the longest step."""
        return {self.highest: "▼"}

    def ruler(self) -> str:
        """Return the line below the chart: the range of steps, the chart's height, and the meaning of the signs."""
        return ruler(self.instants, f"top {duration(float(self.instants['dur_s'].max()))}   ▼ longest  ┆ cursor")


class LossChart(StackedChart):
    """A chart of the loss of each step, from `steps.views.series`; the bottom of the chart is the lowest loss."""

    def show(self, frame: pd.DataFrame) -> None:
        """Draw the losses in a table; a step whose loss is not finite has a mark instead."""
        known = frame.dropna(subset="step")
        finite = known["loss"].replace([math.inf, -math.inf], math.nan)
        span = float(finite.max() - finite.min()) or 1.0
        height = ((finite - finite.min()) / span + 0.05).fillna(0.0)
        drawn = known.assign(height=height, broken=known["broken"])
        self.draw(thinned(drawn, "height", self.size.width), {"height": STATUSES["ok"]}, "height")

    def signs(self) -> dict[int, str]:
        """Return the marks above the chart as {row: sign}: `✗` over steps whose loss is not finite."""
        return {int(row): FAILURE for row in np.flatnonzero(self.instants["broken"].to_numpy(bool))}

    def ruler(self) -> str:
        """Return the line below the chart: the ranges of steps and of the loss, and the meaning of the signs."""
        losses = self.instants["loss"]
        return ruler(self.instants, f"loss {losses.min():.4f} … {losses.max():.4f}   {FAILURE} not finite  ┆ cursor")


def ruler(frame: pd.DataFrame, legend: str) -> str:
    return f"step {int(frame['step'].iloc[0])} … {int(frame['step'].iloc[-1])}   {legend}"


def thinned(frame: pd.DataFrame, by: str, rows: int) -> pd.DataFrame:
    """Return at most `rows` rows of a table, keeping every spike.

    Of each group of consecutive rows, the row with the largest value in column `by` is kept.
    """
    if len(frame) <= rows or rows <= 0:
        return frame
    edges = np.linspace(0, len(frame), rows + 1).astype(int)
    values = np.nan_to_num(frame[by].to_numpy(float), nan=-math.inf)
    return frame.iloc[[a + int(values[a:b].argmax()) for a, b in pairwise(edges)]]
