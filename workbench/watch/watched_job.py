"""Read the present state of a job repeatedly, and analyse the dumps and logs that it has written so far."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from analyzers.errors import WorkbenchError
from analyzers.report import Report
from analyzers.rooms import JOINED, ask
from analyzers.run import discover
from analyzers.steps.live import Follower, JobState, RankState, StalledRanks
from analyzers.steps.live.job_state import RankStatus
from analyzers.store import Options
from analyzers.words import agree, duration, percent, quantity, rank_names, size, waiting_time

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


# State facts about a watched job as short texts: its progress, what needs attention, and a row for each rank.
#
# The terminal app, the lines of text and the live page show these texts.

SMALLEST_SHARE = 0.05
"""The share of the time (0 to 1) from which on a phase, or the work of our recorders, is shown."""
_LOST_STATES = ("gone", "failed")


class Alert(NamedTuple):
    """Something in a job that needs attention: its severity, such as "error", and a sentence."""

    severity: str
    text: str


class RankRow(NamedTuple):
    """The state of a rank as texts for a table; a text that does not apply is empty.

    `seconds` is the time that the rank has been in its phase, and `room` the memory that it can still allocate.
    `full_at` is the step in which its memory will be full if it keeps growing.
    """

    rank: str
    state: str
    step: str
    phase: str
    seconds: str
    memory: str
    room: str
    full_at: str


def rank_row(rank: RankState) -> RankRow:
    return RankRow(
        rank=str(rank.rank),
        state=str(rank.state),
        step=str(rank.step),
        phase=rank.phase,
        seconds=duration(rank.quiet_s) if rank.state in ("running", "stalled") else "",
        memory=size(rank.memory_bytes),
        room="no limit" if rank.headroom_bytes is None else size(rank.headroom_bytes),
        full_at=f"step {rank.oom_step}" if rank.oom_step else "",
    )


def progress(now: JobState) -> list[str]:
    """Return the known facts about the job's progress as short texts such as `step 3/10`, most important first."""
    total = f"/{now.steps}" if now.steps else ""
    loss = now.recent[-1].loss if now.recent else None
    facts = [
        f"step {now.step}{total}",
        None if loss is None else f"loss {loss:.4f}",
        None if now.tokens_per_s is None else f"{now.tokens_per_s:,.0f} tok/s per rank",
        None if now.utilisation is None else f"MFU {percent(now.utilisation)}",
        None if now.step_s is None else f"{duration(now.step_s)} per step",
        None if now.remaining_s is None else f"{waiting_time(now.remaining_s)} left",
        quantity(now.world_size, "rank") if now.world_size else None,
        f"recorders {percent(now.recorders)} of the time" if now.recorders >= SMALLEST_SHARE else None,
        f"restarted {quantity(now.attempt, 'time')}" if now.attempt else None,
    ]
    return [fact for fact in facts if fact is not None]


def alerts(job: WatchedJob) -> Iterator[Alert]:
    """Yield what needs attention: a lost launcher, lost ranks, a stall, findings, notes, an analysis that failed."""
    now, lost = job.now, lost_ranks(job.now)
    if now.launcher_lost:
        yield Alert("error", LAUNCHER_LOST)
    if lost:
        yield Alert("error", lost_text(lost))
    if now.stall:
        yield Alert("error", stall_text(now.stall))
    yield from (Alert(finding.severity, finding.title) for finding in now.findings)
    yield from (Alert("info", note) for note in now.notes)
    if job.problem:
        yield Alert("warning", job.problem)


def lost_ranks(now: JobState) -> list[int]:
    """Return the ranks whose process has ended while the job continues.

    For a job that has ended, the list is empty, because the verdict names these ranks.
    """
    return [] if now.ended else [rank.rank for rank in now.ranks if rank.state in _LOST_STATES]


LAUNCHER_LOST = "launcher lost: it was killed, and its guard ends the ranks"


def lost_text(ranks: Sequence[int]) -> str:
    return f"{rank_names(ranks)} {agree(ranks, 'has', 'have')} ended early"


def stall_text(stall: StalledRanks) -> str:
    """Return a sentence on a stall: which ranks, in which phase, for how long, and what will happen next.

    The next events are the dumps, if they are not written yet, and the timeout of the collectives.
    """
    ranks = rank_names(stall.ranks)
    # Where no phase is marked, the recorder's word for the phase is "step".
    phase = f"step {stall.step}" if stall.phase == "step" else f"{stall.phase} of step {stall.step}"
    text = f"{ranks} {agree(stall.ranks, 'has', 'have')} been in {phase} for {waiting_time(stall.stalled_s)}"
    if stall.dumps_in_s is not None and stall.dumps_in_s > 0:
        text += f"; dumps are written in {waiting_time(stall.dumps_in_s)}"
    if stall.ends_in_s is not None:
        text += f"; collectives time out in {waiting_time(max(0.0, stall.ends_in_s))}"
    return text


def troubled_first(ranks: Sequence[RankState]) -> list[RankState]:
    """Return the ranks sorted by how bad their state is, the worst first.

    Lost ranks come first, then stalled ranks, then ranks that are expected to run out of memory. Among equals, the rank
    that uses the largest fraction of its memory comes first.
    """
    grave = (*_LOST_STATES, "stalled")
    return sorted(
        ranks,
        key=lambda rank: (
            grave.index(rank.state) if rank.state in grave else len(grave),
            rank.oom_step is None,
            -rank.memory_bytes / rank.limit_bytes if rank.limit_bytes else 0.0,
            rank.rank,
        ),
    )
