"""The memory pane: the memory of a rank's device over time, and the allocations that are live at the cursor."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import pandas as pd
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import DataTable, Static

from analyzers.memory import Device, MemoryData, diff, matrix, views
from analyzers.report import Report
from analyzers.run import Artefact, Kind
from analyzers.store import Options
from analyzers.words import quantity, size
from workbench.colours import CATEGORIES, HEAT, nth_colour, text_colour
from workbench.console import clean
from workbench.present.figure import LEVELS
from workbench.present.table import Table
from workbench.present.tables.memory import (
    GROUPINGS,
    block_history,
    block_list,
    device_name,
    entry_list,
    module_changes,
    stack_list,
    worst_first,
)
from workbench.rooms import EvidenceLink
from workbench.tui.panes.steps import TimelineOfSteps, step_timeline
from workbench.tui.picker import pick
from workbench.tui.subject import Searchable, Subject
from workbench.tui.widgets.common import call_on_new_size
from workbench.tui.widgets.grids import BlockMap
from workbench.tui.widgets.memory_timeline import AllocatedByTimeline, CursorBreakdown, MemoryTimeline, Part
from workbench.tui.widgets.stacked_chart import AXIS_WIDTH, FAILURE
from workbench.tui.widgets.tables import Grid, RowList
from workbench.tui.widgets.trees import MemoryTree
from workbench.tui.widgets.view_switcher import VIEW_KEYS, Drawing, ViewSwitcher, ask_in_background

TITLES = {
    "stacks": "largest stacks",
    "tree": "tree by",
    "blocks": "segments and blocks (click: history of a block)",
    "list": "largest blocks (enter: history of a block)",
    "life": "history of address",
    "changes": "what changed since the mark (space)",
    "places": "allocated by",
    "entries": "allocator events, from shortly before",
    "reserved": "reserved ranges over time, the largest first",
    "ranks": "bytes at the peak of each rank's last snapshot",
}
_TIMELESS = ("life", "places", "reserved", "ranks")
"""The views that do not show a single instant."""
_BY_STACK = "stack"
_ALLOCATED_BY = ("pool", "stream", "phase")
_CELL_WIDTH = 13
_EARLIER, LATER = 6, 60
"""The numbers of trace entries that are listed before and after the instant."""
_RANGES_AT_MOST = 500
_RANGE_HEAD = Text(f"{'bytes':>10} {'stream':>6} pool", style="dim")


@dataclass(frozen=True)
class Instant:
    """A device in a memory snapshot, just after the trace entry number `entry` (-1: before the first entry)."""

    artefact: Artefact
    device: int
    entry: int

    def side(self) -> diff.Instant:
        return diff.Instant(artefact=self.artefact, device=self.device, entry=self.entry)


class ReservedRange(NamedTuple):
    """An address range that the allocator reserved at trace entry `born` and released at entry `died`.

    `last` is the last trace entry that the chart of all ranges shows.
    """

    bytes: int
    stream: int
    pool: str
    born: int
    died: int
    last: int


class PeakOfRank(NamedTuple):
    """The memory of a rank's device at its peak, in bytes, as a total and by category; None means not known."""

    rank: int | None
    device: int | None
    step: int | None
    peak: int
    categories: dict[str, int]


class MemoryViews(ViewSwitcher):
    """The views of the memory at an instant; the pane around this widget handles the keys."""

    TAKES_KEYS: ClassVar[bool] = False

    def __init__(self, devices: Sequence[Device], options: Options) -> None:
        super().__init__(TITLES)
        self._options = options
        self._peaks = _peaks_of_ranks(devices)
        self._categories = [name for name in CATEGORIES if any(peak.categories.get(name) for peak in self._peaks)]
        self._grouping, self._allocated_by = GROUPINGS[0], _ALLOCATED_BY[0]
        self._with_libraries = False
        self._instant: Instant | None = None
        self._mark: Instant | None = None
        self._addresses: list[int] = []
        self._address: int | None = None

    def widgets(self) -> Iterable[Widget]:
        """Yield the widget of each view in `TITLES`."""
        yield Grid(id="stacks")
        yield MemoryTree(id="tree")
        yield BlockMap(id="blocks")
        yield Grid(id="list")
        yield Grid(id="life")
        yield Grid(id="changes")
        yield AllocatedByTimeline(id="places")
        yield Grid(id="entries")
        yield RowList[ReservedRange](_RANGE_HEAD, lambda item: _range_line(item, self.size.width), id="reserved")
        yield RowList[PeakOfRank](
            _peak_head(self._categories), lambda peak: peak_line(peak, self._categories), id="ranks"
        )

    def show_instant(self, instant: Instant) -> None:
        if instant != self._instant:
            self._instant = instant
            self.load()

    def mark(self) -> None:
        """Mark the current instant, so that other instants can be compared with it."""
        self._mark = self._instant
        if self._mark is not None:
            self.notify(f"marked entry {self._mark.entry}; press d to see what changed since", markup=False)
        self.load()

    async def regroup(self) -> None:
        """Group the memory by something else; each call selects the next grouping of the current view.

        The timeline can be grouped by pool, stream or phase; the tree by module, source line, stack or category. From
        any other view, switch to the tree.
        """
        if self.view == "places":
            self._allocated_by = _ALLOCATED_BY[(_ALLOCATED_BY.index(self._allocated_by) + 1) % len(_ALLOCATED_BY)]
            self.load()
            return
        if self.view == "tree":
            self._grouping = GROUPINGS[(GROUPINGS.index(self._grouping) + 1) % len(GROUPINGS)]
        await self.turn_to("tree")

    async def switch_libraries(self) -> None:
        """Show or hide the library frames of the tree by stack; from any other view, only switch to this tree."""
        if self.view == "tree" and self._grouping == _BY_STACK:
            self._with_libraries = not self._with_libraries
        self._grouping = _BY_STACK
        await self.turn_to("tree")

    async def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Switch to the view of one address: all blocks that were ever allocated where the selected block is."""
        if event.data_table.id == "list" and event.cursor_row < len(self._addresses):
            event.stop()
            self._address = self._addresses[event.cursor_row]
            await self.turn_to("life")

    async def on_block_map_block_clicked(self, event: BlockMap.BlockClicked) -> None:
        self._address = event.address
        await self.turn_to("life")

    def ask(self, view: str) -> Drawing | None:
        """Compute the content of a view at the current instant, and return a function that draws it."""
        if view == "ranks":
            return partial(self.widget(view, RowList).show, self._peaks)
        questions = {
            "stacks": self._stacks,
            "tree": self._tree,
            "blocks": self._blocks,
            "list": self._list,
            "life": self._history,
            "changes": self._changes,
            "places": self._timeline,
            "entries": self._entries,
            "reserved": self._reserved,
        }
        return None if self._instant is None else questions[view](self._instant)

    def _grid(self, view: str, content: Table) -> Drawing:
        return partial(self.widget(view, Grid).show, content)

    def _stacks(self, at: Instant) -> Drawing:
        return self._grid("stacks", stack_list(views.top_stacks(at.artefact, self._options, at.device, at.entry)))

    def _tree(self, at: Instant) -> Drawing:
        by = "whole_stack" if self._grouping == _BY_STACK and self._with_libraries else self._grouping
        frame = views.tree(at.artefact, self._options, at.device, by=by, entry=at.entry)
        return partial(self.widget("tree", MemoryTree).show, frame)

    def _blocks(self, at: Instant) -> Drawing:
        segments = views.segments(at.artefact, at.entry, self._options, at.device)
        return partial(self.widget("blocks", BlockMap).show, segments, self._state(at))

    def _list(self, at: Instant) -> Drawing:
        content, self._addresses = block_list(self._state(at))
        return self._grid("list", content)

    def _history(self, at: Instant) -> Drawing | None:
        """Return the function that draws all blocks of the selected address, by default the largest live block's."""
        if self._address is None:
            self._address = next(iter(block_list(self._state(at))[1]), None)
        if self._address is None:
            return None
        frame = views.blocks_of_address(at.artefact, self._address, self._options, at.device)
        return self._grid("life", block_history(frame))

    def _changes(self, at: Instant) -> Drawing:
        before = self._mark or Instant(at.artefact, at.device, -1)
        return self._grid("changes", module_changes(diff.between(before.side(), at.side(), self._options)))

    def _timeline(self, at: Instant) -> Drawing:
        frame = views.timeline_by(at.artefact, self._options, at.device, self._allocated_by, self.wide - AXIS_WIDTH)
        return partial(self.widget("places", AllocatedByTimeline).show, frame)

    def _entries(self, at: Instant) -> Drawing:
        first = max(0, at.entry - _EARLIER)
        count = at.entry + LATER + 1 - first
        return self._grid("entries", entry_list(views.events(at.artefact, self._options, at.device, first, count)))

    def _reserved(self, at: Instant) -> Drawing:
        frame = views.reserved_ranges(at.artefact, self._options, at.device, limit=_RANGES_AT_MOST)
        last = int(frame["died"].max()) if len(frame) else 0
        columns = (frame[name].tolist() for name in ("bytes", "stream", "pool", "born", "died"))
        ranges = [
            ReservedRange(int(count), int(stream), str(pool), int(born), int(died), last)
            for count, stream, pool, born, died in zip(*columns, strict=True)
        ]
        return partial(self.widget("reserved", RowList).show, ranges)

    def _state(self, at: Instant) -> pd.DataFrame:
        return views.live_blocks(at.artefact, at.entry, self._options, at.device)

    def title(self) -> str:
        """Return the title of the view, with the grouping and the instant that it shows."""
        title = super().title() + self._detail()
        if self.view in _TIMELESS or self._instant is None:
            return title
        when = "" if self.view == "entries" else "after "
        return f"{title} {when}entry {self._instant.entry}"

    def _detail(self) -> str:
        if self.view == "life":
            return ": no block is live" if self._address is None else f" {self._address:#x}"
        if self.view == "changes" and self._mark is not None:
            return f" at entry {self._mark.entry},"
        if self.view == "tree":
            return f" {self._grouping}{self._libraries()}"
        return f" {self._allocated_by} (b: by another key)" if self.view == "places" else ""

    def _libraries(self) -> str:
        if self._grouping != _BY_STACK:
            return ""
        return " with library frames (i: without)" if self._with_libraries else " (i: with library frames)"


def _peaks_of_ranks(devices: Sequence[Device]) -> list[PeakOfRank]:
    """Return the peak of each rank's device in the rank's last snapshot, highest first."""
    rows = matrix(devices).to_dict("records")
    return [
        PeakOfRank(
            _known_integer(row["rank"]),
            _known_integer(row["device"]),
            _known_integer(row["step"]),
            int(row["peak"]),
            {name: int(row[name]) for name in CATEGORIES},
        )
        for row in rows
    ]


def _known_integer(value: float | None) -> int | None:
    return None if pd.isna(value) else int(value)


def _peak_head(categories: Sequence[str]) -> Text:
    names = "".join(f" {name:>{_cell_width(name) - 1}}" for name in categories)
    return Text(f"  rank device  step {'peak':>{_CELL_WIDTH}}{names}", style="dim")


def _cell_width(category: str) -> int:
    return max(_CELL_WIDTH, len(category) + 1)


def peak_line(peak: PeakOfRank, categories: Sequence[str]) -> Text:
    """Return a rank's line in the list of peaks: bytes by category; the larger a share, the brighter it is."""
    line = Text("".join(f"{'?' if value is None else value!s:>6}" for value in (peak.rank, peak.device, peak.step)))
    line.append(f" {size(peak.peak):>{_CELL_WIDTH}}")
    for name in categories:
        level = round((len(LEVELS) - 1) * peak.categories[name] / max(1, peak.peak))
        shade = HEAT[level * (len(HEAT) - 1) // (len(LEVELS) - 1)]
        cell = f" {LEVELS[level]}{size(peak.categories[name]):>{_cell_width(name) - 2}}"
        line.append(cell, f"{text_colour(shade)} on {shade}")
    return line


def _range_line(item: ReservedRange, width: int) -> Text:
    """Return the line of a reserved address range, `width` characters long.

    The line has the size, stream and pool of the range, and a bar from the trace entry that reserved it to the entry
    that released it.
    """
    line = Text(f"{size(item.bytes):>10} {item.stream:>6} {item.pool:<5} ")
    room = max(1, width - line.cell_len)
    begin, end = (max(0, entry) * room // max(1, item.last) for entry in (item.born, item.died))
    return line.append(" " * begin).append("█" * max(1, end - begin), nth_colour(item.stream))


_CURSOR_RESTS_S = 0.1
_USUAL_VIEW = "stacks"
"""The view that opens for findings that do not name another one."""


class MemoryPane(Vertical):
    """The memory timeline of a rank, the categories at the cursor, and views of the memory that is live at the cursor.

    The keys `[` and `]` change the rank, `,` and `.` the snapshot of that rank. The snapshot with the worst problem is
    shown first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "Earlier", id="memory.left", show=False),
        Binding("right,l", "move(1)", "Later", id="memory.right", show=False),
        Binding("plus,equals_sign", "zoom(0.5)", "Zoom in", id="memory.in"),
        Binding("minus", "zoom(2)", "Zoom out", id="memory.out"),
        Binding("0", "reset", "Whole", id="memory.reset", show=False),
        Binding("left_square_bracket", "rank(-1)", "Previous rank", id="memory.previous", show=False),
        Binding("right_square_bracket", "rank(1)", "Next rank", id="memory.next"),
        Binding("p", "pick", "Pick snapshot", id="memory.pick"),
        Binding("s", "pick_step", "Go to step", id="memory.step", show=False),
        Binding("comma", "snapshot(-1)", "Earlier snapshot", id="memory.earlier", show=False),
        Binding("full_stop", "snapshot(1)", "Later snapshot", id="memory.later", show=False),
        *VIEW_KEYS,
        Binding("b", "group", "Group by", id="memory.group"),
        Binding("i", "library_frames", "Library frames", id="memory.internal", show=False),
        Binding("space", "mark", "Mark", id="memory.mark"),
        Binding("d", "changes", "Changes", id="memory.changes"),
    ]

    def __init__(self, data: MemoryData, subject: Subject, _report: Report[object]) -> None:
        super().__init__()
        self._by_rank: dict[int | None, list[Device]] = {}
        for device in worst_first(data.devices):
            self._by_rank.setdefault(device.rank, []).append(device)
        self._artefacts = {str(artefact.path): artefact for artefact in subject.runs[0].of(Kind.SNAPSHOT)}
        self._options = subject.options
        self._rank, self._snapshot = 0, 0
        self._window: tuple[int, int] | None = None
        self._rest_timer: Timer | None = None
        self._at_end = False

    def compose(self) -> ComposeResult:
        yield Static(id="memory-title")
        with Horizontal(id="memory-top", classes="top"):
            yield MemoryTimeline(id="area")
            yield CursorBreakdown(id="categories")
        yield MemoryViews([device for devices in self._by_rank.values() for device in devices], self._options)

    def on_mount(self) -> None:
        self._show_device()
        call_on_new_size(self, self._load)

    async def show_evidence(self, link: EvidenceLink) -> None:
        """Show the memory snapshot of the finding's rank and step, and the view that explains the finding.

        If the rank has no snapshot of that step, show the snapshot of the rank that has the worst problem.
        """
        ranks = list(self._by_rank)
        if link.rank in ranks:
            self._rank = ranks.index(link.rank)
        steps = [device.step for device in self._by_rank[ranks[self._rank]]]
        self._snapshot = steps.index(link.step) if link.step in steps and link.part != "timeline" else 0
        self._at_end = link.part == "changes"
        self._show_device()
        await self.query_one(MemoryViews).turn_to(link.part if link.part in TITLES else _USUAL_VIEW)

    @property
    def _device(self) -> Device:
        devices = list(self._by_rank.values())[self._rank]
        return devices[self._snapshot % len(devices)]

    def _show_device(self) -> None:
        device = self._device
        title = f"{device_name(device)}  ({self._rank + 1} of {quantity(len(self._by_rank), 'rank')})  {device.path}"
        self.query_one("#memory-title", Static).update(Text(clean(title)))
        self._window = None
        self._load()

    def _load(self) -> None:
        """Compute the timeline for the chart's width in a thread, because reading a large file takes seconds."""
        wide, artefact = self.query_one(MemoryTimeline).columns, self._artefacts.get(self._device.path)
        # A widget has no width before its first layout; this is then called again.
        if artefact is not None and wide > 0:
            ask_in_background(self, "timeline", self._timeline(artefact, wide), self._show)

    def _show(self, drawing: TimelineOfSteps) -> None:
        """Draw the timeline.

        For a leak, the cursor starts at the end: memory that did not leak has been freed by then.
        """
        timeline = self.query_one(MemoryTimeline)
        timeline.show(drawing.instants, drawing.steps)
        if self._at_end:
            timeline.move(len(drawing.instants))

    def _timeline(self, artefact: Artefact, width: int) -> Callable[[], TimelineOfSteps]:
        window, device, options = self._window, self._device.device, self._options
        return lambda: step_timeline(artefact, options, device, width, window)

    def on_stacked_chart_moved(self, event: MemoryTimeline.Moved) -> None:
        """Show the memory at the cursor after the cursor has stopped moving.

        While a key is held down, the cursor passes many trace entries, and showing each would be slow.
        """
        if not isinstance(event.chart, MemoryTimeline):
            return
        parts = [Part(name, event.row.get(name, 0.0), colour) for name, colour in CATEGORIES.items()]
        self.query_one(CursorBreakdown).show(head(event.row), parts, lambda count: size(int(count)))
        artefact = self._artefacts[self._device.path]
        instant = Instant(artefact, self._device.device, int(event.row["entry"]))
        if self._rest_timer is not None:
            self._rest_timer.stop()
        self._rest_timer = self.set_timer(_CURSOR_RESTS_S, lambda: self.query_one(MemoryViews).show_instant(instant))

    def action_move(self, columns: int) -> None:
        self.query_one(MemoryTimeline).move(columns)

    def action_zoom(self, factor: float) -> None:
        """Change the number of visible trace entries by the factor `factor`; the cursor becomes the middle."""
        low, high = self._window or (0, self._device.entries)
        timeline = self.query_one(MemoryTimeline)
        at_cursor = timeline.entry_at_cursor()
        middle = (low + high) // 2 if at_cursor is None else at_cursor
        span = max(timeline.columns // 2, int((high - low) * factor))
        low = max(0, middle - span // 2)
        self._window = (low, min(self._device.entries, low + span))
        self._load()

    def action_reset(self) -> None:
        self._window = None
        self._load()

    def action_rank(self, by: int) -> None:
        self._rank, self._snapshot = (self._rank + by) % len(self._by_rank), 0
        self._show_device()

    def action_snapshot(self, by: int) -> None:
        self._snapshot += by
        self._show_device()

    def action_pick(self) -> None:
        places = [(rank, at) for rank, devices in enumerate(self._by_rank.values()) for at in range(len(devices))]
        devices = [device for devices in self._by_rank.values() for device in devices]
        texts = [f"{device_name(device)}   peak {size(device.peak_allocated_bytes)}" for device in devices]

        def show(index: int) -> None:
            self._rank, self._snapshot = places[index]
            self._show_device()

        pick(self, "snapshot", texts, devices.index(self._device), show)

    def action_pick_step(self) -> None:
        timeline = self.query_one(MemoryTimeline)
        texts = [f"step {step}" for step, _ in timeline.steps]
        pick(self, "step", texts, timeline.step_at_cursor(), timeline.go_to_step)

    async def action_turn(self, by: int) -> None:
        await self.query_one(MemoryViews).action_turn(by)

    async def action_group(self) -> None:
        await self.query_one(MemoryViews).regroup()

    async def action_library_frames(self) -> None:
        await self.query_one(MemoryViews).switch_libraries()

    def action_mark(self) -> None:
        """Mark the instant at the cursor, so that other instants can be compared with it."""
        self.query_one(MemoryViews).mark()

    async def action_changes(self) -> None:
        await self.query_one(MemoryViews).turn_to("changes")

    async def before_search(self) -> None:
        memory_views = self.query_one(MemoryViews)
        if not isinstance(memory_views.shown, Searchable):
            await memory_views.turn_to("tree")


def head(row: Mapping[str, float]) -> str:
    text = f"entry {int(row['entry'])}   {size(int(row['allocated']))} allocated"
    return f"{text}\n{FAILURE} an allocation of {size(int(row['oom']))} failed" if row["oom"] else text
