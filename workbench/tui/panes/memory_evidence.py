"""What is alive at one instant of a snapshot, in several readings."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
from rich.text import Text
from textual.widget import Widget
from textual.widgets import DataTable

from analyzers.memory import diff, matrix, views
from analyzers.run import Artefact
from analyzers.store import Options
from analyzers.words import size
from workbench.colours import CATEGORIES, HEAT, nth_colour, text_colour
from workbench.present.sparkline import LEVELS
from workbench.present.tables.snapshot import block_history, block_list, entry_list, module_changes, stack_list
from workbench.tui.widgets.charts.block_map import BlockMap
from workbench.tui.widgets.charts.memory_timeline import PlaceArea
from workbench.tui.widgets.row_list import Rows
from workbench.tui.widgets.tables import Grid
from workbench.tui.widgets.trees.memory_tree import Holders
from workbench.tui.widgets.view_switcher import Readings

TITLES = {
    "stacks": "largest stacks",
    "tree": "tree by",
    "blocks": "segments and blocks (click: the life of one)",
    "list": "largest blocks (enter: the life of one)",
    "life": "life of address",
    "changes": "what changed since the mark (space)",
    "places": "allocated by",
    "entries": "what the allocator did, from shortly before",
    "reserved": "reserved ranges, the largest first, from when to when",
    "ranks": "bytes at the peak of each rank's last snapshot",
}
TIMELESS = ("life", "places", "reserved", "ranks")
"""Readings that are not of one instant."""
GROUPINGS = ("module", "line", "stack", "category")
PLACES = ("pool", "stream", "phase")
CELL = 13
EARLIER, LATER = 6, 60
"""Entries told before the instant, and after it."""
RANGES = 500
RANGE_HEAD = Text(f"{'bytes':>10} {'stream':>6} pool", style="dim")


@dataclass(frozen=True)
class Instant:
    """After which entry of which device of which snapshot."""

    artefact: Artefact
    device: int
    entry: int

    def side(self) -> diff.Instant:
        """The instant as one side of a comparison."""
        return diff.Instant(artefact=self.artefact, device=self.device, entry=self.entry)


class Evidence(Readings):
    """The pane around it owns the keys."""

    TAKES_KEYS: ClassVar[bool] = False

    def __init__(self, devices: list[Any], options: Options, **named: Any) -> None:
        super().__init__(TITLES, **named)
        self._options = options
        self._matrix = matrix(devices)
        self._categories = [name for name in CATEGORIES if self._matrix[name].any()]
        self._grouping, self._place = GROUPINGS[0], PLACES[0]
        self._instant: Instant | None = None
        self._mark: Instant | None = None
        self._addresses: list[int] = []
        self._address: int | None = None

    def widgets(self) -> Iterable[Widget]:
        """A widget for each of `TITLES`."""
        yield Grid(id="stacks")
        yield Holders(id="tree")
        yield BlockMap(id="blocks")
        yield Grid(id="list")
        yield Grid(id="life")
        yield Grid(id="changes")
        yield PlaceArea(id="places")
        yield Grid(id="entries")
        yield Rows(RANGE_HEAD, lambda one: range_line(one[0], one[1], self.size.width), id="reserved")
        yield Rows(heat_head(self._categories), lambda row: heat_line(row, self._categories), id="ranks")

    def look_at(self, instant: Instant) -> None:
        """Show what is alive then."""
        if instant != self._instant:
            self._instant = instant
            self.load()

    def mark(self) -> None:
        """Compare with this instant from now on."""
        self._mark = self._instant
        if self._mark is not None:
            self.notify(f"marked entry {self._mark.entry}; d: what changed since", markup=False)
        self.load()

    async def regroup(self) -> None:
        """Group by something else: places where they are in sight, else the tree."""
        if self.reading == "places":
            self._place = PLACES[(PLACES.index(self._place) + 1) % len(PLACES)]
            self.load()
            return
        if self.reading == "tree":
            self._grouping = GROUPINGS[(GROUPINGS.index(self._grouping) + 1) % len(GROUPINGS)]
        await self.turn_to("tree")

    async def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Of a block in the list tell the life of its address."""
        if event.data_table.id == "list" and event.cursor_row < len(self._addresses):
            event.stop()
            self._address = self._addresses[event.cursor_row]
            await self.turn_to("life")

    async def on_block_map_chosen(self, event: BlockMap.Chosen) -> None:
        """Of a block that was clicked tell the life of its address."""
        self._address = event.address
        await self.turn_to("life")

    def ask(self, reading: str) -> tuple[Any, ...] | None:
        """Look up what was alive at the instant."""
        at = self._instant
        if reading == "ranks":
            return ([row for _, row in self._matrix.iterrows()],)
        looks = {
            "stacks": self._stacks,
            "tree": self._tree,
            "blocks": self._blocks,
            "list": self._list,
            "life": self._life,
            "changes": self._changes,
            "places": self._places,
            "entries": self._entries,
            "reserved": self._reserved,
        }
        return None if at is None else looks[reading](at)

    def _stacks(self, at: Instant) -> tuple[Any, ...]:
        return (stack_list(views.top_stacks(at.artefact, self._options, at.device, at.entry)),)

    def _tree(self, at: Instant) -> tuple[Any, ...]:
        return (views.tree(at.artefact, self._options, at.device, by=self._grouping, entry=at.entry),)

    def _blocks(self, at: Instant) -> tuple[Any, ...]:
        return views.segments(at.artefact, at.entry, self._options, at.device), self._state(at)

    def _list(self, at: Instant) -> tuple[Any, ...]:
        shown, self._addresses = block_list(self._state(at))
        return (shown,)

    def _life(self, at: Instant) -> tuple[Any, ...] | None:
        if self._address is None:
            return None
        return (block_history(views.blocks_of_address(at.artefact, self._address, self._options, at.device)),)

    def _changes(self, at: Instant) -> tuple[Any, ...]:
        before = self._mark or Instant(at.artefact, at.device, -1)
        return (module_changes(diff.between(before.side(), at.side(), self._options)),)

    def _places(self, at: Instant) -> tuple[Any, ...]:
        return (views.timeline_by(at.artefact, self._options, at.device, self._place, self.wide),)

    def _entries(self, at: Instant) -> tuple[Any, ...]:
        first = max(0, at.entry - EARLIER)
        count = at.entry + LATER + 1 - first
        return (entry_list(views.events(at.artefact, self._options, at.device, first, count)),)

    def _reserved(self, at: Instant) -> tuple[Any, ...]:
        frame = views.reserved_ranges(at.artefact, self._options, at.device, limit=RANGES)
        last = int(frame["died"].max()) if len(frame) else 0
        return ([(one, last) for one in frame.itertuples(index=False)],)

    def _state(self, at: Instant) -> pd.DataFrame:
        return views.live_blocks(at.artefact, at.entry, self._options, at.device)

    def title(self) -> str:
        """What is in sight, and of when."""
        about = super().title() + self._of()
        timeless = self.reading in TIMELESS or self._instant is None
        when = "" if self.reading == "entries" else "after "
        return about if timeless or self._instant is None else f"{about} {when}entry {self._instant.entry}"

    def _of(self) -> str:
        if self.reading == "life":
            return " ?: choose a block in the list" if self._address is None else f" {self._address:#x}"
        if self.reading == "changes" and self._mark is not None:
            return f" at entry {self._mark.entry},"
        return {"tree": f" {self._grouping}", "places": f" {self._place} (b: by something else)"}.get(self.reading, "")


def heat_head(categories: Sequence[str]) -> Text:
    """The head of the table of ranks and categories."""
    names = "".join(f" {name.replace('_', ' ')[: CELL - 1]:>{CELL - 1}}" for name in categories)
    return Text(f"  rank device  step {'peak':>{CELL}}{names}", style="dim")


def heat_line(row: "pd.Series[Any]", categories: Sequence[str]) -> Text:
    """A rank: bytes by category, each the hotter the larger its part of the rank's peak; a block tells the same."""
    line = Text("".join(f"{'-' if row[name] is None else row[name]!s:>6}" for name in ("rank", "device", "step")))
    line.append(f" {size(int(row['peak'])):>{CELL}}")
    for name in categories:
        level = round((len(LEVELS) - 1) * row[name] / max(1, row["peak"]))
        shade = HEAT[level * (len(HEAT) - 1) // (len(LEVELS) - 1)]
        line.append(f" {LEVELS[level]}{size(int(row[name])):>{CELL - 2}}", f"{text_colour(shade)} on {shade}")
    return line


def range_line(one: Any, last: int, width: int) -> Text:
    """A reserved range as a bar from the entry that reserved it to the one that gave it back; `last` is the right."""
    line = Text(f"{size(int(one.bytes)):>10} {one.stream:>6} {one.pool!s:<5} ")
    room = max(1, width - line.cell_len)
    begin, end = (max(0, entry) * room // max(1, last) for entry in (one.born, one.died))
    return line.append(" " * begin).append("█" * max(1, end - begin), nth_colour(int(one.stream)))
