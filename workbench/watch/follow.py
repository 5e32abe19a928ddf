"""Show a job until it ends, without the terminal app.

If stderr is a terminal, the launcher shows a status that it redraws. Otherwise it prints lines of text.
"""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live

from workbench.console import clean
from workbench.watch.log_lines import LogLines
from workbench.watch.status_text import status_text
from workbench.watch.watched_job import JobWatcher, WatchedJob

POLL_S = 0.25
_QUIET_S = 60.0
"""The seconds without new files after which a job on another machine counts as ended; its processes cannot be seen."""


def follow(folder: Path) -> None:
    """Print lines of text about a job until it ends."""
    watcher, log_lines = JobWatcher(folder), LogLines()
    while True:
        job = watcher.look()
        for line in log_lines.new_lines(job):
            print(clean(line), flush=True)
        if has_ended(job):
            break
        time.sleep(POLL_S)
    print(f"{job.now.status}; look at it with: workbench inspect {clean(folder)}")


def has_ended(job: WatchedJob) -> bool:
    """Return whether the job has ended and no further step or verdict will follow."""
    if job.analysing:
        return False
    quiet_s = min((rank.quiet_s for rank in job.now.ranks), default=0.0)
    return job.now.ended or (job.now.status == "unknown" and quiet_s > _QUIET_S)


class LiveDisplay:
    """Shows the job that this process launches, from a separate thread: `with LiveDisplay(folder, since): ...`.

    Files that were last changed before `since` (Unix seconds) are ignored. With `trouble_only`, only lines about
    problems and verdicts are printed, because the job itself prints its steps.
    """

    def __init__(self, folder: Path, since: float, *, trouble_only: bool = False) -> None:
        self._watcher = JobWatcher(folder, since)
        self._stop = threading.Event()
        self._trouble_only = trouble_only
        show = self._redraw if sys.stderr.isatty() and not trouble_only else self._print_lines
        self._thread = threading.Thread(target=show, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _states(self) -> Iterator[WatchedJob]:
        """Yield the state of the job repeatedly, and once more after the display was stopped, for the last steps."""
        while not self._stop.wait(POLL_S):
            yield self._watcher.look()
        yield self._watcher.look()

    def _print_lines(self) -> None:
        log_lines = LogLines(with_steps=not self._trouble_only)
        for job in self._states():
            for line in log_lines.new_lines(job):
                print(clean(line), file=sys.stderr, flush=True)

    def _redraw(self) -> None:
        console = Console(stderr=True, highlight=False)
        # By default Rich also redraws from a thread of its own, although the text changes only here.
        with Live(console=console, auto_refresh=False) as live:
            for job in self._states():
                live.update(status_text(job, *console.size), refresh=True)
