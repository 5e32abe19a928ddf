"""Memory over time: what every category, pool or stream holds, the peak and the failure marked."""

import numpy as np
import pandas as pd

from analyzers.words import size
from workbench.colours import CATEGORIES, nth_colour
from workbench.console import clean
from workbench.tui.widgets.charts.stacked_chart import FAILURE, Stacked


class Area(Stacked):
    """A timeline as `memory.views.timeline` gives it."""

    def show(self, frame: pd.DataFrame) -> None:
        """Draw another timeline; the cursor goes to its last failed allocation, else to its peak."""
        self.draw(frame, CATEGORIES, "allocated")
        self.cursor = max(self.failed, default=self.cursor)

    @property
    def failed(self) -> list[int]:
        """The rows of failed allocations."""
        rows: list[int] = np.flatnonzero(self.instants["oom"].to_numpy()).tolist()
        return rows

    def entry_at_cursor(self) -> int | None:
        """The trace entry under the cursor; None before there is a timeline."""
        return int(self.instants["entry"].iloc[self.cursor]) if 0 <= self.cursor < len(self.instants) else None

    def signs(self) -> dict[int, str]:
        """`▼` over the peak, `✗` over a failed allocation."""
        return {self.highest: "▼"} | dict.fromkeys(self.failed, FAILURE)

    def ruler(self) -> str:
        """Which entries, and how high."""
        first, last = int(self.instants["entry"].iloc[0]), int(self.instants["entry"].iloc[-1])
        top = size(int(self.instants["allocated"].max()))
        return f"entry {first} … {last}   top {top}   ▼ peak  {FAILURE} allocation failed  ┆ cursor"


class PlaceArea(Stacked):
    """A timeline by pool or stream as `memory.views.timeline_by` gives it."""

    def show(self, frame: pd.DataFrame) -> None:
        """Draw another timeline."""
        places = [str(name) for name in frame.columns if name not in ("entry", "time_us", "allocated")]
        self.draw(frame, {name: nth_colour(number) for number, name in enumerate(places)}, "allocated")

    def signs(self) -> dict[int, str]:
        """`▼` over the peak."""
        return {self.highest: "▼"}

    def ruler(self) -> str:
        """What every place holds at the cursor, the lowest layer first."""
        row = self.instants.iloc[max(0, self.cursor)]
        held = "   ".join(f"{clean(name)} {size(int(row[name]))}" for name in self.names)
        return f"entry {int(row['entry'])}: {size(int(row['allocated']))} = {held}"
