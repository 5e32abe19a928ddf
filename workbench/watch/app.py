"""The live view of a job: a board that is drawn anew while the job goes on."""

from pathlib import Path
from typing import ClassVar

from rich.console import Group
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Header, Static

from analyzers.steps.live import RankNow
from workbench.console import clean
from workbench.present.text import head
from workbench.tui.widgets.key_line import KeyLine
from workbench.tui.widgets.row_list import Rows
from workbench.watch.job_state import Scene, Watching
from workbench.watch.status_text import RANK_HEADS, alerts, charts, rank_line, summary, troubled_first

POLL_S = 0.5


class WatchApp(App[bool]):
    """Ends with True if the evidence is to be looked at next."""

    TITLE = "workbench watch"
    CSS_PATH = "watch.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,i", "inspect", "Inspect", id="watch.inspect"),
        Binding("s", "sort", "Sort by trouble", id="watch.sort"),
        Binding("space", "pause", "Pause", id="watch.pause"),
        Binding("question_mark", "show_help_panel", "Help", id="help"),
        Binding("t", "change_theme", "Theme", id="theme", show=False),
        Binding("q", "quit", "Quit", id="quit"),
    ]

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._watching = Watching(folder)
        self.scene: Scene | None = None
        self._paused, self._troubled_first = False, True
        self.sub_title = clean(folder)

    def compose(self) -> ComposeResult:
        yield Header()
        yield Static(Text("looking for what the job has written"), id="summary")
        yield Static(id="charts")
        with VerticalScroll(id="told", can_focus=True):
            yield Static(id="alerts")
            yield Static(id="verdict")
        yield Rows(Text(RANK_HEADS, style="dim"), rank_line, id="ranks")
        yield KeyLine()

    def on_mount(self) -> None:
        self.query_one("#ranks").focus()
        self.set_interval(POLL_S, self._look)
        self._look()

    @work(thread=True, exclusive=True, group="look")
    def _look(self) -> None:
        """Off the event loop, as files of thousands of ranks may lie on a slow disk."""
        if not self._paused:
            scene = self._watching.look()
            self.call_from_thread(self._show, scene)

    def _show(self, scene: Scene) -> None:
        self.scene = scene
        self.query_one("#summary", Static).update(summary(scene.now))
        self.query_one("#charts", Static).update(Group(*charts(scene.now, self.size.width - 2)))
        told = alerts(scene)
        self.query_one("#alerts", Static).update(Group(*told))
        self.query_one("#verdict", Static).update(head(scene.report) if scene.report else "")
        self.query_one("#told").set_class(not told and scene.report is None, "hidden")
        self.query_one(Rows).show(self._ranks(scene))

    def _ranks(self, scene: Scene) -> list[RankNow]:
        return troubled_first(scene.now.ranks) if self._troubled_first else scene.now.ranks

    def on_resize(self) -> None:
        if self.scene is not None:
            self._show(self.scene)

    def action_sort(self) -> None:
        """Ranks by trouble, or by number."""
        self._troubled_first = not self._troubled_first
        self.on_resize()

    def action_pause(self) -> None:
        """Hold the picture, or go on."""
        self._paused = not self._paused
        self.sub_title = f"{clean(self._watching.folder)}{'   paused' if self._paused else ''}"

    def action_inspect(self) -> None:
        """Leave for the views of what was recorded."""
        self.exit(True)
