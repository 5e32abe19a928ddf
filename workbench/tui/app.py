"""The terminal app: the answer first, the evidence one key away."""

from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Footer, Header, LoadingIndicator, Static, TabbedContent, TabPane

from analyzers.errors import WorkbenchError
from analyzers.report import Report
from analyzers.run import Run
from analyzers.store import Options
from workbench.ask import ask, parts
from workbench.console import clean
from workbench.tui.panes.hang import HangPane
from workbench.tui.panes.home import HomePane
from workbench.tui.panes.memory import MemoryPane
from workbench.tui.panes.steps import StepsPane
from workbench.tui.panes.trace import TracePane

VIEWS = ("home", "memory", "hang", "trace", "steps")
PANES: dict[str, type[MemoryPane | HangPane | TracePane | StepsPane]] = {
    "memory": MemoryPane,
    "hang": HangPane,
    "trace": TracePane,
    "steps": StepsPane,
}


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


class Views(Vertical):
    """A tab for each question; that of `room` comes first to sight, home where several rooms are joined."""

    def __init__(self, report: Report[Any], run: Run, room: str, options: Options) -> None:
        super().__init__()
        self._report, self._run, self._options = report, run, options
        self._found = parts(report)
        self._first = room if room in self._found else "home"

    def compose(self) -> ComposeResult:
        with TabbedContent(initial=self._first):
            for i, name in enumerate(VIEWS, 1):
                with TabPane(f"{i} {name}", id=name):
                    yield self._pane(name)

    def on_mount(self) -> None:
        self.turn_to(self._first)

    def turn_to(self, name: str) -> None:
        """Show a view and give it the keys."""
        tabs = self.query_one(TabbedContent)
        tabs.active = name
        pane = tabs.get_pane(name)
        # A focused widget of a hidden view would bring that view back.
        self.screen.set_focus(next((w for w in pane.walk_children(Widget) if w.focusable), None))

    def _pane(self, name: str) -> Widget:
        if name == "home":
            return HomePane(self._report)
        if name not in self._found:
            return Static(f"no {name} data in this run", classes="absent")
        return PANES[name](self._found[name], self._run, self._options)


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
        with Vertical(id="loading"):
            yield Static(Text(f"reading {len(self._run.artefacts)} files"), id="loading-text")
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
        await self.query_one("#loading").remove()
        await self.mount(Views(message.report, self._run, self._room, self._options), before=self.query_one(Footer))

    def on_failed(self, message: Failed) -> None:
        text = f"error: {clean(message.error.message)}\nhint: {clean(message.error.hint)}\n\nq quits"
        self.query_one(LoadingIndicator).remove()
        self.query_one("#loading-text", Static).update(Text(text))

    def action_view(self, name: str) -> None:
        for views in self.query(Views):
            views.turn_to(name)
