"""Find out the present state of a running job from the logs of this project, of torchtitan or of another trainer.

Each call of `Follower.look` reads only the new content of the files; but logs of other trainers are read again
completely.
"""

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

import pandas as pd

from analyzers import run, store
from analyzers.errors import WorkbenchError
from analyzers.report import Finding, ranked
from analyzers.run import NODES, Kind, node_of
from analyzers.steps.lateness import lateness
from analyzers.steps.live.job_state import (
    ENDED,
    SPEED_STEPS,
    FinishedStep,
    JobState,
    RankState,
    RankStatus,
    launcher_is_lost,
)
from analyzers.steps.live.rank_log import (
    EventFile,
    RankLog,
    StepLog,
    ended_ranks,
    int_or_zero,
    int_setting,
    job_status,
    manifest_of,
    rank_state,
    stalled_ranks,
    texts,
)
from analyzers.steps.loading import Chunk, Source, combined, load, steps_of
from analyzers.steps.rank_differences import memory_growth
from analyzers.steps.reading.log_lines import Line, Table, content_of, number
from analyzers.steps.report import answer_all, problems
from analyzers.steps.table import RECORDER_PHASES, Steps

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


_LOGS = ("steps/rank_*.jsonl", "structured_logs/*.jsonl", f"{NODES}/*/steps/rank_*.jsonl")
_EVENT_FILES = "tb/**/events.out.tfevents.*"
_EVIDENCE = (
    "dumps/**/collection.json",
    "dumps/exit_*.json",
    f"{NODES}/*/dumps/**/collection.json",
    f"{NODES}/*/dumps/exit_*.json",
    "comm_trace*/rank_*",
    "memory_snapshot/*_exit/*",
    "profiling/memory_snapshot/*_exit/*",
)
"""Glob patterns of the files that appear when a job hangs or dies."""
RANK = re.compile(r"rank_(\d+)")
_JUDGED_STEPS = 20_000
"""The most rows from which findings are computed; each row is a step of one rank."""
_JUDGING_SHARE = 0.1
"""The largest share of the time that computing findings may take; with many ranks it takes seconds."""


class Follower:
    """Follows the job that writes to `folder`: each call of `look` reads what was written since the last call.

    Files last changed before `since` (Unix seconds) are ignored, because they belong to an earlier job.
    """

    def __init__(self, folder: Path, since: float = 0.0) -> None:
        self.folder, self._since = folder, since
        self._ranks: dict[int, RankLog] = {}
        self._folders: dict[int, Path] = {}
        self._logs: dict[Path, StepLog] = {}
        self._event_files: dict[Path, EventFile] = {}
        self._judgement = Judgement()
        self._others = OtherLogs(folder, since)

    def look(self) -> JobState:
        self._discover()
        self._read()
        logs = [log for _, log in sorted(self._ranks.items())]
        self._judgement.renew(logs)
        # An older run.json belongs to the job before this one.
        manifest = manifest_of(self.folder, logs) if self._files("run.json") else {}
        # Logs of other trainers say less than ours.
        others = Logged() if logs else self._others.look()
        recent = _recent_steps(logs) or others.recent
        step_s = median([step.dur_s for step in recent[-SPEED_STEPS:]] or [0.0])
        ranks = [rank_state(self._folders[log.rank], log, self._judgement.growth.get(log.rank), step_s) for log in logs]
        ranks = ranks or others.ranks
        ranks = ended_ranks(ranks) if manifest.get("status") in ENDED else ranks
        stalled = stalled_ranks(ranks, manifest)
        phases, recorders = _phase_shares(logs)
        return JobState(
            status=job_status(ranks, manifest, stalled),
            world_size=max([int_or_zero(manifest.get("world_size")), *(rank.rank + 1 for rank in ranks)], default=0),
            steps=int_setting(manifest, "training", "steps"),
            recent=recent,
            ranks=ranks,
            utilisation=_utilisation(logs, manifest, recent),
            phases=phases,
            recorders=recorders,
            findings=self._judgement.findings,
            stall=stalled,
            launcher_lost=launcher_is_lost(manifest),
            notes=texts(manifest, "notes"),
            evidence=others.evidence + tuple((str(p), int(changed * 1e9)) for p, changed in self._files(*_EVIDENCE)),
        )

    def _discover(self) -> None:
        """Start to follow the step logs and event files that have appeared in the folder since the last call."""
        for path, _ in self._files(*_LOGS):
            if path not in self._logs:
                self._logs[path] = StepLog(path, self._rank(path))
        for path, _ in self._files(_EVENT_FILES):
            if path not in self._event_files:
                self._event_files[path] = EventFile(path, self._rank(path))

    def _read(self) -> None:
        """Read the new content of the logs.

        TensorBoard event files are read only if there is no step log of this project, which contains more.
        """
        for log in self._logs.values():
            log.look()
        if not any(path.parent.name == "steps" for path in self._logs):
            for event_file in self._event_files.values():
                event_file.look()

    def _files(self, *patterns: str) -> list[tuple[Path, float]]:
        """Return the files of this job that match a glob pattern, each with its time of last change (Unix seconds)."""
        files = []
        for path in sorted(path for pattern in patterns for path in self.folder.glob(pattern)):
            with contextlib.suppress(FileNotFoundError):
                files.append((path, path.stat().st_mtime))
        return [(path, changed) for path, changed in files if changed >= self._since]

    def _rank(self, path: Path) -> RankLog:
        """Return the log of the rank that is in the path's name, or of rank 0 if the name has none."""
        numbers = RANK.findall(str(path.relative_to(self.folder)))
        rank = int(numbers[-1]) if numbers else 0
        node = node_of(path, self.folder)
        self._folders[rank] = self.folder / NODES / node if node else self.folder
        return self._ranks.setdefault(rank, RankLog(rank))


class Judgement:
    """The findings on the last steps of a running job, and the memory growth of each rank in bytes per step.

    Both are recomputed only from time to time, so that this takes a small share of the time.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.growth: dict[int, float] = {}
        self._steps_seen, self._next_s = 0, 0.0

    def renew(self, logs: Sequence[RankLog]) -> None:
        """Compute the findings again if there are new steps and the last computation was long enough ago."""
        seen, began = sum(log.steps_seen for log in logs), time.monotonic()
        if seen == self._steps_seen or began < self._next_s:
            return
        steps = table_of(logs)
        if steps is not None:
            self.findings = ranked(problems(steps, answer_all(steps, lateness(steps))))
            self.growth = {growth.rank: growth.bytes_per_step for growth in memory_growth(steps)}
        self._steps_seen, self._next_s = seen, began + (time.monotonic() - began) / _JUDGING_SHARE


def table_of(logs: Sequence[RankLog]) -> Steps | None:
    """Return the last steps of all ranks as `Steps`, as input for the findings; None if no step is finished."""
    # Fewer steps of more ranks: findings must not take longer than the steps.
    each, table, source = _JUDGED_STEPS // max(1, len(logs)), Table(), Source()
    for file, log in enumerate(logs):
        table.add(file, content_of(log.latest(each)))
        source.headers.append(log.header)
    if not table.rows:
        return None
    chunk = Chunk(table.columns(), table.meta(), [log.rank for log in logs], 0)
    return steps_of(source, combined([chunk]), [], [])


def _recent_steps(logs: Sequence[RankLog]) -> list[FinishedStep]:
    """Return the last steps that any rank has finished, in order, each summarised over the ranks."""
    by_step: dict[int, list[Line]] = {}
    for log in logs:
        for step, line in log.steps.items():
            by_step.setdefault(step, []).append(line)
    return [_finished_step(lines) for _, lines in sorted(by_step.items())]


def _finished_step(lines: Sequence[Line]) -> FinishedStep:
    """Return a `FinishedStep`: the summary of one step over the ranks that finished it.

    `lines` has the log line of each of these ranks.
    """
    # All ranks log the same averaged loss; with pipelines only the last stage has one.
    losses = [number(line.loss) for line in lines if line.loss is not None]
    rates = [rate for line in lines if (rate := tokens_per_s(line))]
    return FinishedStep(
        step=lines[0].step,
        start_ns=min(line.start_ns for line in lines),
        dur_s=max(0, *map(_training_ns, lines)) / 1e9,
        loss=losses[0] if losses else None,
        tokens_per_s=fmean(rates) if rates else None,
        memory_bytes=max(line.memory_bytes for line in lines),
    )


def _training_ns(line: Line) -> int:
    return line.dur_ns - _recording_ns(line.phases)


def _recording_ns(phases: Mapping[str, int]) -> int:
    return sum(phases.get(name, 0) for name in RECORDER_PHASES)


def tokens_per_s(line: Line) -> float | None:
    """Return the tokens per second of one rank in one step; None if tokens or duration are not recorded."""
    return line.tokens * 1e9 / line.dur_ns if line.tokens and line.dur_ns > 0 else None


def _utilisation(
    logs: Sequence[RankLog], manifest: Mapping[str, object], recent: Sequence[FinishedStep]
) -> float | None:
    """Return the model-flops utilisation (MFU, 0 to 1); None if it is neither logged nor can be computed.

    It is the mean of the logged values. Without logged values it is tokens per second x flops per token / peak flops of
    the device. `manifest` is the content of run.json.
    """
    if logged := [log.utilisation for log in logs if log.utilisation is not None]:
        return fmean(logged)
    rate = recent[-1].tokens_per_s if recent else None
    flops, peak = number(manifest.get("flops_per_token")), number(manifest.get("peak_flops"))
    return rate * flops / peak if rate and flops > 0 and peak > 0 else None


def _phase_shares(logs: Iterable[RankLog]) -> tuple[dict[str, float], float]:
    """Return {phase: its share} of the time of the last steps, summed over all ranks, and the share of the recorders.

    The phases come in descending order of their shares, which are of the time without this project's recorders. The
    share of the recorders is of the whole time.
    """
    spent: Counter[str] = Counter()
    total = 0
    for line in (line for log in logs for line in log.latest(SPEED_STEPS)):
        total += max(0, line.dur_ns)
        spent.update(line.phases)
    recording = _recording_ns(spent)
    training = total - recording
    named = [(name, ns) for name, ns in spent.most_common() if name not in RECORDER_PHASES]
    shares = {name: ns / training for name, ns in named} if training > 0 else {}
    return shares, recording / total if total else 0.0
