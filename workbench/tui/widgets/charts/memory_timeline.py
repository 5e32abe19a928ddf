"""Memory over time as stacked layers: one per category, pool, stream or phase, with the peak and failures marked."""

import numpy as np
import pandas as pd

from analyzers.words import size
from workbench.colours import CATEGORIES, nth_colour
from workbench.console import clean
from workbench.tui.widgets.charts.stacked_chart import FAILURE, StackedChart


class MemoryTimeline(StackedChart):
    """A timeline by category, as `memory.views.timeline` returns it."""

    def show(self, frame: pd.DataFrame) -> None:
        """Draw a timeline; the cursor goes to its last failed allocation, else to its peak."""
        self.draw(frame, CATEGORIES, "allocated")
        self.cursor = max(self.failed, default=self.cursor)

    @property
    def failed(self) -> list[int]:
        """The rows of failed allocations."""
        return [int(row) for row in np.flatnonzero(self.instants["oom"].to_numpy())]

    def entry_at_cursor(self) -> int | None:
        """Return the trace entry under the cursor; None before there is a timeline."""
        return int(self.instants["entry"].iloc[self.cursor]) if 0 <= self.cursor < len(self.instants) else None

    def signs(self) -> dict[int, str]:
        """Return the marks above the chart by column: `▼` over the peak, `✗` over a failed allocation."""
        return {self.highest: "▼"} | dict.fromkeys(self.failed, FAILURE)

    def ruler(self) -> str:
        """Return the range of entries, the height of the chart, and what the signs mean."""
        first, last = int(self.instants["entry"].iloc[0]), int(self.instants["entry"].iloc[-1])
        top = size(int(self.instants["allocated"].max()))
        return f"entry {first} … {last}   top {top}   ▼ peak  {FAILURE} allocation failed  ┆ cursor"


class AllocatedByTimeline(StackedChart):
    """A timeline by pool, stream or phase, as `memory.views.timeline_by` returns it."""

    def show(self, frame: pd.DataFrame) -> None:
        """Draw a timeline."""
        names = [str(name) for name in frame.columns if name not in ("entry", "time_us", "allocated")]
        self.draw(frame, {name: nth_colour(number) for number, name in enumerate(names)}, "allocated")

    def signs(self) -> dict[int, str]:
        """Return `▼` over the peak."""
        return {self.highest: "▼"}

    def ruler(self) -> str:
        """Return what each pool, stream or phase holds at the cursor, the lowest layer first."""
        row = self.instants.iloc[max(0, self.cursor)]
        parts = "   ".join(f"{clean(name)} {size(int(row[name]))}" for name in self.names)
        return f"entry {int(row['entry'])}: {size(int(row['allocated']))} = {parts}"
