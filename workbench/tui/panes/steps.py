"""Where the time of the steps goes, rank by rank, and what became of the loss."""

from collections.abc import Iterable
from typing import Any, ClassVar

import pandas as pd
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Static

from analyzers.run import Run
from analyzers.steps import views
from analyzers.store import Options
from analyzers.words import duration
from workbench.ask import ROOMS
from workbench.colours import PHASES
from workbench.evidence_link import EvidenceLink
from workbench.present.sparkline import spark
from workbench.present.tables.steps import steps_tables as tables_of
from workbench.tui.background import ask_aside
from workbench.tui.widgets.charts.cursor_breakdown import Part, Parts
from workbench.tui.widgets.charts.step_charts import LossLine, PhaseStack
from workbench.tui.widgets.row_list import Rows
from workbench.tui.widgets.tables import Sections
from workbench.tui.widgets.view_switcher import TURNS, Readings

TITLES = {
    "tables": "who is late, and what a step of each rank is made of",
    "times": "duration of the steps, a line a rank",
    "loss": "loss",
}
SPARK = 60
HEAD = f"{'rank':>6} {'fastest':>9} {'median':>9} {'slowest':>9}  steps"


class StepsPane(Vertical):
    """Phases of one rank's steps above, all ranks below. `[` and `]` change the rank; a straggler comes first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "Earlier", id="steps.left", show=False),
        Binding("right,l", "move(1)", "Later", id="steps.right", show=False),
        Binding("left_square_bracket", "rank(-1)", "Previous rank", id="steps.previous", show=False),
        Binding("right_square_bracket", "rank(1)", "Next rank", id="steps.next"),
        *TURNS,
    ]

    def __init__(self, data: Any, run: Run, options: Options) -> None:
        super().__init__()
        self._data, self._options = data, options
        self._logs = run.of(*ROOMS["steps"])
        self._ranks = [one.rank for one in data.ranks]
        self._at = self._ranks.index(data.stragglers[0].rank) if data.stragglers else 0

    def compose(self) -> ComposeResult:
        yield Static(id="steps-title")
        with Horizontal(id="steps-top", classes="top"):
            yield PhaseStack(id="phases")
            yield Parts(id="step")
        yield Compared(self._data, self._logs, self._options)

    def on_mount(self) -> None:
        self._turn()

    def on_resize(self) -> None:
        self._load()

    def _turn(self) -> None:
        mine = self._data.ranks[self._at]
        late = [one for one in self._data.stragglers if one.rank == mine.rank]
        told = f"rank {mine.rank} ({self._at + 1} of {len(self._ranks)})   median {duration(mine.median_step_s)} a step"
        told += "".join(f"   late by {duration(one.lateness_s)}: {one.cause}" for one in late)
        self.query_one("#steps-title", Static).update(Text(told, style="bold"))
        self._load()

    def _load(self) -> None:
        rank = self._ranks[self._at]
        ask_aside(self, "phases", lambda: self._phases(rank), self.query_one(PhaseStack).show)

    def _phases(self, rank: int) -> pd.DataFrame:
        """Seconds by phase of a rank's steps, with step and `dur_s`."""
        frame = views.phases(self._logs, self._options, rank)
        steps = frame.index.get_level_values("step")
        return (
            frame.clip(lower=0)
            .assign(step=steps.to_numpy(), dur_s=frame.clip(lower=0).sum(axis=1))
            .reset_index(drop=True)
        )

    def on_stacked_moved(self, event: PhaseStack.Moved) -> None:
        """Tell the step under the cursor."""
        if isinstance(event.area, PhaseStack):
            phases = (name for name in event.row if name not in ("step", "dur_s"))
            parts = [Part(name, float(event.row[name]), PHASES.get(name, PHASES["other"])) for name in phases]
            head = f"step {int(event.row['step'])}   {duration(float(event.row['dur_s']))}"
            self.query_one(Parts).show(head, parts, duration)

    async def look(self, at: EvidenceLink) -> None:
        """Show the rank, and its times or the loss."""
        self._at = self._ranks.index(at.rank) if at.rank in self._ranks else self._at
        self._turn()
        await self.query_one(Compared).turn_to(at.part if at.part in TITLES else "tables")

    def action_move(self, rows: int) -> None:
        self.query_one(PhaseStack).move(rows)

    def action_rank(self, by: int) -> None:
        self._at = (self._at + by) % len(self._ranks)
        self._turn()

    async def action_reading(self, by: int) -> None:
        await self.query_one(Compared).action_reading(by)


class Compared(Readings):
    """All ranks: tables, durations, loss."""

    TAKES_KEYS: ClassVar[bool] = False

    def __init__(self, data: Any, logs: Any, options: Options) -> None:
        super().__init__(TITLES)
        self._data, self._logs, self._options = data, logs, options

    def widgets(self) -> Iterable[Widget]:
        """Tables, times, loss."""
        yield Sections([section for section in tables_of(self._data) if section.rows], id="tables")
        yield Rows(Text(HEAD, style="dim"), times_line, id="times")
        yield LossLine(id="loss")

    def ask(self, reading: str) -> tuple[Any, ...] | None:
        """Look up the series of all ranks."""
        if reading == "tables":
            return None
        series = views.series(self._logs, self._options)
        if reading == "times":
            return ([(int(str(rank)), times["dur_s"].dropna().tolist()) for rank, times in series.groupby("rank")],)
        return (losses(series, self._data.first_nonfinite_step),)


def losses(series: pd.DataFrame, nonfinite: int | None) -> pd.DataFrame:
    """step, loss and whether it was broken, a row a step."""
    loss = series.groupby("step")["loss"].max().reset_index()
    broken = loss["loss"].isna() & (loss["step"] >= nonfinite) if nonfinite is not None else False
    return loss.assign(broken=broken)


def times_line(item: tuple[int, list[float]]) -> Text:
    """A rank's durations as numbers and as a line."""
    rank, times = item
    if not times:
        return Text(f"{rank:>6}  no step is timed")
    middle = sorted(times)[len(times) // 2]
    told = "".join(f" {duration(value):>9}" for value in (min(times), middle, max(times)))
    return Text(f"{rank:>6}{told}  {spark(times, SPARK)}")
