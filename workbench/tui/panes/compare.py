"""The pane that compares two runs: measures, memory at the peak, losses, and settings that differ."""

from collections.abc import Iterable
from functools import partial
from typing import Unpack

from rich.text import Text
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Static

from analyzers.compare import CompareData
from analyzers.memory import diff
from analyzers.report import Report
from analyzers.run import TIMED, Kind, Run
from analyzers.steps import views
from workbench.present.figure import spark
from workbench.present.table import table
from workbench.present.tables.comparison import comparison_tables, step_changes, waterfall_lines
from workbench.present.tables.memory import module_changes
from workbench.tui.subject import Subject
from workbench.tui.widgets.common import WidgetOptions, call_on_new_size
from workbench.tui.widgets.tables import Grid, RowList
from workbench.tui.widgets.view_switcher import Drawing, ViewSwitcher

TITLES = {
    "measures": "measures of both runs",
    "phases": "how the mean step changed, by phase",
    "memory": "memory by module at the peak of the fullest device",
    "losses": "loss over the steps",
    "settings": "settings that differ",
}
_SPARK_WIDTH = 60
CAPTION = "How the mean step changed, by phase"


class ComparePane(ViewSwitcher):
    """The views of a comparison of run `a` with run `b`."""

    def __init__(self, data: CompareData, subject: Subject, _report: Report[object]) -> None:
        super().__init__({view: title for view, title in TITLES.items() if view != "phases" or data.phases})
        self._data, self._runs, self._options = data, subject.runs, subject.options

    def widgets(self) -> Iterable[Widget]:
        """Yield the widget of each view in `TITLES`."""
        rows = ((row.what, row.a, row.b) for row in self._data.config)
        with_phases = [Waterfall(self._data, CAPTION)] if self._data.phases else []
        yield Horizontal(Grid(comparison_tables(self._data)[0]), *with_phases, id="measures")
        yield Waterfall(self._data, id="phases")
        yield Grid(id="memory")
        yield RowList[tuple[str, list[float]]](Text(f"  {'from':>9} {'to':>9}", style="dim"), _loss_line, id="losses")
        yield Grid(table("", "setting | A | B", rows, len(self._data.config)), id="settings")

    def ask(self, view: str) -> Drawing | None:
        """Compute the content of the view named `view`, and return a function that draws it.

        Return None for views that are drawn from the report alone. Also return None for the memory views if a run has
        no snapshot.
        """
        if view == "memory":
            return self._memory()
        if view == "losses":
            losses = [(name, self._loss(run)) for name, run in zip("ab", self._runs, strict=True)]
            return partial(self.widget("losses", RowList).show, losses)
        return None

    def _memory(self) -> Drawing | None:
        snapshots = [run.of(Kind.SNAPSHOT) for run in self._runs]
        if not all(snapshots):
            return None
        a, b = (diff.fullest(artefacts, self._options) for artefacts in snapshots)
        return partial(self.widget("memory", Grid).show, module_changes(diff.between(a, b, self._options)))

    def _loss(self, run: Run) -> list[float]:
        logs = run.of(*TIMED)
        if not logs:
            return []
        series = views.series(logs, self._options)
        return [float(value) for value in series.groupby("step")["loss"].max().dropna()]


class Waterfall(Static, can_focus=True):
    """A waterfall chart of how the mean step of run A becomes that of run B; each bar is the change of a phase.

    The chart can take the focus where it fills a view: the keys of the pane work only if a widget inside has the focus.
    """

    def __init__(self, data: CompareData, caption: str = "", **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self._changes, self._caption = step_changes(data), caption
        self.can_focus = not caption

    def on_mount(self) -> None:
        call_on_new_size(self, self._draw)

    def _draw(self) -> None:
        lines = waterfall_lines(*self._changes, self.content_size.width)
        self.update(Text("\n").join([*([Text(self._caption, style="bold")] if self._caption else []), *lines]))


def _loss_line(item: tuple[str, list[float]]) -> Text:
    """Return a run's line in the list of losses: its first and last loss, and a sparkline."""
    name, losses = item
    if not losses:
        return Text(f"{name}  no loss recorded")
    return Text(f"{name} {losses[0]:>9.4f} {losses[-1]:>9.4f}  {spark(losses, _SPARK_WIDTH)}")
