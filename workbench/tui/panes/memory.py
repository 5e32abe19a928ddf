"""Memory over time of one rank's device, and who held it at the cursor."""

from collections.abc import Callable
from typing import Any, ClassVar

import pandas as pd
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widgets import Static

from analyzers.memory import views
from analyzers.run import Artefact, Kind, Run
from analyzers.store import Options
from analyzers.words import quantity, size
from workbench.colours import CATEGORIES
from workbench.console import clean
from workbench.evidence_link import EvidenceLink
from workbench.present.tables.memory import device_name, worst_first
from workbench.tui.background import ask_aside
from workbench.tui.panes.memory_evidence import TITLES, Evidence, Instant
from workbench.tui.widgets.charts.cursor_breakdown import Part, Parts
from workbench.tui.widgets.charts.memory_timeline import Area
from workbench.tui.widgets.charts.stacked_chart import FAILURE
from workbench.tui.widgets.view_switcher import TURNS

RESTED_S = 0.1
FIRST = "stacks"
"""What shows findings that no reading is about."""


class MemoryPane(Vertical):
    """Timeline, categories at the cursor, and below what is alive at the cursor.

    `[` and `]` change the rank, `,` and `.` the snapshot of that rank. A rank's gravest snapshot comes first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "Earlier", id="memory.left", show=False),
        Binding("right,l", "move(1)", "Later", id="memory.right", show=False),
        Binding("plus,equals_sign", "zoom(0.5)", "Zoom in", id="memory.in"),
        Binding("minus", "zoom(2)", "Zoom out", id="memory.out"),
        Binding("0", "reset", "Whole", id="memory.reset", show=False),
        Binding("left_square_bracket", "rank(-1)", "Previous rank", id="memory.previous", show=False),
        Binding("right_square_bracket", "rank(1)", "Next rank", id="memory.next"),
        Binding("comma", "snapshot(-1)", "Earlier snapshot", id="memory.earlier", show=False),
        Binding("full_stop", "snapshot(1)", "Later snapshot", id="memory.later", show=False),
        *TURNS,
        Binding("b", "group", "Group by", id="memory.group"),
        Binding("space", "mark", "Mark", id="memory.mark"),
        Binding("d", "changes", "Changes", id="memory.changes"),
    ]

    def __init__(self, data: Any, run: Run, options: Options) -> None:
        super().__init__()
        self._by_rank: dict[int | None, list[Any]] = {}
        for device in worst_first(data.devices):
            self._by_rank.setdefault(device.rank, []).append(device)
        self._artefacts = {str(artefact.path): artefact for artefact in run.of(Kind.SNAPSHOT)}
        self._options = options
        self._rank, self._snapshot = 0, 0
        self._window: tuple[int, int] | None = None
        self._rest: Timer | None = None
        self._at_end = False

    def compose(self) -> ComposeResult:
        yield Static(id="memory-title")
        with Horizontal(id="memory-top", classes="top"):
            yield Area(id="area")
            yield Parts(id="categories")
        yield Evidence([d for of_rank in self._by_rank.values() for d in of_rank], self._options)

    def on_mount(self) -> None:
        self._show_device()

    async def look(self, at: EvidenceLink) -> None:
        """Show the rank's snapshot of the step, else its gravest, and the reading that shows why."""
        of_rank = list(self._by_rank)
        if at.rank in of_rank:
            self._rank = of_rank.index(at.rank)
        steps = [device.step for device in self._by_rank[of_rank[self._rank]]]
        self._snapshot = steps.index(at.step) if at.step in steps and at.part != "timeline" else 0
        self._at_end = at.part == "changes"
        self._show_device()
        await self.query_one(Evidence).turn_to(at.part if at.part in TITLES else FIRST)

    def on_resize(self) -> None:
        self._load()

    @property
    def _device(self) -> Any:
        of_rank = list(self._by_rank.values())[self._rank]
        return of_rank[self._snapshot % len(of_rank)]

    def _show_device(self) -> None:
        device = self._device
        where = f"{device_name(device)}  ({self._rank + 1} of {quantity(len(self._by_rank), 'rank')})  {device.path}"
        self.query_one("#memory-title", Static).update(Text(clean(where)))
        self._window = None
        self._load()

    def _load(self) -> None:
        """The timeline at the chart's width, off the event loop: a first reading takes as long as the file is big."""
        wide, artefact = self.query_one(Area).size.width, self._artefacts.get(self._device.path)
        if artefact is not None and wide:
            ask_aside(self, "timeline", self._timeline(artefact, wide), self._show)

    def _show(self, frame: pd.DataFrame) -> None:
        """Draw the timeline. What leaked is seen best where all else has been freed: at the end."""
        area = self.query_one(Area)
        area.show(frame)
        if self._at_end:
            area.move(len(frame))

    def _timeline(self, artefact: Artefact, width: int) -> Callable[[], pd.DataFrame]:
        window, device = self._window, self._device.device
        return lambda: views.timeline(artefact, self._options, device=device, buckets=width, window=window)

    def on_stacked_moved(self, event: Area.Moved) -> None:
        """What is alive is asked for once the cursor rests, as a key held down passes many instants."""
        if not isinstance(event.area, Area):
            return
        parts = [Part(name, float(event.row.get(name, 0)), colour) for name, colour in CATEGORIES.items()]
        self.query_one(Parts).show(head(event.row), parts, lambda count: size(int(count)))
        artefact = self._artefacts[self._device.path]
        instant = Instant(artefact, self._device.device, int(event.row["entry"]))
        if self._rest is not None:
            self._rest.stop()
        self._rest = self.set_timer(RESTED_S, lambda: self.query_one(Evidence).look_at(instant))

    def action_move(self, columns: int) -> None:
        self.query_one(Area).move(columns)

    def action_zoom(self, factor: float) -> None:
        """Show half or twice as many entries, with the cursor's in the middle."""
        low, high = self._window or (0, self._device.entries)
        area = self.query_one(Area)
        at_cursor = area.entry_at_cursor()
        middle = (low + high) // 2 if at_cursor is None else at_cursor
        span = max(area.size.width // 2, int((high - low) * factor))
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

    async def action_reading(self, by: int) -> None:
        await self.query_one(Evidence).action_reading(by)

    async def action_group(self) -> None:
        await self.query_one(Evidence).regroup()

    def action_mark(self) -> None:
        """Compare with the instant at the cursor from now on."""
        self.query_one(Evidence).mark()

    async def action_changes(self) -> None:
        """What changed from the mark to the cursor."""
        await self.query_one(Evidence).turn_to("changes")

    async def before_search(self) -> None:
        """The tree can be searched, the picture cannot."""
        evidence = self.query_one(Evidence)
        if not hasattr(evidence.shown, "search"):
            await evidence.turn_to("tree")


def head(row: dict[str, Any]) -> str:
    """Which entry, what is allocated after it, and what was asked for in vain."""
    told = f"entry {int(row['entry'])}   {size(int(row['allocated']))} allocated"
    return f"{told}\n{FAILURE} asked for {size(int(row['oom']))} more" if row["oom"] else told
