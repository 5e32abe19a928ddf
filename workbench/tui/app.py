"""The terminal app: the answer first, the evidence one key away."""

from typing import Any, ClassVar

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Center, Middle
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Footer, Header, LoadingIndicator, Static, TabbedContent, TabPane

from analyzers.errors import WorkbenchError
from analyzers.report import Report
from analyzers.run import Run
from analyzers.store import Options
from workbench.ask import ask, parts
from workbench.console import clean
from workbench.present.sections import OF_ROOM
from workbench.tui.panes.hang import HangPane
from workbench.tui.panes.home import HomePane
from workbench.tui.panes.memory import MemoryPane
from workbench.tui.widgets.tables import Sections

VIEWS = ("home", "memory", "hang", "trace", "steps")


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
    """Opens on the view of `room`; `joined` opens on home."""

    TITLE = "workbench"
    CSS_PATH = "workbench.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(i), f"view('{name}')", name.capitalize(), id=f"view.{name}") for i, name in enumerate(VIEWS, 1)),
        Binding("question_mark", "show_help_panel", "Help", id="help"),
        Binding("t", "change_theme", "Theme", id="theme", show=False),
        Binding("q", "quit", "Quit", id="quit"),
    ]

    def __init__(self, run: Run, room: str, options: Options) -> None:
        super().__init__()
        self._run, self._room, self._options = run, room, options
        self.report: Report[Any] | None = None
        self.sub_title = clean(run.root)

    def compose(self) -> ComposeResult:
        yield Header()
        with Center(id="loading"), Middle():
            yield Static(f"reading {len(self._run.artefacts)} files", id="loading-text")
            yield LoadingIndicator()
        yield Footer()

    def on_mount(self) -> None:
        self._ask()

    @work(thread=True, exclusive=True)
    def _ask(self) -> None:
        """Reading happens in child processes, so this thread mostly waits."""
        try:
            self.post_message(Answered(ask(self._room, self._run, self._options)))
        except WorkbenchError as error:
            self.post_message(Failed(error))

    async def on_answered(self, message: Answered) -> None:
        self.report = message.report
        found = parts(message.report)
        await self.query_one("#loading").remove()
        panes = [TabPane(f"{i} {name}", self._pane(name, found), id=name) for i, name in enumerate(VIEWS, 1)]
        wanted = self._room if self._room in found else "home"
        await self.mount(TabbedContent(initial=wanted), before=self.query_one(Footer))
        for pane in panes:
            await self.query_one(TabbedContent).add_pane(pane)
        self.query_one(TabbedContent).active = wanted

    def on_failed(self, message: Failed) -> None:
        text = f"error: {clean(message.error.message)}\nhint: {clean(message.error.hint)}\n\nq quits"
        self.query_one(LoadingIndicator).remove()
        self.query_one("#loading-text", Static).update(text)

    def _pane(self, name: str, found: dict[str, Any]) -> Widget:
        if name == "home":
            assert self.report is not None
            return HomePane(self.report)
        if name not in found:
            return Static(f"no {name} data in this run", classes="absent")
        if name == "memory":
            return MemoryPane(found[name], self._run, self._options)
        if name == "hang":
            return HangPane(found[name], self._run, self._options)
        return Sections(OF_ROOM[name](found[name]))

    def action_view(self, name: str) -> None:
        for tabs in self.query(TabbedContent):
            tabs.active = name
            pane = tabs.get_pane(name)
            next((w for w in pane.walk_children(Widget) if w.focusable), pane).focus()
