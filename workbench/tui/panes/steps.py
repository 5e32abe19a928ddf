"""The pane for step logs: time by phase and rank, and the loss."""

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import ClassVar, NamedTuple

import pandas as pd
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Static

from analyzers.memory import views as memory_views
from analyzers.report import Report
from analyzers.run import TIMED, Artefact
from analyzers.steps import StepsData, views
from analyzers.store import Options
from analyzers.words import duration
from workbench.axes import StepMarks
from workbench.colours import phase_colour
from workbench.present.figure import spark
from workbench.present.table import phase_title
from workbench.present.tables.steps import steps_tables
from workbench.rooms import EvidenceLink
from workbench.tui.picker import pick
from workbench.tui.subject import Subject
from workbench.tui.widgets.common import call_on_new_size
from workbench.tui.widgets.line_chart import LossChart, PhaseChart
from workbench.tui.widgets.memory_timeline import CursorBreakdown, Part, StepStart
from workbench.tui.widgets.tables import RowList, TableList
from workbench.tui.widgets.view_switcher import VIEW_KEYS, Drawing, ViewSwitcher, ask_in_background


def phases_by_step(logs: Sequence[Artefact], options: Options, rank: int) -> pd.DataFrame:
    """Return a table with a row per step of a rank: seconds in each phase, step number, and duration `dur_s`."""
    frame = views.phases(logs, options, rank)
    steps = frame.index.get_level_values("step")
    return (
        frame.clip(lower=0).assign(step=steps.to_numpy(), dur_s=frame.clip(lower=0).sum(axis=1)).reset_index(drop=True)
    )


def losses(series: pd.DataFrame, first_nonfinite_step: int | None) -> pd.DataFrame:
    """Return a table with the columns `step`, `loss` (highest of all ranks) and `broken` (loss is NaN or infinite).

    A step without a loss counts as broken from step `first_nonfinite_step` on. Before that step, or if there is no such
    step (None), its loss was only not logged.
    """
    loss = series.groupby("step")["loss"].max().reset_index()
    if first_nonfinite_step is None:
        return loss.assign(broken=False)
    # A step before the first broken one may lack a loss because it was not logged.
    return loss.assign(broken=loss["loss"].isna() & (loss["step"] >= first_nonfinite_step))


TITLES = {
    "tables": "stragglers, and what a step of each rank consists of",
    "times": "duration of the steps, one line per rank",
    "loss": "loss",
}
_SPARK_WIDTH = 60
_TIMES_HEAD = f"{'rank':>6} {'fastest':>9} {'median':>9} {'slowest':>9}  steps"


class StepsPane(Vertical):
    """A chart of the phases of one rank's steps, above views of all ranks.

    The keys `[` and `]` change the rank. The rank that is shown first is a straggler, for which the others wait.
    Without stragglers, it is one of the ranks that the verdict names.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "Earlier", id="steps.left", show=False),
        Binding("right,l", "move(1)", "Later", id="steps.right", show=False),
        Binding("left_square_bracket", "rank(-1)", "Previous rank", id="steps.previous", show=False),
        Binding("right_square_bracket", "rank(1)", "Next rank", id="steps.next"),
        Binding("p", "pick", "Pick rank", id="steps.pick"),
        Binding("s", "pick_step", "Go to step", id="steps.step"),
        *VIEW_KEYS,
    ]

    def __init__(self, data: StepsData, subject: Subject, report: Report[object]) -> None:
        super().__init__()
        self._data, self._options = data, subject.options
        self._logs = subject.runs[0].of(*TIMED)
        self._ranks = [rank.rank for rank in data.ranks]
        named = (*(straggler.rank for straggler in data.stragglers), *report.verdict.ranks)
        self._at = next((self._ranks.index(rank) for rank in named if rank in self._ranks), 0)

    def compose(self) -> ComposeResult:
        yield Static(id="steps-title")
        with Horizontal(id="steps-top", classes="top"):
            yield PhaseChart(id="phases")
            yield CursorBreakdown(id="step")
        yield StepsViews(self._data, self._logs, self._options)

    def on_mount(self) -> None:
        self._show_rank()
        call_on_new_size(self, self._load)

    def _show_rank(self) -> None:
        title = self._title(self._at).replace("   ", f" ({self._at + 1} of {len(self._ranks)})   ", 1)
        self.query_one("#steps-title", Static).update(Text(title, style="bold"))
        self._load()

    def _title(self, at: int) -> str:
        rank = self._data.ranks[at]
        late = (straggler for straggler in self._data.stragglers if straggler.rank == rank.rank)
        lateness = "".join(f"   late by {duration(straggler.lateness_s)}: {straggler.cause}" for straggler in late)
        return f"rank {rank.rank}   median {duration(rank.median_step_s)} per step{lateness}"

    def _load(self) -> None:
        rank = self._ranks[self._at]
        ask_in_background(
            self, "phases", lambda: phases_by_step(self._logs, self._options, rank), self.query_one(PhaseChart).show
        )

    def on_stacked_chart_moved(self, event: PhaseChart.Moved) -> None:
        if isinstance(event.chart, PhaseChart):
            names = (name for name in event.row if name not in ("step", "dur_s"))
            parts = [Part(phase_title(name), event.row[name], phase_colour(name)) for name in names]
            head = f"step {int(event.row['step'])}   {duration(event.row['dur_s'])}"
            self.query_one(CursorBreakdown).show(head, parts, duration)

    async def show_evidence(self, link: EvidenceLink) -> None:
        self._at = self._ranks.index(link.rank) if link.rank in self._ranks else self._at
        self._show_rank()
        await self.query_one(StepsViews).turn_to(link.part if link.part in TITLES else "tables")

    def action_move(self, rows: int) -> None:
        self.query_one(PhaseChart).move(rows)

    def action_rank(self, by: int) -> None:
        self._at = (self._at + by) % len(self._ranks)
        self._show_rank()

    def action_pick(self) -> None:
        def show(index: int) -> None:
            self._at = index
            self._show_rank()

        pick(self, "rank", [self._title(at) for at in range(len(self._ranks))], self._at, show)

    def action_pick_step(self) -> None:
        chart = self.query_one(PhaseChart)
        steps = zip(chart.instants["step"], chart.instants["dur_s"], strict=True) if len(chart.instants) else ()
        texts = [f"step {int(step)}   {duration(float(seconds))}" for step, seconds in steps]
        pick(self, "step", texts, chart.cursor, lambda index: chart.move(index - chart.cursor))

    async def action_turn(self, by: int) -> None:
        await self.query_one(StepsViews).action_turn(by)


class StepsViews(ViewSwitcher):
    TAKES_KEYS: ClassVar[bool] = False

    def __init__(self, data: StepsData, logs: Sequence[Artefact], options: Options) -> None:
        super().__init__(TITLES)
        self._data, self._logs, self._options = data, logs, options

    def widgets(self) -> Iterable[Widget]:
        yield TableList([content for content in steps_tables(self._data) if content.rows], id="tables")
        yield RowList[tuple[int, list[float]]](Text(_TIMES_HEAD, style="dim"), _times_line, id="times")
        yield LossChart(id="loss")

    def ask(self, view: str) -> Drawing | None:
        """Read the step logs of all ranks for the view named `view`, and return a function that draws it.

        Return None for the tables, which are drawn from the report.
        """
        if view == "tables":
            return None
        series = views.series(self._logs, self._options)
        if view == "times":
            times = [(int(str(rank)), rows["dur_s"].dropna().tolist()) for rank, rows in series.groupby("rank")]
            return partial(self.widget(view, RowList).show, times)
        return partial(self.widget(view, LossChart).show, losses(series, self._data.first_nonfinite_step))


def _times_line(item: tuple[int, list[float]]) -> Text:
    """Return a rank's line in the list of step durations: shortest, median, longest, and a sparkline.

    `item` is (rank, durations of its steps in seconds).
    """
    rank, times = item
    if not times:
        return Text(f"{rank:>6}  no step has a duration")
    middle = sorted(times)[len(times) // 2]
    numbers = "".join(f" {duration(value):>9}" for value in (min(times), middle, max(times)))
    return Text(f"{rank:>6}{numbers}  {spark(times, _SPARK_WIDTH)}")


class TimelineOfSteps(NamedTuple):
    """The rows of a memory timeline (see `memory.views.timeline`), and the trace entry at which each step begins."""

    instants: pd.DataFrame
    steps: list[StepStart]


def step_timeline(
    artefact: Artefact, options: Options, device: int, columns: int, window: tuple[int, int] | None = None
) -> TimelineOfSteps:
    """Return the memory of a device over time in at most `columns` rows, and the trace entry of each step's start.

    `window` is the range of trace entries (first, end); None means all.

    Raises:
        WorkbenchError: The snapshot cannot be read.
    """
    instants = memory_views.timeline(artefact, options, device=device, buckets=columns, window=window)
    return TimelineOfSteps(instants, _step_starts(artefact, options, device))


@lru_cache(maxsize=64)
def _step_starts(artefact: Artefact, options: Options, device: int) -> list[StepStart]:
    """Return the trace entry at which each step begins; the result is cached, because a zoom needs it again."""
    starts = StepMarks.of(memory_views.clock(artefact, options, device)).starts()
    return [StepStart(step, int(entry)) for step, entry in starts]
