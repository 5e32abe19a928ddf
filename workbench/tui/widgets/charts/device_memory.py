"""A chart of a traced device's memory over time: allocated memory, and above it reserved but unused memory."""

from collections.abc import Sequence
from typing import ClassVar

import pandas as pd
from textual.binding import Binding, BindingType

from analyzers.words import duration_ns, size
from workbench.colours import EVENT_KINDS
from workbench.tui.widgets.charts.axes import TimeZoom, Unit
from workbench.tui.widgets.charts.stacked_chart import StackedChart

COLOURS = {"allocated": EVENT_KINDS["memory"], "unallocated": EVENT_KINDS["idle"]}


class DeviceMemoryChart(StackedChart, TimeZoom):
    """A chart of a device's memory over time, as `traces.views.memory` returns it."""

    UNIT: ClassVar[Unit] = Unit.BYTES

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "Earlier", id="held.left", show=False),
        Binding("right,l", "move(1)", "Later", id="held.right", show=False),
        Binding("plus,equals_sign", "zoom(0.5)", "Zoom in", id="held.in"),
        Binding("minus", "zoom(2)", "Zoom out", id="held.out"),
        Binding("0", "zoom(0)", "Whole", id="held.reset"),
    ]

    def show(self, frame: pd.DataFrame, window: tuple[int, int] | None) -> None:
        """Draw the memory in the time range `window` (first, last) in ns; None means the whole recording."""
        unallocated = (frame["reserved"] - frame["allocated"]).clip(lower=0)
        width = int(frame["at_ns"].iloc[1] - frame["at_ns"].iloc[0]) if len(frame) > 1 else 1
        self.set_window(window, int(frame["at_ns"].max()) + width if len(frame) else 1)
        self.draw(frame.assign(unallocated=unallocated, top=frame["allocated"] + unallocated), COLOURS, "top")

    @property
    def highest(self) -> int:
        """The index of the row with the most allocated memory in the drawn table."""
        return int(self.instants["allocated"].to_numpy(int).argmax())

    @property
    def middle(self) -> int:
        """The time at the cursor in ns; a zoom makes it the middle of the chart."""
        return (
            int(self.instants["at_ns"].iloc[self.cursor]) if 0 <= self.cursor < len(self.instants) else super().middle
        )

    def action_move(self, columns: int) -> None:
        self.move(columns)

    def signs(self) -> dict[int, str]:
        """Return the mark above the chart as {index of a table row: sign}: `▼` over the peak."""
        return {self.highest: "▼"}

    def value_text(self, value: float) -> str:
        return size(int(value))

    def ruler(self) -> Sequence[str]:
        """Return the parts of the text below the chart: the memory at the cursor, and the peak."""
        row, top = self.instants.iloc[max(0, self.cursor)], size(int(self.instants["allocated"].max()))
        memory = _memory_text(int(row["allocated"]), int(row["reserved"]))
        return [f"{row['where']}, {duration_ns(int(row['at_ns']))}: {memory}", f"▼ {top}"]


def _memory_text(allocated: int, reserved: int) -> str:
    return f"{size(allocated)} allocated" + (f", {size(reserved)} reserved" if reserved else "")
