"""Read the present state of a job repeatedly, and analyse the dumps and logs that it has written so far."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from analyzers.errors import WorkbenchError
from analyzers.report import Report
from analyzers.run import discover
from analyzers.steps.live import Follower, JobState
from analyzers.steps.live.job_state import RankStatus
from analyzers.store import Options
from workbench.ask import JOINED, ask

_SETTLED_S = 0.7
"""The seconds without a new dump after which dumps are analysed; the ranks write theirs one after the other."""
_EXIT_CODE_S = 8.0
"""The same time, if the process of a rank has disappeared while the job continues.

The launcher records which signal ended the rank only after it has ended all other ranks.
"""

Evidence = tuple[tuple[tuple[str, int], ...], bool]
"""The files on which a verdict is based, each as (path, size in bytes), and whether the job has failed."""
_NO_EVIDENCE: Evidence = ((), False)


@dataclass(frozen=True)
class WatchedJob:
    """The state of a job at one instant (`now`), and the newest report on its dumps and logs.

    `analysing` says that a newer report is being computed. `problem` says why the last analysis failed; empty if it did
    not.
    """

    now: JobState
    report: Report[object] | None = None
    analysing: bool = False
    problem: str = ""


class JobWatcher:
    """Reads the state of a job from its folder repeatedly, and analyses its dumps and logs in the background.

    Files that were last changed before `since` (Unix seconds) are ignored.
    """

    def __init__(self, folder: Path, since: float = 0.0) -> None:
        self.folder = folder
        self._follower = Follower(folder, since)
        self._analysed = _NO_EVIDENCE
        self._newest = _NO_EVIDENCE
        self._newest_since = 0.0
        self._report: Report[object] | None = None
        self._problem = ""
        self._thread: threading.Thread | None = None

    def look(self) -> WatchedJob:
        """Return the present state of the job; if its dumps or logs are new and complete, start an analysis of them."""
        now = self._follower.look()
        vanished = any(rank.state is RankStatus.GONE for rank in now.ranks)
        patience_s = _EXIT_CODE_S if vanished and not now.ended else _SETTLED_S
        self._analyse_if_settled((now.evidence, now.status == "failed"), patience_s)
        # Read before the report: a report that comes between the two reads must not be taken for the final one.
        analysing = self.analysing
        return WatchedJob(now, self._report, analysing, self._problem)

    @property
    def analysing(self) -> bool:
        """Whether dumps or logs are being analysed, or will be analysed soon."""
        return self._newest != self._analysed or self._busy

    @property
    def _busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _analyse_if_settled(self, evidence: Evidence, patience_s: float) -> None:
        """Start an analysis of the job's dumps and logs if these are new and have not changed for `patience_s` seconds.

        `evidence` says which dumps and logs there are, and whether the job has failed: a failure makes them count as
        new.
        """
        if evidence != self._newest:
            self._newest, self._newest_since = evidence, time.monotonic()
        settled = time.monotonic() - self._newest_since > patience_s
        if self._newest != self._analysed and settled and not self._busy:
            self._analysed = self._newest
            # A daemon, because leaving must not wait for an analysis that takes minutes.
            self._thread = threading.Thread(target=self._analyse, daemon=True)
            self._thread.start()

    def _analyse(self) -> None:
        try:
            self._report, self._problem = ask(JOINED, discover(self.folder), Options()), ""
        except WorkbenchError as error:
            self._problem = error.message
