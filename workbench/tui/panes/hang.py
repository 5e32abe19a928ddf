"""The pane for hangs: a matrix of ranks and collectives, and below it views that explain the hang."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pandas as pd
from rich.text import Text
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static

from analyzers.hangs import HangData, views
from analyzers.hangs.model import Group
from analyzers.report import Report
from analyzers.run import Run
from analyzers.store import Options
from analyzers.words import rank_ranges, without_middle
from workbench.console import clean
from workbench.present.table import Table, filled
from workbench.present.tables.hang import culprit_stacks, current_positions, hang_tables, operations, victim_stacks
from workbench.rooms import EvidenceLink
from workbench.tui.picker import pick
from workbench.tui.subject import Subject
from workbench.tui.widgets.common import call_on_new_size
from workbench.tui.widgets.grids import CollectiveMatrix, matrix_legend
from workbench.tui.widgets.tables import ChangingTableList, Grid
from workbench.tui.widgets.trees import StackTree
from workbench.tui.widgets.view_switcher import VIEW_KEYS, Drawing, ViewSwitcher, ask_in_background

_COLLECTIVES = 60
"""The least collectives that the matrix has; on a broad screen it has as many as fit."""
AROUND = 8
"""The least sequence numbers before and after the first difference that the operations beside the culprits have."""
BROAD = 140
"""The width of the views, in columns, from which on evidence is shown beside the culprits."""
ROWS_AT_MOST = 32
"""The most ranks that have a row each; if there are more, ranks with the same states share a row."""
_WIDEST_RANKS = 40
"""The most characters of the list of ranks in the name of a process group."""
_OTHER_GROUPS = 2
"""The most process groups, besides the one on the screen, whose operations are shown as evidence."""
_OTHER_LINES = 4
"""The number of lines besides the rows of the ranks: title, legend, and the matrix's own heading and scroll bar."""
TITLES = {
    "chain": "culprits, which rank waits for which, and where the culprits are",
    "stacks": "stacks of all ranks, merged",
    "operations": "operations of the ranks side by side, around the first difference",
    "standing": "current position of each rank",
}


class HangPane(Vertical):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("b", "group(1)", "Next group", id="hang.group"),
        Binding("p", "pick", "Pick group", id="hang.pick"),
        *VIEW_KEYS,
    ]

    def __init__(self, data: HangData, subject: Subject, _report: Report[object]) -> None:
        super().__init__()
        self._data, self._run, self._options = data, subject.runs[0], subject.options
        self._group_names = [group.name for group in data.groups]
        broken = self._broken_groups([culprit.group for culprit in data.culprits])
        self._at = broken[0] if broken else 0

    def _broken_groups(self, names: Iterable[str | None]) -> list[int]:
        """Return, for each of the process groups `names`, its index in the report's list of groups.

        Names that the report does not list are skipped.
        """
        return [self._group_names.index(name) for name in names if name in self._group_names]

    def compose(self) -> ComposeResult:
        with Vertical(id="hang-top", classes="top"):
            yield Static(id="hang-title")
            yield Static(matrix_legend(), id="legend")
            yield CollectiveMatrix(id="matrix")
        yield HangViews(self._data, self._run, self._options)

    def on_mount(self) -> None:
        self._show_group()

    async def show_evidence(self, link: EvidenceLink) -> None:
        """Show the process group that the finding's rank blocks, and the view that explains the finding best.

        That view is the one that the link names, else the list of culprits.
        """
        broken = self._broken_groups(culprit.group for culprit in self._data.culprits if link.rank in culprit.ranks)
        self._at = broken[0] if broken else self._at
        self._show_group()
        await self.query_one(HangViews).turn_to(link.part or "chain")

    def action_group(self, by: int) -> None:
        self._at = (self._at + by) % max(1, len(self._data.groups))
        self._show_group()

    def action_pick(self) -> None:
        """Let the user pick a process group, because there may be hundreds of them."""
        pick(self, "process group", [_group_text(group) for group in self._data.groups], self._at, self._choose_group)

    def palette_commands(self) -> Iterator[SystemCommand]:
        for at, group in enumerate(self._data.groups):
            choose = partial(self._choose_group, at)
            yield SystemCommand(f"Show group {_group_text(group)}", "key p lists all groups", choose)

    def _choose_group(self, at: int) -> None:
        self._at = at
        self._show_group()

    async def action_turn(self, by: int) -> None:
        await self.query_one(HangViews).action_turn(by)

    def _show_group(self) -> None:
        if self._data.groups:
            self.query_one(HangViews).show_group(self._data.groups[self._at].name)
            self._load()

    def _load(self) -> None:
        group = self._data.groups[self._at]
        number = f"{self._at + 1} of {len(self._data.groups)}"
        title = f"group {_group_text(group)}   {number}"
        columns = max(_COLLECTIVES, self.app.size.width // 2)
        ask_in_background(
            self,
            "matrix",
            lambda: views.matrix(self._run, group.name, columns, self._options),
            lambda frame: self._draw(Text(title, style="bold"), frame),
        )

    def _draw(self, title: Text, frame: pd.DataFrame) -> None:
        self.query_one("#hang-title", Static).update(title)
        frame = frame if len(frame) <= ROWS_AT_MOST else views.folded(frame)
        self.query_one("#hang-top").styles.height = len(frame) + _OTHER_LINES
        self.query_one(CollectiveMatrix).show(frame)


def _group_text(group: Group) -> str:
    ranks = without_middle(rank_ranges(group.ranks), _WIDEST_RANKS)
    of = f" ({clean(group.description)})" if group.description else ""
    return f"{clean(group.name)}{of}, ranks {ranks}"


class HangViews(ViewSwitcher):
    """The views below the matrix of collectives."""

    def __init__(self, data: HangData, run: Run, options: Options) -> None:
        super().__init__(TITLES)
        self._data, self._run, self._options = data, run, options
        self._group: str | None = None
        self._with_evidence = False
        self._tall = 0
        self._causes: list[Table] = []
        self._evidence: list[Table] | None = None

    def on_mount(self) -> None:
        self._tall = self.app.size.height
        super().on_mount()
        call_on_new_size(self, self._change_evidence)

    def _change_evidence(self) -> None:
        """Show the evidence beside the culprits if the screen now has room for it, or hide it.

        It is loaded when it is first shown.
        """
        if self._with_evidence != (self.size.width >= BROAD):
            self._with_evidence = not self._with_evidence
            if self._with_evidence and self._evidence is None:
                self.load()
            else:
                self._draw_chain()

    def show_group(self, group: str) -> None:
        self._group = group
        self.load()

    def widgets(self) -> Iterable[Widget]:
        yield ChangingTableList(id="chain")
        yield StackTree(id="stacks")
        yield Grid(id="operations")
        yield Grid(id="standing")

    def ask(self, view: str) -> Drawing | None:
        """Compute the content of the view named `view`, and return a function that draws it."""
        if view == "chain":
            return self._chain()
        if view == "stacks":
            return partial(self.widget(view, StackTree).show, views.stacks(self._run, self._options))
        if view == "operations":
            frame = views.operations(self._run, self._group, options=self._options)
            return partial(self.widget(view, Grid).show, operations(frame))
        if view == "standing":
            frame = views.locations(self._run, self._options)
            return partial(self.widget(view, Grid).show, current_positions(frame))
        return None

    def _chain(self) -> Drawing:
        """Return a function that draws the tables of culprits and waiting ranks, and the evidence if it has room."""
        causes = filled([*hang_tables(self._data)[:2], *culprit_stacks(self._data.culprits)])
        around = max(AROUND, self._tall // 4)
        evidence = filled(self._evidence_tables(around)) if self._with_evidence else None

        def draw() -> None:
            self._causes, self._evidence = causes, evidence
            self._draw_chain()

        return draw

    def _draw_chain(self) -> None:
        evidence = self._evidence or []
        self.widget("chain", ChangingTableList).show([*self._causes, *(evidence if self._with_evidence else [])])

    def _evidence_tables(self, around: int) -> Iterator[Table]:
        """Yield the stacks of waiting ranks, the operations around the first difference, and where each rank is.

        The operations are those of the group on the screen, and of those in which the culprits themselves wait;
        `around` sequence numbers before and after the first difference. The process groups come last.
        """
        run, options = self._run, self._options
        yield from victim_stacks(self._data, views.stacks(run, options))
        yield operations(views.operations(run, self._group, around, options))
        yield current_positions(views.locations(run, options))
        culprits = {rank for culprit in self._data.culprits for rank in culprit.ranks}
        groups = {wait.group for wait in self._data.waits if wait.rank in culprits} - {self._group}
        for group in sorted(groups)[:_OTHER_GROUPS]:
            content = operations(views.operations(run, group, options=options))
            yield replace(content, title=f"Operations of group {self._label(group)}, in which a culprit waits")
        yield from hang_tables(self._data)[2:]

    def _label(self, name: str) -> str:
        return next((group.label for group in self._data.groups if group.name == name), name)
