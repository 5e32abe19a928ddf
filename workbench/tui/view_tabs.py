"""The views of a report, a tab for each."""

from collections.abc import Mapping, Sequence
from typing import Any

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static, TabbedContent, TabPane

RECORDED = {
    "home": "",
    "memory": "profiling.enable_memory_snapshot = true records it",
    "hang": "a timeout writes it, and `workbench hang --run` asks a job that hangs right now",
    "trace": "profiling.enable_profiling = true records it",
    "steps": "`workbench launch` and `workbench.recorders` log every step",
    "compare": "",
    "config": "`workbench launch` writes it to run.json",
}
"""What would have made a view's data."""


class Views(Vertical):
    """One view in sight at a time, `first` first; those without a pane say so."""

    def __init__(self, names: Sequence[str], panes: Mapping[str, Widget], first: str) -> None:
        super().__init__()
        self._names, self._panes, self._first = names, panes, first
        self._turned_to = ""

    def compose(self) -> ComposeResult:
        with TabbedContent(initial=self._first):
            for number, name in enumerate(self._names, 1):
                yield TabPane(f"{number} {name}", id=name)

    async def on_mount(self) -> None:
        await self.turn_to(self._first)

    async def turn_to(self, name: str) -> None:
        """Show a view and give it the keys. Views are made when they are first wanted."""
        tabs = self.query_one(TabbedContent)
        self._turned_to = name
        # A focused widget of a hidden view would bring that view back.
        self.screen.set_focus(None)
        tabs.active = name
        tab = tabs.get_pane(name)
        if not tab.children:
            absent = Static(f"no {name} data in this run: {RECORDED[name]}", classes="absent", markup=False)
            await tab.mount(self._panes.get(name) or absent)
        self.give_keys()

    async def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """A tab that was clicked does what its number does."""
        if event.pane.id is not None and event.pane.id != self._turned_to:
            await self.turn_to(event.pane.id)

    def give_keys(self) -> None:
        """Let the first widget in sight that takes keys have them."""
        self.screen.set_focus(next((w for w in self.in_sight if w.focusable), None))

    @property
    def pane(self) -> Widget:
        """The view in sight."""
        tabs = self.query_one(TabbedContent)
        return self._panes.get(tabs.active, tabs)

    @property
    def in_sight(self) -> list[Widget]:
        """The widgets of the view that is shown."""
        tabs = self.query_one(TabbedContent)
        return [w for w in tabs.get_pane(tabs.active).walk_children(Widget) if shown(w)]

    def searchable(self) -> Any:
        """What can be searched: what has the keys, else the first such thing in sight; None if there is none."""
        focused = self.screen.focused
        able = [w for w in [focused, *self.in_sight] if w is not None and hasattr(w, "search")]
        return able[0] if able else None


def shown(widget: Widget) -> bool:
    """Whether neither it nor what is around it is hidden."""
    return all(node.display for node in widget.ancestors_with_self if isinstance(node, Widget))
