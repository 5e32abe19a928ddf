"""What the app can show, called its subject: a run and its report, or a comparison of runs."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from textual.app import ComposeResult, SystemCommand
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static, TabbedContent, TabPane

from analyzers import compare, parity
from analyzers.report import Report
from analyzers.rooms import JOINED, ROOMS, ask, limited_to
from analyzers.run import Run
from analyzers.store import Options
from workbench.rooms import FACES, EvidenceLink


@dataclass(frozen=True)
class Subject:
    """A run, some of its files, or two runs to compare (`runs`), and the room that is asked about them.

    The view of the room is shown first. The room `incident` has no view of its own, as it joins all others; then the
    home view is shown first. `ask` computes the report, which may take minutes. `command` is the command line of
    `workbench` that shows the same.
    """

    room: str
    runs: tuple[Run, ...]
    options: Options
    ask: Callable[[], Report[object]]
    command: str

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views, in order."""
        rooms = [name for name, room in ROOMS.items() if room.kinds and FACES[name].pane]
        if self.room not in (JOINED, *rooms):
            return ("home", *([self.room] if FACES[self.room].pane else []))
        # Logs come last, so that the numbers of the other views stay.
        return ("home", *(name for name in rooms if name != "logs"), "config", "logs")


def subject_of(run: Run, room: str, options: Options) -> Subject:
    """Return what the app shows of a run, or of a folder that `workbench parity` has written, in a room."""
    name = FACES[room].command if ROOMS[room].kinds else ""
    return Subject(
        room, (run,), options, partial(ask, room, run, options), f"workbench {name or 'inspect'} {_quoted(run)}"
    )


def comparison(a: Run, b: Run, options: Options) -> Subject:
    """Return two runs, or two files of the same kind, to compare."""

    def answer() -> Report[object]:
        with limited_to(options, a, b):
            return compare.analyze(a, b, options)

    return Subject("compare", (a, b), options, answer, f"workbench compare {_quoted(a, b)}")


def bisection(a: Run, b: Run, options: Options, tolerance: float | None = None) -> Subject:
    """Return two recorded runs whose first difference the app shows.

    `tolerance` is the largest difference that is ignored; None means a tolerance that depends on the dtype.
    """

    def answer() -> Report[object]:
        with limited_to(options, a, b):
            return parity.bisect(a, b, options, tolerance)

    allowed = "" if tolerance is None else f" --tolerance {tolerance}"
    return Subject("bisect", (a, b), options, answer, f"workbench bisect {_quoted(a, b)}{allowed}")


def _quoted(*runs: Run) -> str:
    """Return the folders of runs as words of a command line."""
    return " ".join(shlex.quote(str(run.root)) for run in runs)


@runtime_checkable
class ShowsEvidence(Protocol):
    async def show_evidence(self, link: EvidenceLink) -> None:
        """Show the rank, time, block or row that an evidence link names."""


@runtime_checkable
class PreparesSearch(Protocol):
    """A pane that can switch to a searchable view, because its current view may not be searchable."""

    async def before_search(self) -> None:
        """Switch to a view that can be searched."""


@runtime_checkable
class HasPaletteCommands(Protocol):
    def palette_commands(self) -> Iterator[SystemCommand]:
        """Yield the pane's commands for the command palette."""


@runtime_checkable
class Searchable(Protocol):
    def search(self, text: str) -> None:
        """Move the cursor to the first match of the text."""


@runtime_checkable
class HasCursorText(Protocol):
    def text_at_cursor(self) -> str:
        """Return the text under the cursor; empty if there is none."""


class ViewTabs(Vertical):
    """Tabs, each with the view of one analyzer; the view named `first` is shown at the start.

    A view without data explains how to record the data.
    """

    def __init__(self, names: Sequence[str], panes: Mapping[str, Widget], first: str) -> None:
        super().__init__()
        self._names, self._panes, self._first = names, panes, first
        self._active = ""

    def compose(self) -> ComposeResult:
        with TabbedContent(initial=self._first):
            for number, name in enumerate(self._names, 1):
                yield TabPane(f"{number} {name}", id=name)

    async def on_mount(self) -> None:
        await self.turn_to(self._first)

    async def turn_to(self, name: str) -> None:
        """Show and focus the view `name`; create its pane if this is the first time."""
        tabs = self.query_one(TabbedContent)
        self._active = name
        # A focused widget of a hidden tab would bring that tab back.
        self.screen.set_focus(None)
        tabs.active = name
        tab = tabs.get_pane(name)
        if not tab.children:
            how = FACES[name].to_record if name in FACES else "`workbench launch` writes it to run.json"
            absent = Static(f"no {name} data in this run: {how}", classes="absent", markup=False)
            await tab.mount(self._panes.get(name) or absent)
        self.give_keys()

    async def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        if event.pane.id is not None and event.pane.id != self._active:
            await self.turn_to(event.pane.id)

    def give_keys(self) -> None:
        self.screen.set_focus(next((widget for widget in self.shown_widgets if widget.focusable), None))

    @property
    def pane(self) -> Widget:
        tabs = self.query_one(TabbedContent)
        return self._panes.get(tabs.active, tabs)

    @property
    def shown_widgets(self) -> list[Widget]:
        tabs = self.query_one(TabbedContent)
        return [widget for widget in tabs.get_pane(tabs.active).walk_children(Widget) if _is_shown(widget)]

    def search(self, text: str) -> bool:
        """Search in the focused widget, or else in the first searchable widget; return False if none is searchable."""
        focused = self.screen.focused
        for widget in [*([focused] if focused else []), *self.shown_widgets]:
            if isinstance(widget, Searchable):
                widget.focus()
                widget.search(text)
                return True
        return False


def _is_shown(widget: Widget) -> bool:
    return all(node.display for node in widget.ancestors_with_self if isinstance(node, Widget))
