"""Memory of a traced device over time: what was allocated, and above it what was reserved beyond."""

from typing import Any, ClassVar

import pandas as pd
from textual.binding import Binding, BindingType

from analyzers.words import duration_ns, size
from workbench.colours import EVENT_KINDS
from workbench.tui.widgets.charts.stacked_chart import Stacked
from workbench.tui.widgets.charts.time_zoom import Zoomed

COLOURS = {"allocated": EVENT_KINDS["memory"], "beyond": EVENT_KINDS["idle"]}


class Held(Stacked, Zoomed):
    """One device of `traces.views.memory`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "Earlier", id="held.left", show=False),
        Binding("right,l", "move(1)", "Later", id="held.right", show=False),
        Binding("plus,equals_sign", "zoom(0.5)", "Zoom in", id="held.in"),
        Binding("minus", "zoom(2)", "Zoom out", id="held.out"),
        Binding("0", "zoom(0)", "Whole", id="held.reset"),
    ]

    def show(self, mine: pd.DataFrame, window: tuple[int, int] | None) -> None:
        """Draw a window; all of time where it is None."""
        beyond = (mine["reserved"] - mine["allocated"]).clip(lower=0)
        width = int(mine["at_ns"].iloc[1] - mine["at_ns"].iloc[0]) if len(mine) > 1 else 1
        self.settle(window, int(mine["at_ns"].max()) + width if len(mine) else 1)
        self.draw(mine.assign(beyond=beyond, top=mine["allocated"] + beyond), COLOURS, "top")

    @property
    def highest(self) -> int:
        """Where most is allocated."""
        return int(self.instants["allocated"].to_numpy(int).argmax())

    @property
    def middle(self) -> int:
        """The moment at the cursor."""
        return (
            int(self.instants["at_ns"].iloc[self.cursor]) if 0 <= self.cursor < len(self.instants) else super().middle
        )

    def action_move(self, columns: int) -> None:
        self.move(columns)

    def signs(self) -> dict[int, str]:
        """`▼` over the peak."""
        return {self.highest: "▼"}

    def ruler(self) -> str:
        """What the device held at the cursor and at most."""
        row, top = self.instants.iloc[max(0, self.cursor)], size(int(self.instants["allocated"].max()))
        return f"{row['where']}, {duration_ns(int(row['at_ns']))}: {told(row)}   ▼ {top}  ┆ cursor"


def told(row: Any) -> str:
    reserved = f", {size(int(row['reserved']))} reserved" if row["reserved"] else ""
    return f"{size(int(row['allocated']))} allocated{reserved}"
