"""Where the time of the traced ranks goes: a bar a rank, and below it kernels, waits, steps and events."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pandas as pd
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static

from analyzers.run import Kind, Run
from analyzers.store import Options
from analyzers.traces import critical_parts, views
from analyzers.words import duration_ns, share
from workbench.colours import EVENT_KIND_SIGNS, EVENT_KINDS, text_colour
from workbench.evidence_link import EvidenceLink
from workbench.present.table import Table, table
from workbench.present.tables.kernel_names import shortened
from workbench.present.tables.trace import critical_path, rank_tables, step_numbers
from workbench.present.tables.trace_memory import device_name as name_of
from workbench.tui.widgets.charts.device_memory import Held
from workbench.tui.widgets.charts.gantt import Gantt
from workbench.tui.widgets.charts.time_zoom import Zoomed
from workbench.tui.widgets.row_list import Rows
from workbench.tui.widgets.tables import Grid, Listed
from workbench.tui.widgets.trees.call_tree import Calls
from workbench.tui.widgets.view_switcher import TURNS, Readings

PARTS = {
    "compute": "compute_ns",
    "communication": "exposed_communication_ns",
    "memory": "exposed_memory_ns",
    "idle": "idle_ns",
}
"""Parts of the span that add up to it; what is exposed hides behind no compute."""
TITLES = {
    "kernels": "longest work",
    "events": "events",
    "calls": "calls by",
    "waits": "who waits in collectives, and who comes last",
    "steps": "profiled steps",
    "critical": "what the last step consists of, along what held up what",
    "held": "memory over time",
    "tables": "all that is known",
}
CALLS_BY = ("operator", "module", "function")
BARS_AT_MOST = 8


class TracePane(Vertical):
    """`[` and `]` change the rank; `v` the reading below the bars."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "rank(-1)", "Previous rank", id="trace.previous", show=False),
        Binding("right_square_bracket", "rank(1)", "Next rank", id="trace.next"),
        Binding("b", "group", "Calls by", id="trace.group"),
        *TURNS,
    ]

    def __init__(self, data: Any, run: Run, options: Options) -> None:
        super().__init__()
        self._data = data
        self._looked = Looked(data, run, options)

    def compose(self) -> ComposeResult:
        yield Static(legend(), id="trace-title")
        heads = Text(f"{'rank':>6} {'step':>6} {'span':>9}", style="dim")
        yield Rows(heads, lambda one: breakdown(one, self.size.width), id="bars", classes="top")
        yield self._looked

    def on_mount(self) -> None:
        bars = self.query_one(Rows)
        bars.can_focus = len(self._data.ranks) > BARS_AT_MOST
        bars.styles.height = min(len(self._data.ranks), BARS_AT_MOST) + 1
        bars.show(self._data.ranks)

    def action_rank(self, by: int) -> None:
        self._looked.turn_rank(by)

    async def look(self, at: EvidenceLink) -> None:
        """Show the rank, and who waits for it or what it did."""
        self._looked.turn_to_rank(at.rank)
        await self._looked.turn_to(at.part or "kernels")

    async def action_group(self) -> None:
        await self._looked.regroup()

    async def action_reading(self, by: int) -> None:
        await self._looked.action_reading(by)


class Looked(Readings):
    """What is known of one traced rank, and of all together."""

    def __init__(self, data: Any, run: Run, options: Options) -> None:
        held = any(one.device_memory for one in data.ranks)
        super().__init__({name: title for name, title in TITLES.items() if held or name != "held"})
        self._data, self._options = data, options
        self._artefacts = {str(artefact.path): artefact for artefact in run.of(Kind.TRACE)}
        self._at = 0
        self._window: tuple[int, int] | None = None
        self._by = CALLS_BY[0]

    def widgets(self) -> Iterable[Widget]:
        """A widget for each of `TITLES`, in sight or not."""
        yield Grid(id="kernels")
        yield Gantt(id="events")
        yield Calls(id="calls")
        yield Grid(id="waits")
        yield Grid(id="steps")
        yield Grid(id="critical")
        yield Held(id="held")
        yield Listed(id="tables")

    def title(self) -> str:
        """What is in sight, and of which rank."""
        by = f" {self._by}" if self.reading == "calls" else ""
        of = "" if self.reading == "waits" else f" of {self._who()} ({self._at + 1} of {len(self._data.ranks)})"
        return super().title() + by + of

    def _who(self) -> str:
        one = self._data.ranks[self._at]
        rank = "unknown rank" if one.rank is None else f"rank {one.rank}"
        return rank if one.device is None else f"{rank}, device {one.device}"

    def ask(self, reading: str) -> tuple[Any, ...] | None:
        """Look up what a reading shows of the rank."""
        one, options, width = self._data.ranks[self._at], self._options, self.wide
        artefact, window, by = self._artefacts[one.path], self._window, self._by
        answers: dict[str, Callable[[], tuple[Any, ...]]] = {
            "kernels": lambda: (kernels(one),),
            "events": lambda: (views.timeline(artefact, options, window, width), window),
            "calls": lambda: (views.tree(artefact, options, by),),
            "waits": lambda: (waits(self._data.waits),),
            "steps": lambda: (steps(one),),
            "critical": lambda: (critical_path(critical_parts(one, options)),),
            "held": lambda: (own_memory(one, views.memory(artefact, options, window, width)), window),
            "tables": lambda: ([section for section in rank_tables(one) if section.rows],),
        }
        return answers[reading]()

    def turn_rank(self, by: int) -> None:
        """Speak of another rank."""
        self._at, self._window = (self._at + by) % len(self._data.ranks), None
        self.load()

    def turn_to_rank(self, rank: int | None) -> None:
        """Speak of a certain rank, if it was traced."""
        ranks = [one.rank for one in self._data.ranks]
        if rank in ranks:
            self.turn_rank(ranks.index(rank) - self._at)

    async def regroup(self) -> None:
        """Group calls by something else."""
        if self.reading == "calls":
            self._by = CALLS_BY[(CALLS_BY.index(self._by) + 1) % len(CALLS_BY)]
        await self.turn_to("calls")

    def on_zoomed_asked(self, event: Zoomed.Asked) -> None:
        """Draw another window; short events come to sight as it gets narrower."""
        self._window = event.window
        self.load()


def own_memory(one: Any, frame: pd.DataFrame) -> pd.DataFrame:
    """What the rank's device held, or its host where no device told: hosts stand first."""
    name = name_of(one.device_memory[-1]) if one.device_memory else ""
    return frame[frame["where"] == name].reset_index(drop=True)


def legend() -> Text:
    """Return what the parts of a bar are."""
    pieces = [((f" {EVENT_KIND_SIGNS[kind]} ", colours_of(kind)), f" {name}   ") for kind, name in PART_NAMES]
    return Text.assemble(*(piece for pair in pieces for piece in pair))


def colours_of(kind: str) -> str:
    """Return the style of a piece of a bar: its colour, with text that can be read on it."""
    return f"{text_colour(EVENT_KINDS[kind])} on {EVENT_KINDS[kind]}"


PART_NAMES = (
    ("compute", "compute"),
    ("communication", "exposed communication"),
    ("memory", "exposed memory work"),
    ("idle", "idle"),
)


def breakdown(one: Any, width: int) -> Text:
    """A rank's bar: pieces as long as their share of the span, with sign and, where there is room, per cent."""
    room = max(10, width - 27)
    line = Text("?".rjust(6) if one.rank is None else f"{one.rank:>6}")
    line.append(f" {shortened(step_numbers(one), 6):>6}")
    line.append(f" {duration_ns(one.span_ns):>9} ")
    for name, field in PARTS.items():
        part = getattr(one, field)
        length = round(room * part / one.span_ns) if one.span_ns else 0
        told = f"{EVENT_KIND_SIGNS[name]} {share(part, one.span_ns)}"
        text = told if len(told) <= length else EVENT_KIND_SIGNS[name] * length
        line.append(text[:length].ljust(length), colours_of(name))
    return line


def kernels(one: Any) -> Table:
    """All executions of each kernel, the longest first."""
    rows = (
        (duration_ns(k.total_ns), share(k.total_ns, one.span_ns), k.count, duration_ns(k.mean_ns), k.kind, k.name)
        for k in one.kernels
    )
    return table("", "total> | of span> | count> | mean> | kind | name", rows, len(one.kernels))


def waits(found: Any) -> Table:
    rows = (
        (one.rank, one.collectives, duration_ns(one.wait_ns), share(one.wait_ns, one.window_ns), one.last_arrivals)
        for one in found
    )
    return table("", "rank> | collectives> | waited> | of the time> | came last>", rows, len(found))


def steps(one: Any) -> Table:
    rows = (
        (
            step.step,
            duration_ns(step.dur_ns),
            duration_ns(step.busy_ns),
            duration_ns(step.compute_ns),
            duration_ns(step.communication_ns),
            duration_ns(step.exposed_communication_ns),
        )
        for step in one.step_times
    )
    return table("", "step> | took> | busy> | compute> | communication> | exposed>", rows, len(one.step_times))
