"""The pane that compares two recorded runs operation by operation.

It shows the first operation whose tensors differ, the tensors of both runs there, and differences by operation and
step.
"""

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

import pandas as pd
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from analyzers.parity import BisectData
from analyzers.parity.bisect_report import first_step, operation_table
from analyzers.run import Run
from analyzers.store import Options
from workbench.evidence_link import EvidenceLink
from workbench.present.parity_lines import operation_lines, step_lines
from workbench.present.tables.bisect import bisect_tables
from workbench.present.tables.bisect_operations import both_sides, tensors_of
from workbench.tui.background import ask_in_background
from workbench.tui.widgets.charts.line_chart import LineChart
from workbench.tui.widgets.tables import ROWS_AT_MOST, Grid, TableList
from workbench.tui.widgets.view_switcher import VIEW_KEYS, Drawing, ViewSwitcher

TITLES = {
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

    def __init__(self, data: BisectData, runs: tuple[Run, Run], options: Options) -> None:
        super().__init__()
        self._data, self._runs, self._options = data, runs, options
        self._table: pd.DataFrame | None = None
        self._step = 0

    def compose(self) -> ComposeResult:
        with Horizontal(id="bisect-top", classes="top"):
            yield LineChart(id="operations")
            yield LineChart(id="by-step")
        yield BisectViews(self._data)

    def on_mount(self) -> None:
        read = partial(operation_table, *self._runs, self._options, self._data.tolerance)
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
        """The steps that both runs recorded."""
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
        super().__init__(TITLES)
        self._data = data
        self._table, self._step = pd.DataFrame(), 0

    def widgets(self) -> Iterable[Widget]:
        """Yield the widget of each view in `TITLES`."""
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
        """Show the tables of step `step`; `table` has the tensors of both runs."""
        self._table, self._step = table, step
        self.load()
