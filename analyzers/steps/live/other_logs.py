"""Follow a job that runs without this project's recorders, by the step logs and output of its own trainer.

Such logs cannot be read in parts. They are read completely each time, but so rarely that this takes little time.
"""

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from analyzers import run, store
from analyzers.errors import WorkbenchError
from analyzers.run import Kind
from analyzers.steps.live.job_state import FinishedStep, RankState, RankStatus
from analyzers.steps.loading import load

_LOOK_S, _LOOKING_SHARE = 2.0, 0.1
_RECENT_STEPS = 200
_QUIET_S = 60.0
"""The seconds without output after which a job may have ended."""
_PRINTED = (Kind.LOG, Kind.TEXT, Kind.ERROR)
_TAIL_BYTES = 1 << 16
FAILURE = re.compile(
    rb"Traceback \(most recent call last\)|ChildFailedError|Root Cause \(first|Watchdog caught|Fatal Python error"
    rb"|out of memory|exitcode *:|terminate called"
)
"""Matches words at the end of a log that suggest that the job failed."""


@dataclass(frozen=True)
class Logged:
    """The results from another trainer's logs: the last steps, the state of each rank, and which logs report a failure.

    `evidence` lists the logs that report a failure, as (path, time of last change in ns).
    """

    recent: list[FinishedStep] = field(default_factory=list)
    ranks: list[RankState] = field(default_factory=list)
    evidence: tuple[tuple[str, int], ...] = ()


class OtherLogs:
    """Follows a job by the logs of its own trainer; files last changed before `since` (Unix seconds) are ignored."""

    def __init__(self, folder: Path, since: float = 0.0) -> None:
        self.folder, self._since = folder, since
        self._next_s = 0.0
        self._seen: tuple[tuple[Path, float], ...] = ()
        self._table = pd.DataFrame()
        self._evidence: tuple[tuple[str, int], ...] = ()

    def look(self) -> Logged:
        """Return the present content of the logs.

        The logs are read again only if they have changed and the last reading was long enough ago.
        """
        began = time.monotonic()
        if began >= self._next_s:
            self._read()
            self._next_s = began + max(_LOOK_S, (time.monotonic() - began) / _LOOKING_SHARE)
        changed = max((changed for _, changed in self._seen), default=0.0)
        return Logged(_recent_of(self._table), ranks_of(self._table, changed), self._evidence)

    def _read(self) -> None:
        try:
            artefacts = run.discover(self.folder).of(*run.TIMED, *_PRINTED)
            changes = [(a, a.path.stat().st_mtime) for a in artefacts]
        except (WorkbenchError, OSError):
            return
        logs = [(a, changed) for a, changed in changes if changed >= self._since]
        seen = tuple((a.path, changed) for a, changed in logs)
        if seen == self._seen:
            return
        self._seen = seen
        self._evidence = tuple(
            (str(a.path), int(changed * 1e9)) for a, changed in logs if a.kind in _PRINTED and _tells_failure(a.path)
        )
        try:
            # Each step changes the logs, so that a cached copy would never be used again.
            self._table = load([a for a, _ in logs if a.kind in run.TIMED], store.Options(cache=False)).table
        except WorkbenchError:  # no step yet
            self._table = pd.DataFrame()


def _tells_failure(path: Path) -> bool:
    """Return whether the last part of a log contains words that report a failure."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return FAILURE.search(file.read(_TAIL_BYTES)) is not None
    except OSError:
        return False


def _recent_of(table: pd.DataFrame) -> list[FinishedStep]:
    """Return the last steps that any rank has finished, in order, each summarised over the ranks."""
    if table.empty:
        return []
    last = [int(step) for step in sorted(table["step"].unique())[-_RECENT_STEPS:]]
    table = table[table["step"].isin(last)]
    return [finished(step, table[table["step"] == step]) for step in last]


def finished(step: int, rows: pd.DataFrame) -> FinishedStep:
    """Return the summary of one step, given the rows of all ranks that have logged it."""
    losses, seconds = rows["loss"].dropna(), rows["dur_s"].max()
    tokens = rows["tokens"].max()
    is_timed = bool(seconds > 0)
    return FinishedStep(
        step=step,
        start_ns=max(0, int(rows["start_ns"].min())),
        dur_s=float(seconds) if is_timed else 0.0,
        loss=float(losses.iloc[0]) if len(losses) else None,
        tokens_per_s=float(tokens / seconds) if is_timed and tokens > 0 else None,
        memory_bytes=max(0, int(rows["memory_bytes"].max())),
    )


def ranks_of(table: pd.DataFrame, changed: float) -> list[RankState]:
    """Return the state of each rank, given the table of steps.

    `changed` is the last change of any of the logs (Unix seconds, 0 without a log). Ranks count as running only if this
    change is recent.
    """
    quiet_s = max(0.0, time.time() - changed)
    state = RankStatus.RUNNING if quiet_s < _QUIET_S else RankStatus.UNKNOWN
    if table.empty:
        return [_rank_at(0, state, quiet_s, 0, 0)] if changed else []
    last = table.groupby("rank").last()
    return [
        _rank_at(int(rank), state, quiet_s, int(step), int(memory))
        for rank, step, memory in zip(last.index, last["step"], last["memory_bytes"], strict=True)
    ]


def _rank_at(rank: int, state: RankStatus, quiet_s: float, step: int, memory: int) -> RankState:
    """Return the state of a rank from its step log alone; nothing is known of its process.

    `quiet_s` is the time in seconds since the logs last changed, `memory` is in bytes.
    """
    return RankState(
        rank=rank,
        host="",
        attempt=0,
        state=state,
        step=step,
        phase="",
        quiet_s=quiet_s,
        memory_bytes=max(0, memory),
        limit_bytes=None,
        growth_bytes=None,
        oom_step=None,
    )
