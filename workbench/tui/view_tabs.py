"""The views of a report, with one tab for each view."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from textual.app import ComposeResult, SystemCommand
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static, TabbedContent, TabPane

from workbench.rooms import FACES, EvidenceLink


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
        """Focus the first widget of the current view that can be focused, so that the keys of the view work."""
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
