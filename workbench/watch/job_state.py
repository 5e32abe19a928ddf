"""What a watcher shows: the job as it is now, and the verdict on it once there is something to judge."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzers.errors import WorkbenchError
from analyzers.report import Report
from analyzers.run import discover
from analyzers.steps.live import Follower, Now
from analyzers.store import Options
from workbench.ask import JOINED, ask

SETTLED_S = 0.7
"""Dumps of many ranks arrive one after the other; nobody is asked while they do."""

Question = tuple[tuple[tuple[str, int], ...], bool]


@dataclass(frozen=True)
class Scene:
    """`report` is the newest verdict; `asking`: a newer one is being made; `problem`: why there is none."""

    now: Now
    report: Report[Any] | None = None
    asking: bool = False
    problem: str = ""


class Watching:
    """Looks at a job. What its dumps mean is worked out in a thread that mostly waits for child processes."""

    def __init__(self, folder: Path, since: float = 0.0) -> None:
        self.folder = folder
        self._follower = Follower(folder, since)
        self._asked: Question = ((), False)
        self._open: Question = ((), False)
        self._open_since = 0.0
        self._report: Report[Any] | None = None
        self._problem = ""
        self._thread: threading.Thread | None = None

    def look(self) -> Scene:
        """The scene as it is now."""
        now = self._follower.look()
        self._consider(now)
        asking = self.asking  # before the report: an answer that comes between the two must not pass for the last word
        return Scene(now, self._report, asking, self._problem)

    @property
    def asking(self) -> bool:
        """Whether a verdict is on its way."""
        return self._open != self._asked or (self._thread is not None and self._thread.is_alive())

    def _consider(self, now: Now) -> None:
        """Ask anew when there is other evidence, and once more when the job has failed."""
        question = now.evidence, now.status == "failed"
        if question != self._open:
            self._open, self._open_since = question, time.monotonic()
        busy = self._thread is not None and self._thread.is_alive()
        settled = time.monotonic() - self._open_since > SETTLED_S
        if self._open != self._asked and settled and not busy:
            self._asked = self._open
            self._thread = threading.Thread(target=self._ask, daemon=True)
            self._thread.start()

    def _ask(self) -> None:
        try:
            self._report, self._problem = ask(JOINED, discover(self.folder), Options()), ""
        except WorkbenchError as error:
            self._problem = error.message
