"""The pane that compares runs of the same training on several meshes.

It shows curves by step, such as the loss, the differences between the runs, and the first tensors that differ.
"""

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

import pandas as pd
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Static

from analyzers.parity import BisectData
from analyzers.parity.bisect_report import first_step, operation_table
from analyzers.parity.model import Curve, ParityData
from analyzers.report import Report
from workbench.console import clean
from workbench.present.parity_lines import curve_lines, difference_lines, operation_lines, step_lines
from workbench.present.tables.parity import (
    agreement,
    bisect_tables,
    both_sides,
    differences_of,
    first_values,
    steps_of,
    tensors_of,
)
from workbench.rooms import EvidenceLink
from workbench.tui.subject import Subject
from workbench.tui.widgets.line_chart import LineChart
from workbench.tui.widgets.tables import ROWS_AT_MOST, Grid, TableList
from workbench.tui.widgets.view_switcher import VIEW_KEYS, Drawing, ViewSwitcher, ask_in_background

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

    def __init__(self, data: ParityData, _subject: Subject, _report: Report[object]) -> None:
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
        self._curve = curve
        self.load()


# The pane that compares two recorded runs operation by operation.
#
# It shows the first operation whose tensors differ, the tensors of both runs there, and differences by operation and
# step.

_BISECT_TITLES = {
    "sides": "both sides of the first difference: inputs, outputs, and the tensors before and after it",
    "tensors": "all tensors of the step, in the order of computation",
    "first": "first tensors that differ, the runs, and what rounding allows",
}


class BisectPane(Vertical):
    """Two charts of the difference between two runs: by operation within one step, and by step.

    Tables of tensors are below the charts. The keys `[` and `]` select another step.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "Earlier", id="bisect.left", show=False),
        Binding("right,l", "move(1)", "Later", id="bisect.right", show=False),
        Binding("left_square_bracket", "step(-1)", "Previous step", id="bisect.previous", show=False),
        Binding("right_square_bracket", "step(1)", "Next step", id="bisect.next"),
        *VIEW_KEYS,
    ]

    def __init__(self, data: BisectData, subject: Subject, _report: Report[object]) -> None:
        super().__init__()
        self._data, self._subject = data, subject
        self._table: pd.DataFrame | None = None
        self._step = 0

    def compose(self) -> ComposeResult:
        with Horizontal(id="bisect-top", classes="top"):
            yield LineChart(id="operations")
            yield LineChart(id="by-step")
        yield BisectViews(self._data)

    def on_mount(self) -> None:
        (a, b), options = self._subject.runs, self._subject.options
        read = partial(operation_table, a, b, options, self._data.tolerance)
        ask_in_background(self, "operations", read, self._loaded)

    def _loaded(self, table: pd.DataFrame) -> None:
        self._table = table
        self._show(first_step(self._data, table))

    def _show(self, step: int) -> None:
        """Draw the charts with the cursor at the first difference, and show the tables of the step `step`."""
        if self._table is None:
            return
        self._step = step
        operations, by_step = self.query_one("#operations", LineChart), self.query_one("#by-step", LineChart)
        operations.show(operation_lines(self._table, step))
        by_step.show(step_lines(self._table))
        by_step.cursor = self._steps.index(step) if step in self._steps else 0
        operations.cursor = self._first_beyond(step)
        self.query_one(BisectViews).show_step(self._table, step)

    @property
    def _steps(self) -> list[int]:
        return [] if self._table is None else sorted(map(int, self._table["step"].unique()))

    def _first_beyond(self, step: int) -> int:
        """Return the index of the step's first tensor that differs by more than the tolerance; 0 if there is none."""
        assert self._table is not None
        rows = self._table[self._table["step"] == step]
        beyond = (rows["difference"] > rows["tolerance"]).to_numpy()
        return int(beyond.argmax()) if beyond.any() else 0

    async def show_evidence(self, link: EvidenceLink) -> None:
        """Show the step of the finding, and the tensors of both runs at the first difference."""
        if link.step in self._steps:
            self._show(int(link.step or 0))
        await self.query_one(BisectViews).turn_to("sides")

    def action_move(self, by: int) -> None:
        self.query_one("#operations", LineChart).move(by)

    def action_step(self, by: int) -> None:
        if steps := self._steps:
            at = steps.index(self._step) if self._step in steps else 0
            self._show(steps[(at + by) % len(steps)])

    async def action_turn(self, by: int) -> None:
        await self.query_one(BisectViews).action_turn(by)


class BisectViews(ViewSwitcher):
    """The tables below the charts of two recorded runs."""

    TAKES_KEYS: ClassVar[bool] = False

    def __init__(self, data: BisectData) -> None:
        super().__init__(_BISECT_TITLES)
        self._data = data
        self._table, self._step = pd.DataFrame(), 0

    def widgets(self) -> Iterable[Widget]:
        yield Grid(id="sides")
        yield Grid(id="tensors")
        yield TableList([content for content in bisect_tables(self._data) if content.rows], id="first")

    def ask(self, view: str) -> Drawing | None:
        """Compute the table of the view named `view`, and return a function that draws it.

        Return None if nothing must be drawn now. This is the case for the view that is drawn from the report alone, for
        all views until the tensors are read, and for the view of the first difference if the runs do not differ.
        """
        if view == "first" or self._table.empty or (view == "sides" and not self._data.first):
            return None
        if view == "sides" and self._data.first:
            return partial(self.widget(view, Grid).show, both_sides(self._table, self._data.first, ROWS_AT_MOST))
        return partial(self.widget(view, Grid).show, tensors_of(self._table, self._step, ROWS_AT_MOST))

    def show_step(self, table: pd.DataFrame, step: int) -> None:
        self._table, self._step = table, step
        self.load()
