"""The memory pane: the memory of a rank's device over time, and the allocations that are live at the cursor."""

from collections.abc import Callable, Mapping
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widgets import Static

from analyzers.memory import Device, MemoryData
from analyzers.report import Report
from analyzers.run import Artefact, Kind
from analyzers.words import quantity, size
from workbench.colours import CATEGORIES
from workbench.console import clean
from workbench.present.tables.memory import device_name, worst_first
from workbench.rooms import EvidenceLink
from workbench.tui.background import ask_in_background
from workbench.tui.panes.memory_views import TITLES, Instant, MemoryViews
from workbench.tui.panes.step_timeline import TimelineOfSteps, step_timeline
from workbench.tui.picker import pick
from workbench.tui.subject import Subject
from workbench.tui.view_tabs import Searchable
from workbench.tui.widgets.charts.memory_timeline import CursorBreakdown, MemoryTimeline, Part
from workbench.tui.widgets.charts.stacked_chart import FAILURE
from workbench.tui.widgets.common import call_on_new_size
from workbench.tui.widgets.view_switcher import VIEW_KEYS

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
        """Switch to the tree view if the current view cannot be searched."""
        memory_views = self.query_one(MemoryViews)
        if not isinstance(memory_views.shown, Searchable):
            await memory_views.turn_to("tree")


def head(row: Mapping[str, float]) -> str:
    text = f"entry {int(row['entry'])}   {size(int(row['allocated']))} allocated"
    return f"{text}\n{FAILURE} an allocation of {size(int(row['oom']))} failed" if row["oom"] else text
