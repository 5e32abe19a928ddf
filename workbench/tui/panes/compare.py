"""Two runs side by side: what was measured, what differs in their settings, who holds other memory, the losses."""

from collections.abc import Iterable
from typing import Any

from rich.text import Text
from textual.widget import Widget

from analyzers.memory import diff
from analyzers.run import Kind, Run
from analyzers.steps import views
from analyzers.store import Options
from workbench.ask import ROOMS
from workbench.present.sparkline import spark
from workbench.present.table import table
from workbench.present.tables.comparison import comparison_tables
from workbench.present.tables.snapshot import module_changes
from workbench.tui.widgets.row_list import Rows
from workbench.tui.widgets.tables import Grid
from workbench.tui.widgets.view_switcher import Readings

TITLES = {
    "measures": "what was measured",
    "memory": "who holds other memory at the peak of the fullest device",
    "losses": "loss over the steps",
    "settings": "settings that differ",
}
SPARK = 60


class ComparePane(Readings):
    """`a` is the first run, `b` the second."""

    def __init__(self, data: Any, runs: tuple[Run, Run], options: Options) -> None:
        super().__init__(TITLES)
        self._data, self._runs, self._options = data, runs, options

    def widgets(self) -> Iterable[Widget]:
        """A widget for each of `TITLES`."""
        rows = ((row.what, row.a, row.b) for row in self._data.config)
        yield Grid(comparison_tables(self._data)[0], id="measures")
        yield Grid(id="memory")
        yield Rows(Text(f"  {'from':>9} {'to':>9}", style="dim"), loss_line, id="losses")
        yield Grid(table("", "setting | a | b", rows, len(self._data.config)), id="settings")

    def ask(self, reading: str) -> tuple[Any, ...] | None:
        """Look up what the runs have in common."""
        if reading == "memory":
            return self._memory()
        if reading == "losses":
            return ([(name, self._loss(run)) for name, run in zip("ab", self._runs, strict=True)],)
        return None

    def _memory(self) -> tuple[Any, ...] | None:
        kept = [run.of(Kind.SNAPSHOT) for run in self._runs]
        if not all(kept):
            return None
        a, b = (diff.fullest(artefacts, self._options) for artefacts in kept)
        return (module_changes(diff.between(a, b, self._options)),)

    def _loss(self, run: Run) -> list[float]:
        logs = run.of(*ROOMS["steps"])
        if not logs:
            return []
        series = views.series(logs, self._options)
        return [float(value) for value in series.groupby("step")["loss"].max().dropna()]


def loss_line(item: tuple[str, list[float]]) -> Text:
    """A run's loss as numbers and as a line."""
    name, losses = item
    if not losses:
        return Text(f"{name}  no loss was logged")
    return Text(f"{name} {losses[0]:>9.4f} {losses[-1]:>9.4f}  {spark(losses, SPARK)}")
