"""What the steps of a rank are made of, and other things that have a value a step."""

import math
from itertools import pairwise

import numpy as np
import pandas as pd

from analyzers.words import duration
from workbench.colours import PHASES, STATUSES
from workbench.tui.widgets.charts.stacked_chart import FAILURE, Stacked

REST = ("residual", "unknown")


class PhaseStack(Stacked):
    """Seconds by phase, a row a step, as `steps.views.phases` gives them for one rank, with the step's `dur_s`."""

    def show(self, frame: pd.DataFrame) -> None:
        """Draw other steps, the largest phase at the bottom."""
        names = [str(name) for name in frame.columns if name not in ("step", "dur_s", "tagged")]
        spent = frame[names].sum().to_dict()
        ranked = sorted(names, key=lambda name: (name in REST, -spent[name]))
        colours = {name: PHASES.get(name, PHASES["other"]) for name in ranked}
        self.draw(thinned(frame, "dur_s", self.size.width), colours, "dur_s")

    def signs(self) -> dict[int, str]:
        """`▼` over the longest step."""
        return {self.highest: "▼"}

    def ruler(self) -> str:
        """Which steps, and how long."""
        return ruler(self.instants, f"top {duration(float(self.instants['dur_s'].max()))}   ▼ longest  ┆ cursor")


class LossLine(Stacked):
    """The loss a step, from `steps.views.series`; its lowest value is the floor."""

    def show(self, frame: pd.DataFrame) -> None:
        """Draw another loss. Where it is not finite the highest that was is drawn, under a mark."""
        known = frame.dropna(subset="step")
        finite = known["loss"].replace([math.inf, -math.inf], math.nan)
        span = float(finite.max() - finite.min()) or 1.0
        height = ((finite - finite.min()) / span + 0.05).fillna(0.0)
        drawn = known.assign(height=height, broken=known["broken"])
        self.draw(thinned(drawn, "height", self.size.width), {"height": STATUSES["ok"]}, "height")

    def signs(self) -> dict[int, str]:
        """`✗` over what is not finite."""
        return dict.fromkeys(np.flatnonzero(self.instants["broken"].to_numpy(bool)).tolist(), FAILURE)

    def ruler(self) -> str:
        """Which steps, and between which values."""
        losses = self.instants["loss"]
        return ruler(self.instants, f"loss {losses.min():.4f} … {losses.max():.4f}   {FAILURE} not finite  ┆ cursor")


def ruler(frame: pd.DataFrame, told: str) -> str:
    return f"step {int(frame['step'].iloc[0])} … {int(frame['step'].iloc[-1])}   {told}"


def thinned(frame: pd.DataFrame, by: str, rows: int) -> pd.DataFrame:
    """At most so many rows; of each stretch the one with the largest `by`, so that every spike survives."""
    if len(frame) <= rows or rows <= 0:
        return frame
    edges = np.linspace(0, len(frame), rows + 1).astype(int)
    values = np.nan_to_num(frame[by].to_numpy(float), nan=-math.inf)
    return frame.iloc[[a + int(values[a:b].argmax()) for a, b in pairwise(edges)]]
