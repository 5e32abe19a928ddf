"""Define the terminal app of `workbench watch`, which shows the state of a job while the job runs."""

from pathlib import Path
from threading import Lock
from typing import ClassVar

from rich.console import Group
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Header, Static

from analyzers.steps.live import RankState
from workbench.console import clean
from workbench.present.text import head
from workbench.tui.terminal_app import TerminalApp
from workbench.tui.widgets.key_line import KeyLine
from workbench.tui.widgets.row_list import RowList
from workbench.watch.job_facts import troubled_first
from workbench.watch.status_text import RANK_HEADS, alert_lines, charts, rank_line, summary
from workbench.watch.watched_job import JobWatcher, WatchedJob

POLL_S = 0.5


class WatchApp(TerminalApp[bool]):
    """Shows the state of a job until the user leaves.

    `run()` returns True if the user wants to inspect the files that were recorded.
    """

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
        self._watcher = JobWatcher(folder)
        self.job: WatchedJob | None = None
        self._paused, self._troubled_first = False, True
        self._looking = Lock()
        self.sub_title = clean(folder)

    def compose(self) -> ComposeResult:
        yield Header()
        yield Static(Text("looking for the files that the job writes"), id="summary")
        yield Static(id="charts")
        with VerticalScroll(id="news", can_focus=True):
            yield Static(id="alerts")
            yield Static(id="verdict")
        yield RowList[RankState](Text(RANK_HEADS, style="dim"), rank_line, id="ranks")
        yield KeyLine()

    def on_mount(self) -> None:
        self.query_one("#ranks").focus()
        self.set_interval(POLL_S, self._look)
        self._look()

    @work(thread=True, group="look")
    def _look(self) -> None:
        """Read the state of the job and show it, in a thread, because reading many ranks' files may be slow."""
        # A look may take longer than the time to the next one, and two at once would change the same logs.
        if self._paused or not self._looking.acquire(blocking=False):
            return
        try:
            job = self._watcher.look()
        finally:
            self._looking.release()
        # Textual's widgets may only be changed on the event loop.
        self.call_from_thread(self._show, job)

    def _show(self, job: WatchedJob) -> None:
        self.job = job
        self.query_one("#summary", Static).update(summary(job.now))
        self.query_one("#charts", Static).update(Group(*charts(job.now, self.size.width - 2)))
        lines = alert_lines(job)
        self.query_one("#alerts", Static).update(Group(*lines))
        self.query_one("#verdict", Static).update(head(job.report) if job.report else "")
        self.query_one("#news").set_class(not lines and job.report is None, "hidden")
        self.query_one(RowList).show(self._sorted_ranks(job))

    def _sorted_ranks(self, job: WatchedJob) -> list[RankState]:
        return troubled_first(job.now.ranks) if self._troubled_first else job.now.ranks

    def _redraw(self) -> None:
        if self.job is not None:
            self._show(self.job)

    def on_resize(self) -> None:
        self._redraw()

    def action_sort(self) -> None:
        """Switch between two orders of the ranks: those with problems first, or by number."""
        self._troubled_first = not self._troubled_first
        self._redraw()

    def action_pause(self) -> None:
        """Pause the display, or continue it."""
        self._paused = not self._paused
        self.sub_title = f"{clean(self._watcher.folder)}{'   paused' if self._paused else ''}"

    def action_inspect(self) -> None:
        """Leave the app and inspect the recorded files."""
        self.exit(True)
