"""The terminal app: it shows the verdict of a report first, and its evidence after one key press."""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Resize
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import DataTable, Header, Input, LoadingIndicator, Static, Tree

from analyzers.errors import WorkbenchError
from analyzers.report import Report
from analyzers.rooms import imported
from analyzers.words import quantity, size, waiting_time
from workbench.console import clean
from workbench.present.table import fitted_title, table
from workbench.python_path import command, environment
from workbench.rooms import ANSWERED_FIRST, FACES, data_by_room
from workbench.run_settings import SIGNS, run_settings
from workbench.source_files import find_source
from workbench.tui.panes.home import EvidenceWanted, HomePane
from workbench.tui.panes.home_picture import home_pictures
from workbench.tui.subject import HasCursorText, HasPaletteCommands, PreparesSearch, ShowsEvidence, Subject, ViewTabs
from workbench.tui.terminal_app import TerminalApp, leave_searches_to_idle_times, run_app
from workbench.tui.widgets.common import KeyLine
from workbench.tui.widgets.memory_timeline import WIDE
from workbench.tui.widgets.tables import Grid, RowList
from workbench.tui.widgets.view_switcher import ViewSwitcher


class ConfigPane(Vertical):
    """A searchable table of all settings: value, origin, and why a setting was ignored or translated.

    A sign before the origin says how the setting was handled. Settings with their default value come last.
    """

    def __init__(self, manifest: Mapping[str, object]) -> None:
        super().__init__()
        self._manifest = manifest

    def compose(self) -> ComposeResult:
        settings = sorted(run_settings(self._manifest), key=lambda setting: setting.origin == "default")
        rows = ((s.key, s.value, f"{SIGNS.get(s.cls, '')} {s.origin}".strip(), s.reason) for s in settings)
        yield Grid(table("", "setting | value | from | why", rows, len(settings)), id="settings")


KEYS = (
    ("Search the view that is shown", "/", "search"),
    ("Give the view below the chart all the room", "f", "focus_evidence"),
    ("Open the source of the line under the cursor", "o", "source"),
    ("Copy the text under the cursor", "y", "copy"),
    ("Open in the browser", "w", "web"),
)
"""(title, key, action) of each action that a single key starts."""


def commands(app: App[None], tabs: Sequence[str], shown: Sequence[ViewSwitcher]) -> Iterator[SystemCommand]:
    """Yield a palette command for each tab, each view of the switchers in `shown`, and each single-key action."""
    for number, name in enumerate(tabs, 1):
        yield SystemCommand(f"View {name}", f"key {number}", partial(app.run_action, f"view({number})"))
    for switcher in shown:
        for view, title in switcher.titles.items():
            yield SystemCommand(f"Show {title}", "key v turns to it", partial(switcher.turn_to, view))
    for title, key, action in KEYS:
        yield SystemCommand(title, f"key {key}", partial(app.run_action, action))


# With a blank after it, because the file may be read in the middle of a write.
ADDRESS = re.compile(r"https?://\S+(?=\s)")
POLL_S = 0.1
_OUTPUT_BYTES = 1 << 16


class Dashboard:
    """Runs `workbench serve` in a separate process until the app ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None
        self._message = ""

    def open(self) -> str:
        if self._process is None or self._process.poll() is not None:
            self._message = self._start()
        return self._message

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _start(self) -> str:
        # A file and not a pipe: nobody reads it once the address is known, and a full pipe would stop the server.
        with tempfile.TemporaryFile() as output:
            self._process = subprocess.Popen(
                command("workbench", "serve", str(self._path), "--port", "0", "--open"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                env=environment(),
            )
            while self._process.poll() is None:
                if address := ADDRESS.search(_text_of(output)):
                    return f"the dashboard is at {address[0]} until you quit"
                time.sleep(POLL_S)
            return f"the dashboard did not start: {_text_of(output).strip()}"


def _text_of(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), _OUTPUT_BYTES, 0).decode(errors="replace")


class SourceScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,o", "dismiss", "Back", id="source.back")]
    DEFAULT_CSS = """
    SourceScreen { align: center middle; }
    SourceScreen RowList { width: 90%; height: 90%; border: round $foreground; padding: 0 1; background: $surface; }
    """

    def __init__(self, path: Path, line: int) -> None:
        super().__init__()
        self._path, self._line = path, line

    def compose(self) -> ComposeResult:
        yield RowList[tuple[int, str]](Text(f"{clean(self._path)}:{self._line}", style="bold"), self._line_text)

    def on_mount(self) -> None:
        lines = self._path.read_text(errors="replace").splitlines()
        rows = self.query_one(RowList)
        rows.show(list(enumerate(lines, 1)))
        rows.focus()
        # The list has no height before it is laid out.
        self.call_after_refresh(self._center)

    def _center(self) -> None:
        rows = self.query_one(RowList)
        rows.scroll_to(y=max(0, self._line - rows.size.height // 2), animate=False)

    def _line_text(self, item: tuple[int, str]) -> Text:
        number, text = item
        here = number == self._line
        return Text(f"{'▶' if here else ' '}{number:>5}  {clean(text.expandtabs(4))}", style="reverse" if here else "")


def _end_reader_processes() -> None:
    """Kill the child processes that read files, so that the app can quit without waiting for them."""
    # Only Linux lists the children of a thread; elsewhere nothing matches, and the readers end by themselves.
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in listing.read_text().split():
                os.kill(int(pid), signal.SIGKILL)


BROAD = 140
"""The screen width, in columns, from which on the home view shows the findings to the left of their evidence."""
TALL_LINES = 36
"""The screen height, in lines, from which on the home view shows a chart and a table below the findings."""

_TINY_LINES = 16
"""The screen height, in lines, below which the home view cuts the verdict, so that the findings are on the screen."""
_TITLE_MARGINS = 30
"""The columns of the title line that the icon, the name of the program and the margins take."""


class Answered(Message):
    """Message: a worker thread has computed the report."""

    def __init__(self, report: Report[object]) -> None:
        super().__init__()
        self.report = report


class Failed(Message):
    """Message: a worker thread could not compute the report; `error` says why."""

    def __init__(self, error: WorkbenchError) -> None:
        super().__init__()
        self.error = error


class WorkbenchApp(TerminalApp[None]):
    TITLE = "workbench"
    CSS_PATH = "workbench.tcss"
    # Nothing: the search would take the keys while it is the only widget that can be focused.
    AUTO_FOCUS = ""
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide"), (BROAD, "-broad")]  # noqa: RUF012  # typed by Textual
    VERTICAL_BREAKPOINTS = [(0, "-low"), (TALL_LINES, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(i), f"view({i})", f"View {i}", id=f"view.{i}", show=False) for i in range(1, 8)),
        Binding("slash", "search", "Search", id="search"),
        Binding("f", "focus_evidence", "Chart on or off", id="focus", show=False),
        Binding("o", "source", "Source of the line", id="source", show=False),
        Binding("y", "copy", "Copy text or command", id="copy", show=False),
        Binding("w", "web", "Open in the browser", id="web", show=False),
        Binding("question_mark", "show_help_panel", "Help", id="help"),
        Binding("t", "change_theme", "Change the theme", id="theme", show=False),
        Binding("escape", "leave", "Back", id="back", show=False),
        Binding("q", "quit", "Quit", id="quit"),
    ]

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self._subject = subject
        self._began = time.monotonic()
        self._dashboard: Dashboard | None = None
        self.report: Report[object] | None = None
        self._name_views()

    def compose(self) -> ComposeResult:
        yield Header()
        with Vertical(id="loading"):
            yield Static(id="loading-text")
            yield LoadingIndicator()
        yield Input(
            id="search",
            placeholder="enter: go to the first match   n N: next, previous match   esc: close",
            classes="hidden",
        )
        yield KeyLine()

    def _name_views(self) -> None:
        """Put the names of the views into the descriptions of their keys, which the help shows.

        Digits without a view do nothing, so their keys are removed.
        """
        names = {f"view.{number}": name for number, name in enumerate(self._subject.views, 1)}
        keys = self._bindings.key_to_bindings
        for key, bindings in list(keys.items()):
            known = [one for one in bindings if one.id is None or not one.id.startswith("view.") or one.id in names]
            keys[key] = [replace(one, description=f"View {names[one.id]}") if one.id in names else one for one in known]

    def on_resize(self, event: Resize) -> None:
        """Shorten the paths of the runs in the title so that their ends stay visible; mark a tiny screen for CSS."""
        self.set_class(event.size.height < _TINY_LINES, "-tiny")
        roots = [run.root for run in self._subject.runs]
        self.sub_title = clean(fitted_title(roots, event.size.width - _TITLE_MARGINS))

    def on_mount(self) -> None:
        self._show_progress()
        self._clock = self.set_interval(0.5, self._show_progress)
        self._ask()

    def _show_progress(self) -> None:
        files = [artefact for run in self._subject.runs for artefact in run.artefacts]
        waited = time.monotonic() - self._began
        total = size(sum(artefact.bytes for artefact in files))
        text = f"reading {quantity(len(files), 'file')}, {total}   {waiting_time(waited)}   q: quit"
        self.query_one("#loading-text", Static).update(Text(text))

    @work(thread=True, exclusive=True)
    def _ask(self) -> None:
        """Compute the report in a thread; most of the time it waits for child processes that read the files."""
        try:
            self.post_message(Answered(self._subject.ask()))
        except WorkbenchError as error:
            self.post_message(Failed(error))

    async def on_answered(self, message: Answered) -> None:
        self.report = message.report
        self._clock.stop()
        await self.query_one("#loading").remove()
        panes = _panes_of(self._subject, message.report)
        room = self._subject.room
        first = room if room in panes and room not in ANSWERED_FIRST else "home"
        await self.mount(ViewTabs(self._subject.views, panes, first), before=self.query_one("#search"))

    def on_failed(self, message: Failed) -> None:
        text = f"error: {clean(message.error.message)}\nhint: {clean(message.error.hint)}\n\nq: quit"
        self.query_one(LoadingIndicator).remove()
        self._clock.stop()
        self.query_one("#loading-text", Static).update(Text(text))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        widgets = (widget for tabs in self.query(ViewTabs) for widget in tabs.shown_widgets)
        shown = [widget for widget in widgets if isinstance(widget, ViewSwitcher)]
        yield from commands(self, self._subject.views, shown)
        for tabs in self.query(ViewTabs):
            if isinstance(tabs.pane, HasPaletteCommands):
                yield from tabs.pane.palette_commands()
        yield from super().get_system_commands(screen)

    async def action_view(self, number: int) -> None:
        for tabs in self.query(ViewTabs):
            if number <= len(self._subject.views):
                await tabs.turn_to(self._subject.views[number - 1])

    async def on_evidence_wanted(self, message: EvidenceWanted) -> None:
        tabs = self.query_one(ViewTabs)
        await tabs.turn_to(message.link.room)
        if isinstance(tabs.pane, ShowsEvidence):
            await tabs.pane.show_evidence(message.link)

    async def action_search(self) -> None:
        for tabs in self.query(ViewTabs):
            if isinstance(tabs.pane, PreparesSearch):
                await tabs.pane.before_search()
            field = self.query_one("#search", Input)
            field.remove_class("hidden")
            field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._close_search()
        if not self.query_one(ViewTabs).search(event.value):
            self.notify("this view cannot be searched", markup=False)

    def action_leave(self) -> None:
        """Close the search field if it is open; otherwise show the chart again if it is hidden."""
        if self.query_one("#search", Input).has_class("hidden"):
            self.query(".top").remove_class("hidden")
            return
        self._close_search()

    def _close_search(self) -> None:
        self.query_one("#search", Input).add_class("hidden")
        self.query_one(ViewTabs).give_keys()

    def action_focus_evidence(self) -> None:
        """Hide the chart, so that the view below gets all the space; if the chart is hidden, show it again."""
        for tabs in self.query(ViewTabs):
            tabs.pane.query(".top").toggle_class("hidden")

    def cursor_text(self) -> str:
        focused = self.screen.focused
        nodes = focused.ancestors_with_self if focused is not None else []
        texts = (node.text_at_cursor() for node in nodes if isinstance(node, HasCursorText))
        return next(filter(None, texts), "")

    def action_source(self) -> None:
        source = find_source(self.cursor_text())
        if source is None:
            self.notify("no source file under the cursor is on this machine", markup=False)
            return
        self.push_screen(SourceScreen(*source))

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        self._open_source()

    def on_tree_node_selected(self, event: Tree.NodeSelected[int]) -> None:
        if not event.node.allow_expand:
            self._open_source()

    def _open_source(self) -> None:
        if source := find_source(self.cursor_text()):
            self.push_screen(SourceScreen(*source))

    def action_copy(self) -> None:
        text = self.cursor_text() or self._subject.command
        self.copy_to_clipboard(text)
        self.notify(f"copied: {clean(text)[:200]}", markup=False)

    def action_web(self) -> None:
        self._dashboard = self._dashboard or Dashboard(self._subject.runs[0].root)
        self._announce(self._dashboard)

    @work(thread=True, exclusive=True, group="web")
    def _announce(self, dashboard: Dashboard) -> None:
        message = dashboard.open()
        self.call_from_thread(self.notify, message, timeout=20, markup=False)

    async def action_quit(self) -> None:
        """Quit, and kill the child processes that still read files."""
        if self._dashboard is not None:
            self._dashboard.close()
        if self.report is None:
            _end_reader_processes()
        self.exit()


def _panes_of(subject: Subject, report: Report[object]) -> dict[str, Widget]:
    """Return {name of a view: its pane} for the views that have data."""
    pictures = home_pictures(report, subject.runs[0], subject.options)
    panes: dict[str, Widget] = {"home": HomePane(report, subject.runs, pictures)}
    for room, data in data_by_room(report).items():
        if place := FACES[room].pane:
            panes[room] = imported(place)(data, subject, report)
    if "config" in subject.views and (manifest := subject.runs[0].manifest()):
        panes["config"] = ConfigPane(manifest)
    return panes


def open_app(subject: Subject) -> None:
    leave_searches_to_idle_times()
    run_app(WorkbenchApp(subject))
