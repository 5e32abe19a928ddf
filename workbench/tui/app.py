"""The terminal app: the answer first, the evidence one key away."""

import gc
import time
from collections.abc import Iterable
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Header, Input, LoadingIndicator, Static, Tree

from analyzers.errors import WorkbenchError
from analyzers.report import Report
from analyzers.words import size
from workbench.console import clean
from workbench.source_files import find_source
from workbench.tui.command_palette import commands
from workbench.tui.dashboard_process import Dashboard
from workbench.tui.panes.home import Looked
from workbench.tui.reader_processes import end_children
from workbench.tui.source_screen import SourceScreen
from workbench.tui.subject import Subject
from workbench.tui.view_tabs import Views
from workbench.tui.widgets.charts.cursor_breakdown import WIDE
from workbench.tui.widgets.key_line import KeyLine
from workbench.tui.widgets.view_switcher import Readings


class Answered(Message):
    """The analyzers are done."""

    def __init__(self, report: Report[Any]) -> None:
        super().__init__()
        self.report = report


class Failed(Message):
    """They could not answer."""

    def __init__(self, error: WorkbenchError) -> None:
        super().__init__()
        self.error = error


class WorkbenchApp(App[None]):
    """Shows a case. What several views share is here: search, source, copying, the dashboard."""

    TITLE = "workbench"
    CSS_PATH = "workbench.tcss"
    AUTO_FOCUS = ""
    """Nothing: the search, else, would take the keys as long as nothing but it is there."""
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide")]  # noqa: RUF012  # Textual types it as of the instance
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(i), f"view({i})", f"View {i}", id=f"view.{i}", show=False) for i in range(1, 7)),
        Binding("slash", "search", "Search", id="search"),
        Binding("f", "focus_evidence", "Focus", id="focus", show=False),
        Binding("o", "source", "Source", id="source", show=False),
        Binding("y", "copy", "Copy", id="copy", show=False),
        Binding("w", "web", "Web", id="web", show=False),
        Binding("question_mark", "show_help_panel", "Help", id="help"),
        Binding("t", "change_theme", "Theme", id="theme", show=False),
        Binding("escape", "leave", "Back", id="back", show=False),
        Binding("q", "quit", "Quit", id="quit"),
    ]

    def __init__(self, case: Subject) -> None:
        super().__init__()
        self._case = case
        self._began = time.monotonic()
        self._dashboard: Dashboard | None = None
        self.report: Report[Any] | None = None
        self.sub_title = clean(" and ".join(str(run.root) for run in case.runs))

    def compose(self) -> ComposeResult:
        yield Header()
        with Vertical(id="loading"):
            yield Static(id="loading-text")
            yield LoadingIndicator()
        yield Input(id="search", placeholder="enter: go there   n N: next, previous   esc: back", classes="hidden")
        yield KeyLine()

    def on_mount(self) -> None:
        self._tell_progress()
        self._clock = self.set_interval(0.5, self._tell_progress)
        self._ask()

    def _tell_progress(self) -> None:
        files = [artefact for run in self._case.runs for artefact in run.artefacts]
        waited = time.monotonic() - self._began
        told = f"reading {len(files)} files, {size(sum(a.bytes for a in files))}   {waited:.0f} s   q gives up"
        self.query_one("#loading-text", Static).update(Text(told))

    @work(thread=True, exclusive=True)
    def _ask(self) -> None:
        """Reading happens in child processes, so this thread mostly waits."""
        try:
            self.post_message(Answered(self._case.ask()))
        except WorkbenchError as error:
            self.post_message(Failed(error))

    async def on_answered(self, message: Answered) -> None:
        self.report = message.report
        self._clock.stop()
        await self.query_one("#loading").remove()
        panes = self._case.panes(message.report)
        views = Views(self._case.views, panes, self._case.wanted if self._case.wanted in panes else "home")
        await self.mount(views, before=self.query_one("#search"))

    def on_failed(self, message: Failed) -> None:
        text = f"error: {clean(message.error.message)}\nhint: {clean(message.error.hint)}\n\nq quits"
        self.query_one(LoadingIndicator).remove()
        self._clock.stop()
        self.query_one("#loading-text", Static).update(Text(text))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        in_sight = [w for views in self.query(Views) for w in views.in_sight if isinstance(w, Readings)]
        yield from commands(self, self._case.views, in_sight)
        yield from super().get_system_commands(screen)

    async def action_view(self, number: int) -> None:
        for views in self.query(Views):
            if number <= len(self._case.views):
                await views.turn_to(self._case.views[number - 1])

    async def on_looked(self, message: Looked) -> None:
        """Turn to the evidence of a finding."""
        views = self.query_one(Views)
        await views.turn_to(message.at.room)
        if hasattr(views.pane, "look"):
            await views.pane.look(message.at)

    async def action_search(self) -> None:
        """Ask for a text to find in what is in sight."""
        for views in self.query(Views):
            if hasattr(views.pane, "before_search"):
                await views.pane.before_search()
            asked = self.query_one("#search", Input)
            asked.remove_class("hidden")
            asked.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._close_search()
        target = self.query_one(Views).searchable()
        if target is None:
            self.notify("nothing here can be searched", markup=False)
            return
        target.focus()
        target.search(event.value)

    def action_leave(self) -> None:
        """Close the search, else show again what the evidence has taken the room of."""
        if self.query_one("#search", Input).has_class("hidden"):
            self.query(".top").remove_class("hidden")
            return
        self._close_search()

    def _close_search(self) -> None:
        self.query_one("#search", Input).add_class("hidden")
        self.query_one(Views).give_keys()

    def action_focus_evidence(self) -> None:
        """Give what is below the picture its room, or take it back."""
        for views in self.query(Views):
            views.pane.query(".top").toggle_class("hidden")

    def chosen(self) -> str:
        """What the cursor is on, as text."""
        focused = self.screen.focused
        around = focused.ancestors_with_self if focused is not None else []
        return next((str(found) for node in around if (found := chosen_in(node))), "")

    def action_source(self) -> None:
        """Show the file that the cursor's line names."""
        place = find_source(self.chosen())
        if place is None:
            self.notify("no file of this machine is named here", markup=False)
            return
        self.push_screen(SourceScreen(*place))

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        self._source_if_there()

    def on_tree_node_selected(self, event: Tree.NodeSelected[int]) -> None:
        if not event.node.allow_expand:
            self._source_if_there()

    def _source_if_there(self) -> None:
        if place := find_source(self.chosen()):
            self.push_screen(SourceScreen(*place))

    def action_copy(self) -> None:
        """Copy what the cursor is on, else the command that shows the same."""
        text = self.chosen() or self._case.command
        self.copy_to_clipboard(text)
        self.notify(f"copied: {clean(text)[:200]}", markup=False)

    def action_web(self) -> None:
        """Open the same in a browser, or say where it can be opened."""
        self._dashboard = self._dashboard or Dashboard(self._case.runs[0].root)
        self._announce(self._dashboard)

    @work(thread=True, exclusive=True, group="web")
    def _announce(self, dashboard: Dashboard) -> None:
        told = dashboard.open()
        self.call_from_thread(self.notify, told, timeout=20, markup=False)

    async def action_quit(self) -> None:
        """Leave; what is still being read is given up."""
        if self._dashboard is not None:
            self._dashboard.close()
        if self.report is None:
            end_children()
        self.exit()


def open_app(case: Subject) -> None:
    """Show a case until its reader leaves.

    What is loaded by now stays loaded. To look through it for garbage, as Python does now and then, would hold up a key
    for a tenth of a second.
    """
    gc.freeze()
    WorkbenchApp(case).run()


def chosen_in(node: Any) -> str:
    """What the cursor of a widget is on; empty where it has none."""
    return str(node.chosen()) if hasattr(node, "chosen") else ""
