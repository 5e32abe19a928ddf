"""Define the terminal app of `workbench watch`, which shows the state of a job while the job runs."""

import inspect
from pathlib import Path
from threading import Lock
from typing import ClassVar

from rich.console import Group
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Header, Static

from analyzers.report import Report
from analyzers.run import discover
from analyzers.steps.live import RankState
from analyzers.store import Options
from workbench.console import clean
from workbench.tui.app import BROAD, TALL_LINES, WorkbenchApp
from workbench.tui.panes.home import EvidenceWanted, HomePane
from workbench.tui.panes.home_picture import home_pictures
from workbench.tui.terminal_app import TerminalApp
from workbench.tui.widgets.common import KeyLine, banner
from workbench.tui.widgets.memory_timeline import WIDE
from workbench.tui.widgets.tables import RowList
from workbench.watch.follow import RANK_HEADS, alert_lines, charts, rank_line, summary
from workbench.watch.watched_job import JobWatcher, WatchedJob, troubled_first

POLL_S = 0.5


class WatchApp(TerminalApp[bool]):
    """Shows the state of a job until the user leaves.

    Once there is a verdict, a high screen also shows its home view: the verdict with a chart, the chain of events and
    the findings. `run()` returns True if the user wants to inspect the recorded files.
    """

    TITLE = "workbench watch"
    CSS_PATH: ClassVar = [Path(inspect.getfile(WorkbenchApp)).with_name("workbench.tcss"), "watch.tcss"]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide"), (BROAD, "-broad")]  # noqa: RUF012  # typed by Textual
    VERTICAL_BREAKPOINTS = [(0, "-low"), (TALL_LINES, "-tall")]  # noqa: RUF012
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
        self._carded: Report[object] | None = None
        self.sub_title = clean(folder)

    def compose(self) -> ComposeResult:
        yield Header()
        yield Static(Text("looking for the files that the job writes"), id="summary")
        yield Static(id="charts")
        with VerticalScroll(id="news", can_focus=True):
            yield Static(id="alerts")
            yield Static(id="verdict")
        yield Vertical(id="card")
        yield RowList[RankState](Text(RANK_HEADS, style="dim"), rank_line, id="job-ranks")
        yield KeyLine()

    def on_mount(self) -> None:
        self.query_one("#job-ranks").focus()
        self.set_interval(POLL_S, self._look)
        self._look()

    @work(thread=True, group="look")
    def _look(self) -> None:
        """Read the state of the job in a thread and show it; reading the files of many ranks may be slow."""
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
        if not self.is_running:  # the user has quit during the look, and the widgets are gone
            return
        self.job = job
        self.query_one("#summary", Static).update(summary(job.now))
        self.query_one("#charts", Static).update(Group(*charts(job.now, self.size.width - 2)))
        lines = alert_lines(job)
        self.query_one("#alerts", Static).update(Group(*lines))
        self.query_one("#verdict", Static).update(banner(job.report) if job.report else "")
        self.query_one("#news").set_class(not lines and job.report is None, "hidden")
        self.query_one("#news").set_class(not lines, "verdict-only")
        ranks = self.query_one("#job-ranks", RowList)
        ranks.show(self._sorted_ranks(job))
        # Where there is a card, the ranks take only the lines that they need.
        ranks.set_class(job.report is not None, "below-card")
        self._show_card(job.report)

    def _show_card(self, report: Report[object] | None) -> None:
        if report is None or report is self._carded:
            return
        self._carded = report
        run, card = discover(self._watcher.folder), self.query_one("#card")
        card.add_class("filled")
        card.remove_children()
        card.mount(HomePane(report, (run,), home_pictures(report, run, Options())))

    def on_evidence_wanted(self, _message: EvidenceWanted) -> None:
        self.action_inspect()

    def _sorted_ranks(self, job: WatchedJob) -> list[RankState]:
        return troubled_first(job.now.ranks) if self._troubled_first else job.now.ranks

    def _redraw(self) -> None:
        if self.job is not None:
            self._show(self.job)

    def on_resize(self) -> None:
        self._redraw()

    def action_sort(self) -> None:
        """Change the order of the ranks: ranks with problems first, or by number."""
        self._troubled_first = not self._troubled_first
        self._redraw()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self.sub_title = f"{clean(self._watcher.folder)}{'   paused' if self._paused else ''}"

    def action_inspect(self) -> None:
        self.exit(True)
