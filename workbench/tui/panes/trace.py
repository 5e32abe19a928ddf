"""The pane for traces: a bar for the time of each rank, and below it kernels, waits, steps, events and calls."""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import ClassVar

import pandas as pd
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static

from analyzers.report import Report
from analyzers.run import Kind, Run
from analyzers.store import Options
from analyzers.traces import RankTrace, TraceData, critical_parts, views
from analyzers.words import duration_ns, share, shortened
from workbench.colours import EVENT_KIND_SIGNS, EVENT_KINDS, text_colour
from workbench.present.table import Table, filled, table
from workbench.present.tables.trace import (
    CALLS_BY,
    critical_path,
    opportunities,
    rank_tables,
    step_numbers,
    waiting_tables,
    what_if,
    why_no_waits,
)
from workbench.present.tables.trace_rank import device_name
from workbench.rooms import EvidenceLink
from workbench.tui.picker import pick
from workbench.tui.subject import Subject
from workbench.tui.widgets.axes import TimeZoom
from workbench.tui.widgets.gantt import DeviceMemoryChart, Gantt
from workbench.tui.widgets.stacked_chart import AXIS_WIDTH
from workbench.tui.widgets.tables import ChangingTableList, Grid, RowList, TableList, highest_lines
from workbench.tui.widgets.trees import CallTree
from workbench.tui.widgets.view_switcher import VIEW_KEYS, Drawing, ViewSwitcher

TITLES = {
    "kernels": "longest kernels",
    "events": "events",
    "calls": "calls by",
    "waits": "how long each rank waits for others, and in which collectives",
    "steps": "profiled steps",
    "opportunities": "opportunities, in the best case",
    "critical": "critical path of the last step",
    "held": "memory over time",
    "tables": "all tables",
}
BAR_HEADS = Text(f"{'rank':>6} {'step':>6} {'span':>9}", style="dim")
BARS_AT_MOST = 8
_HEAD_LINES = 2
"""The lines of a table besides its rows. The view of waits lists as many collectives as fit without a scroll bar."""
_RANK_COLUMNS = 6
_OTHER_COLUMNS = 27
"""The columns that the rank, the steps and the recorded time take before each bar."""


class TracePane(Vertical):
    """A bar per traced rank, above views of a single rank; `[` and `]` change the rank, `v` the view.

    The first of the ranks that the verdict names is shown first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "rank(-1)", "Previous rank", id="trace.previous", show=False),
        Binding("right_square_bracket", "rank(1)", "Next rank", id="trace.next"),
        Binding("p", "pick", "Pick rank", id="trace.pick"),
        Binding("b", "group", "Calls by", id="trace.group"),
        Binding("i", "library_frames", "Functions in libraries", id="trace.internal", show=False),
        *VIEW_KEYS,
    ]

    def __init__(self, data: TraceData, subject: Subject, report: Report[object]) -> None:
        super().__init__()
        self._data = data
        self._views = TraceViews(data, subject.runs[0], subject.options, report.verdict.ranks)

    def compose(self) -> ComposeResult:
        yield Static(legend(self._data.ranks), id="trace-title")
        yield RowList[RankTrace](BAR_HEADS, self._bar, id="bars", classes="top")
        yield self._views

    def on_mount(self) -> None:
        bars = self.query_one("#bars", RowList)
        # A list that fits has nothing to scroll, and would only be one more stop of the Tab key.
        bars.can_focus = len(self._data.ranks) > BARS_AT_MOST
        bars.styles.height = min(len(self._data.ranks), BARS_AT_MOST) + 1
        bars.show(self._data.ranks)
        self.call_after_refresh(self._show_bar)

    def _bar(self, rank: RankTrace) -> Text:
        line = time_bar(rank, self.size.width)
        if len(self._data.ranks) > 1 and rank is self._data.ranks[self._views.at]:
            line.stylize("reverse", 0, _RANK_COLUMNS)
        return line

    def _show_bar(self) -> None:
        self.query_one("#bars", RowList).bring_into_view(self._views.at)

    def action_rank(self, by: int) -> None:
        self._views.change_rank(by)
        self._show_bar()

    def action_pick(self) -> None:
        texts = [f"{account_name(rank)}   {duration_ns(rank.span_ns)} recorded" for rank in self._data.ranks]
        at = self._views.at
        pick(self, "rank", texts, at, lambda index: self.action_rank(index - at))

    async def show_evidence(self, link: EvidenceLink) -> None:
        self._views.show_rank(link.rank)
        self._show_bar()
        await self._views.turn_to(link.part or "kernels")

    async def action_group(self) -> None:
        await self._views.regroup()

    async def action_library_frames(self) -> None:
        await self._views.switch_libraries()

    async def action_turn(self, by: int) -> None:
        await self._views.action_turn(by)


class TraceViews(ViewSwitcher):
    """The views of a trace: most show one rank; two show all ranks, where they wait and what could be saved."""

    def __init__(self, data: TraceData, run: Run, options: Options, blamed: Collection[int]) -> None:
        with_memory = any(rank.device_memory for rank in data.ranks)
        super().__init__({name: title for name, title in TITLES.items() if with_memory or name != "held"})
        self._data, self._options = data, options
        self._artefacts = {str(artefact.path): artefact for artefact in run.of(Kind.TRACE)}
        self.at = next((at for at, rank in enumerate(data.ranks) if rank.rank in blamed), 0)
        self._window: tuple[int, int] | None = None
        self._by = CALLS_BY[0]
        self._with_libraries = False

    def widgets(self) -> Iterable[Widget]:
        """Yield the widget of each view in `TITLES`."""
        yield Grid(id="kernels")
        yield Gantt(id="events")
        yield CallTree(id="calls")
        saved = what_if(self._data.what_ifs, self._data.stages_unknown)
        collectives = highest_lines(self.app.size.height) - _HEAD_LINES
        tables = filled([*waiting_tables(self._data, collectives), saved]) if self._data.waits else []
        yield TableList(tables, why_no_waits(self._data.ranks), id="waits")
        yield Grid(id="steps")
        yield Grid(id="critical")
        yield Grid(id="opportunities")
        yield DeviceMemoryChart(id="held")
        yield ChangingTableList(id="tables")

    def title(self) -> str:
        """Return the title of the view, which names the rank."""
        title = super().title() + (f" {self._grouping()}" if self.view == "calls" else "")
        if self.view in ("waits", "opportunities"):
            return title
        return f"{title} of {account_name(self._rank)} ({self.at + 1} of {len(self._data.ranks)})"

    @property
    def _rank(self) -> RankTrace:
        return self._data.ranks[self.at]

    def ask(self, view: str) -> Drawing | None:
        """Compute the content of the view named `view`, and return a function that draws it.

        Return None for the waits, which are drawn from the report alone.
        """
        rank, options = self._rank, self._options
        if view == "waits":
            return None
        answers: dict[str, Callable[[], Drawing]] = {
            "kernels": lambda: self._grid(view, kernels(rank)),
            "opportunities": lambda: self._grid(view, opportunities(self._data.opportunities)),
            "events": self._events,
            "calls": self._calls,
            "steps": lambda: self._grid(view, steps(rank)),
            "critical": lambda: self._grid(view, critical_path(critical_parts(rank, options))),
            "held": self._memory,
            "tables": lambda: partial(self.widget(view, ChangingTableList).show, filled(rank_tables(rank))),
        }
        return answers[view]()

    def _grid(self, view: str, content: Table) -> Drawing:
        return partial(self.widget(view, Grid).show, content)

    def _events(self) -> Drawing:
        window = self._window
        frame = views.timeline(self._artefacts[self._rank.path], self._options, window, self.wide)
        return partial(self.widget("events", Gantt).show, frame, window)

    def _calls(self) -> Drawing:
        by = "user_function" if self._by == "function" and not self._with_libraries else self._by
        frame = views.tree(self._artefacts[self._rank.path], self._options, by)
        return partial(self.widget("calls", CallTree).show, frame)

    def _grouping(self) -> str:
        if self._by != "function":
            return self._by
        return "function, with libraries (i: without)" if self._with_libraries else "function (i: with libraries)"

    def _memory(self) -> Drawing:
        window, rank = self._window, self._rank
        frame = views.memory(self._artefacts[rank.path], self._options, window, self.wide - AXIS_WIDTH)
        return partial(self.widget("held", DeviceMemoryChart).show, _own_memory(rank, frame), window)

    def change_rank(self, by: int) -> None:
        """Select the rank `by` positions further in the list of traced ranks; the first one follows the last."""
        self.at, self._window = (self.at + by) % len(self._data.ranks), None
        self.load()

    def show_rank(self, rank: int | None) -> None:
        ranks = [account.rank for account in self._data.ranks]
        if rank in ranks:
            self.change_rank(ranks.index(rank) - self.at)

    async def regroup(self) -> None:
        """Group the tree of calls in another way: by operator, module and function in turn.

        If another view is shown, only switch to the tree of calls.
        """
        if self.view == "calls":
            self._by = CALLS_BY[(CALLS_BY.index(self._by) + 1) % len(CALLS_BY)]
        await self.turn_to("calls")

    async def switch_libraries(self) -> None:
        """Show or hide the functions in libraries; from any other view, only switch to the tree of functions."""
        if self.view == "calls" and self._by == "function":
            self._with_libraries = not self._with_libraries
        self._by = "function"
        await self.turn_to("calls")

    def on_time_zoom_window_asked(self, event: TimeZoom.WindowAsked) -> None:
        """Draw the requested time range; a shorter range also shows shorter events."""
        self._window = event.window
        self.load()


def account_name(rank: RankTrace) -> str:
    name = "unknown rank" if rank.rank is None else f"rank {rank.rank}"
    return name if rank.device is None else f"{name}, device {rank.device}"


def _own_memory(rank: RankTrace, frame: pd.DataFrame) -> pd.DataFrame:
    name = device_name(rank.device_memory[-1]) if rank.device_memory else ""
    return frame[frame["where"] == name].reset_index(drop=True)


PART_NAMES = (
    ("compute", "compute"),
    ("communication", "exposed communication"),
    ("memory", "exposed memory work"),
    ("idle", "idle"),
)


def legend(ranks: Iterable[RankTrace]) -> Text:
    occurring = {kind for rank in ranks for kind, part in span_parts(rank).items() if part}
    named = [(kind, name) for kind, name in PART_NAMES if kind in occurring]
    pieces = [((f" {EVENT_KIND_SIGNS[kind]} ", _colours_of(kind)), f" {name}   ") for kind, name in named]
    return Text.assemble(*(piece for pair in pieces for piece in pair))


def _colours_of(kind: str) -> str:
    return f"{text_colour(EVENT_KINDS[kind])} on {EVENT_KINDS[kind]}"


def span_parts(rank: RankTrace) -> dict[str, int]:
    """Return {part of a bar: its time in ns}; the parts add up to the recorded time of the rank.

    Communication and memory operations count only while no computation runs.
    """
    return {
        "compute": rank.compute_ns,
        "communication": rank.exposed_communication_ns,
        "memory": rank.exposed_memory_ns,
        "idle": rank.idle_ns,
    }


def time_bar(rank: RankTrace, width: int) -> Text:
    """Return a rank's line of `width` characters: steps, recorded time, and a bar of the parts of this time."""
    room = max(10, width - _OTHER_COLUMNS)
    line = Text(f"{'?' if rank.rank is None else rank.rank:>6}")
    line.append(f" {shortened(step_numbers(rank), 6):>6}")
    line.append(f" {duration_ns(rank.span_ns):>9} ")
    for kind, part in span_parts(rank).items():
        length = round(room * part / rank.span_ns) if rank.span_ns else 0
        label = f"{EVENT_KIND_SIGNS[kind]} {share(part, rank.span_ns)}"
        text = label if len(label) < length else EVENT_KIND_SIGNS[kind] * length
        line.append(text[:length].ljust(length), _colours_of(kind))
    return line


def kernels(rank: RankTrace) -> Table:
    """Return a table with a row for each kernel name: number of runs and total time, longest first."""
    rows = (
        (duration_ns(k.total_ns), share(k.total_ns, rank.span_ns), k.count, duration_ns(k.mean_ns), k.kind, k.name)
        for k in rank.kernels
    )
    return table("", "total> | of span> | count> | mean> | kind | name", rows, len(rank.kernels))


def steps(rank: RankTrace) -> Table:
    """Return a table of a rank's profiled steps, with the parts of their time."""
    rows = (
        (
            step.step,
            duration_ns(step.dur_ns),
            duration_ns(step.busy_ns),
            duration_ns(step.compute_ns),
            duration_ns(step.communication_ns),
            duration_ns(step.exposed_communication_ns),
        )
        for step in rank.step_times
    )
    return table("", "step> | took> | busy> | compute> | communication> | exposed>", rows, len(rank.step_times))
