"""Who waits for whom: the matrix of ranks and collectives, and below it what explains it."""

from collections.abc import Iterable
from typing import Any, ClassVar

import pandas as pd
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static

from analyzers.hangs import views
from analyzers.run import Run
from analyzers.store import Options
from analyzers.words import rank_ranges
from workbench.console import clean
from workbench.evidence_link import EvidenceLink
from workbench.present.tables.hang import current_positions, hang_tables, operations
from workbench.tui.background import ask_aside
from workbench.tui.widgets.charts.collective_matrix import Matrix, legend
from workbench.tui.widgets.tables import Grid, Sections
from workbench.tui.widgets.trees.stack_tree import StackTree
from workbench.tui.widgets.view_switcher import TURNS, Readings

COLLECTIVES = 60
UNFOLDED = 32
"""Up to so many ranks have a row each; of more, those that read the same are put together."""
LINES_AROUND = 4
"""Title, legend, and the matrix's own head and scroll bar."""
TITLES = {
    "chain": "culprits, and who waits for whom",
    "stacks": "stacks of all ranks, merged",
    "operations": "operations side by side, around the point where ranks part",
    "standing": "where the ranks stand",
}


class HangPane(Vertical):
    """`b` goes to the next process group; `v` to the next reading below the matrix."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("b", "group(1)", "Next group", id="hang.group"),
        *TURNS,
    ]

    def __init__(self, data: Any, run: Run, options: Options) -> None:
        super().__init__()
        self._data, self._run, self._options = data, run, options
        self._at = self._first_group()

    def _first_group(self) -> int:
        """The group that the first culprit broke."""
        names = [group.name for group in self._data.groups]
        broken = [names.index(c.group) for c in self._data.culprits if c.group in names]
        return broken[0] if broken else 0

    def compose(self) -> ComposeResult:
        with Vertical(id="hang-top", classes="top"):
            yield Static(id="hang-title")
            yield Static(legend(), id="legend")
            yield Matrix(id="matrix")
        yield Explained(self._data, self._run, self._options)

    def on_mount(self) -> None:
        self._turn()

    async def look(self, at: EvidenceLink) -> None:
        """Show the group that the rank's fault broke, and what is best seen of that."""
        names = [group.name for group in self._data.groups]
        broken = [c.group for c in self._data.culprits if at.rank in c.ranks and c.group in names]
        self._at = names.index(broken[0]) if broken else self._at
        self._turn()
        await self.query_one(Explained).turn_to(at.part or "chain")

    def action_group(self, by: int) -> None:
        self._at = (self._at + by) % max(1, len(self._data.groups))
        self._turn()

    async def action_reading(self, by: int) -> None:
        await self.query_one(Explained).action_reading(by)

    def _turn(self) -> None:
        """Show the group, also in what is read below."""
        if self._data.groups:
            self.query_one(Explained).of_group(self._data.groups[self._at].name)
            self._load()

    def _load(self) -> None:
        group = self._data.groups[self._at]
        place = f"{self._at + 1} of {len(self._data.groups)}"
        title = f"group {clean(group.name)} ({clean(group.desc)}), ranks {rank_ranges(group.ranks)}   {place}"
        ask_aside(
            self,
            "matrix",
            lambda: views.matrix(self._run, group.name, COLLECTIVES, self._options),
            lambda frame: self._show(Text(title, style="bold"), frame),
        )

    def _show(self, title: Text, frame: pd.DataFrame) -> None:
        self.query_one("#hang-title", Static).update(title)
        frame = frame if len(frame) <= UNFOLDED else views.folded(frame)
        self.query_one("#hang-top").styles.height = len(frame) + LINES_AROUND
        self.query_one(Matrix).show(frame)


class Explained(Readings):
    """The readings below the matrix."""

    def __init__(self, data: Any, run: Run, options: Options) -> None:
        super().__init__(TITLES)
        self._data, self._run, self._options = data, run, options
        self._group: str | None = None

    def of_group(self, group: str) -> None:
        """Speak of another process group."""
        self._group = group
        self.load()

    def widgets(self) -> Iterable[Widget]:
        """Chain, stacks, operations, places."""
        yield Sections([section for section in hang_tables(self._data)[:2] if section.rows], id="chain")
        yield StackTree(id="stacks")
        yield Grid(id="operations")
        yield Grid(id="standing")

    def ask(self, reading: str) -> tuple[Any, ...] | None:
        """Look up what a reading shows."""
        if reading == "stacks":
            return (views.stacks(self._run, self._options),)
        if reading == "operations":
            return (operations(views.operations(self._run, self._group, options=self._options)),)
        if reading == "standing":
            return (current_positions(views.locations(self._run, self._options)),)
        return None
