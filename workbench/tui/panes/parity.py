"""The pane that compares runs of the same training on several meshes.

It shows curves by step, such as the loss, the differences between the runs, and the first tensors that differ.
"""

from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Static

from analyzers.parity.model import Curve, ParityData
from workbench.console import clean
from workbench.evidence_link import EvidenceLink
from workbench.present.parity_lines import curve_lines, difference_lines
from workbench.present.tables.parity import agreement, differences_of, first_values, steps_of
from workbench.tui.widgets.charts.line_chart import LineChart
from workbench.tui.widgets.tables import ROWS_AT_MOST, Grid, TableList
from workbench.tui.widgets.view_switcher import VIEW_KEYS, Drawing, ViewSwitcher

TITLES = {
    "first": "the first step, module and tensor that differ, and how far each run agrees",
    "differences": "relative difference from the first run by step",
    "values": "values by step",
}


class ParityPane(Vertical):
    """Two charts: a curve of each run, such as its loss by step, and the difference of each run from the first run.

    The keys `[` and `]` select another curve.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "Earlier", id="parity.left", show=False),
        Binding("right,l", "move(1)", "Later", id="parity.right", show=False),
        Binding("left_square_bracket", "curve(-1)", "Previous curve", id="parity.previous", show=False),
        Binding("right_square_bracket", "curve(1)", "Next curve", id="parity.next"),
        *VIEW_KEYS,
    ]

    def __init__(self, data: ParityData) -> None:
        super().__init__()
        self._data = data
        self._curve = 0

    def compose(self) -> ComposeResult:
        lines = curve_lines(self._data, Curve.LOSS)
        legend = Text("   ").join(
            Text.assemble((lines.sign(i), lines.colour(i)), f" {clean(name)}") for i, name in enumerate(lines.names)
        )
        yield Static(legend, id="parity-legend")
        with Horizontal(id="parity-top", classes="top"):
            yield LineChart(id="curve")
            yield LineChart(id="difference")
        yield ParityViews(self._data)

    def on_mount(self) -> None:
        self._show()

    def _show(self) -> None:
        """Draw the selected curve in both charts, and the tables below them."""
        curve = list(Curve)[self._curve]
        self.query_one("#curve", LineChart).show(curve_lines(self._data, curve))
        self.query_one("#difference", LineChart).show(difference_lines(self._data, curve))
        self.query_one(ParityViews).show_curve(curve)

    async def show_evidence(self, link: EvidenceLink) -> None:
        """Move the cursor to the finding's step, and show the first tensor that differs."""
        steps = list(curve_lines(self._data, Curve.LOSS).table.index)
        for chart in self.query(LineChart) if link.step in steps else ():
            chart.cursor = steps.index(link.step)
        await self.query_one(ParityViews).turn_to("first")

    def action_move(self, steps: int) -> None:
        for chart in self.query(LineChart):
            chart.move(steps)

    def action_curve(self, by: int) -> None:
        self._curve = (self._curve + by) % len(Curve)
        self._show()

    async def action_turn(self, by: int) -> None:
        await self.query_one(ParityViews).action_turn(by)


class ParityViews(ViewSwitcher):
    """The tables below the charts of a parity report."""

    TAKES_KEYS: ClassVar[bool] = False

    def __init__(self, data: ParityData) -> None:
        super().__init__(TITLES)
        self._data = data
        self._curve = Curve.LOSS

    def widgets(self) -> Iterable[Widget]:
        """Yield the widget of each view in `TITLES`."""
        yield TableList(
            [content for content in (first_values(self._data), agreement(self._data)) if content.rows], id="first"
        )
        yield Grid(id="differences")
        yield Grid(id="values")

    def ask(self, view: str) -> Drawing | None:
        """Compute the table of the view named `view` for the selected curve, and return a function that draws it.

        Return None for the view of the first tensor that differs: this view is drawn once, from the report.
        """
        tables = {"differences": differences_of, "values": steps_of}
        if view not in tables:
            return None
        content = tables[view](self._data, self._curve, ROWS_AT_MOST)
        return lambda: self.widget(view, Grid).show(content)

    def show_curve(self, curve: Curve) -> None:
        """Show the tables of `curve`."""
        self._curve = curve
        self.load()
