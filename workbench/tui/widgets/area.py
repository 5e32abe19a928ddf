"""Memory over time: what every category holds, the peak and the failure marked."""

import numpy as np
import pandas as pd

from workbench.palette import CATEGORIES
from workbench.present.units import size
from workbench.tui.widgets.stacked import FAILURE, Stacked


class Area(Stacked):
    """A timeline as `memory.views.timeline` gives it."""

    def show(self, frame: pd.DataFrame) -> None:
        """Draw another timeline; the cursor goes to its peak."""
        self.draw(frame, CATEGORIES, "allocated")

    def entry_at_cursor(self) -> int | None:
        """The trace entry under the cursor; None before there is a timeline."""
        return int(self.instants["entry"].iloc[self.cursor]) if 0 <= self.cursor < len(self.instants) else None

    def signs(self) -> dict[int, str]:
        """`▼` over the peak, `✗` over a failed allocation."""
        failed = np.flatnonzero(self.instants["oom"].to_numpy(bool)).tolist()
        return {self.highest: "▼"} | dict.fromkeys(failed, FAILURE)

    def ruler(self) -> str:
        """Which entries, and how high."""
        first, last = int(self.instants["entry"].iloc[0]), int(self.instants["entry"].iloc[-1])
        top = size(int(self.instants["allocated"].max()))
        return f"entry {first} … {last}   top {top}   ▼ peak  {FAILURE} allocation failed  ┆ cursor"
