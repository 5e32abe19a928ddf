"""A job as it is now, by the files that it writes: ours, or torchtitan's. Each look reads only what is new."""

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from analyzers.report import Finding, ranked
from analyzers.steps.answers.all_answers import answer_all
from analyzers.steps.answers.lateness import lateness
from analyzers.steps.answers.memory_growth import memory_growth
from analyzers.steps.findings.problems import problems
from analyzers.steps.live.job_state import ENDED, TIMING_STEPS, Now, StepNow
from analyzers.steps.live.rank_log import Board, RankLog, StepLog
from analyzers.steps.live.rank_status import ended, manifest_of, rank_now, setting, stall, status, whole
from analyzers.steps.loading import Chunk, Source, combined, steps_of
from analyzers.steps.reading.log_lines import Line, Table, content_of, number
from analyzers.steps.table import Steps

LOGS = ("steps/rank_*.jsonl", "structured_logs/*.jsonl")
BOARDS = "tb/**/events.out.tfevents.*"
EVIDENCE = (
    "dumps/**/collection.json",
    "dumps/exit_*.json",
    "comm_trace*/rank_*",
    "memory_snapshot/*_exit/*",
    "profiling/memory_snapshot/*_exit/*",
)
"""What appears when a job hangs or dies."""
RANK = re.compile(r"rank_(\d+)")
JUDGED = 20_000
"""Steps, of all ranks together, that findings rest on."""
JUDGING_SHARE = 0.1
"""Part of the time that may go into findings."""


class Follower:
    """Follows the job that writes to `folder`; `look` may be called as often as one likes.

    Files that are older than `since` (Unix seconds) are an earlier job's.
    """

    def __init__(self, folder: Path, since: float = 0.0) -> None:
        self.folder, self._since = folder, since
        self._ranks: dict[int, RankLog] = {}
        self._logs: dict[Path, StepLog] = {}
        self._boards: dict[Path, Board] = {}
        self._judged = Judged()

    def look(self) -> Now:
        """The job as it is now."""
        self._discover()
        self._read()
        logs = [log for _, log in sorted(self._ranks.items())]
        self._judged.renew(logs)
        manifest = manifest_of(self.folder, logs) if self._there("run.json") else {}
        recent = recent_steps(logs)
        pace = pace_of(recent)
        ranks = [rank_now(self.folder, log, self._judged.growth.get(log.rank), pace) for log in logs]
        ranks = ended(ranks) if manifest.get("status") in ENDED else ranks
        waiting = stall(ranks, manifest)
        return Now(
            status=status(ranks, manifest, waiting),
            world_size=max([whole(manifest.get("world_size")), *(log.rank + 1 for log in logs)], default=0),
            steps=setting(manifest, "training", "steps"),
            recent=recent,
            ranks=ranks,
            utilisation=utilisation(logs, manifest, recent),
            phases=shares(logs),
            findings=self._judged.findings,
            stall=waiting,
            evidence=tuple((str(path), int(changed * 1e9)) for path, changed in self._there(*EVIDENCE)),
        )

    def _discover(self) -> None:
        """Open logs that have appeared."""
        for path, _ in self._there(*LOGS):
            if path not in self._logs:
                self._logs[path] = StepLog(path, self._rank(path))
        for path, _ in self._there(BOARDS):
            if path not in self._boards:
                self._boards[path] = Board(path, self._rank(path))

    def _read(self) -> None:
        """Take in what is new. TensorBoard's files are read where no line of ours tells the same."""
        for log in self._logs.values():
            log.look()
        if not any(path.parent.name == "steps" for path in self._logs):
            for board in self._boards.values():
                board.look()

    def _there(self, *patterns: str) -> list[tuple[Path, float]]:
        """Files of this job and when each was written."""
        found = []
        for path in sorted(path for pattern in patterns for path in self.folder.glob(pattern)):
            with contextlib.suppress(FileNotFoundError):
                found.append((path, path.stat().st_mtime))
        return [(path, changed) for path, changed in found if changed >= self._since]

    def _rank(self, path: Path) -> RankLog:
        """The rank that a path names; rank 0 where it names none."""
        found = RANK.findall(str(path.relative_to(self.folder)))
        rank = int(found[-1]) if found else 0
        return self._ranks.setdefault(rank, RankLog(rank))


class Judged:
    """Findings on the last steps, made anew when there are more of them, but not all the time."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.growth: dict[int, float] = {}
        self._seen, self._due = 0, 0.0

    def renew(self, logs: Sequence[RankLog]) -> None:
        """Judge again if there is more to judge, and time for it."""
        seen, began = sum(log.seen for log in logs), time.monotonic()
        if seen == self._seen or began < self._due:
            return
        steps = table_of(logs)
        if steps is not None:
            self.findings = ranked(problems(steps, answer_all(steps, lateness(steps))))
            self.growth = {growth.rank: growth.bytes_per_step for growth in memory_growth(steps)}
        self._seen, self._due = seen, began + (time.monotonic() - began) / JUDGING_SHARE


def table_of(logs: Sequence[RankLog]) -> Steps | None:
    """The last steps of all ranks as the table that findings are made from; None before the first."""
    each, table, source = JUDGED // max(1, len(logs)), Table(), Source()
    for place, log in enumerate(logs):
        table.add(place, content_of(log.latest(each)))
        source.headers.append(log.header)
    if not table.rows:
        return None
    chunk = Chunk(table.columns(), table.meta(), [log.rank for log in logs], 0)
    return steps_of(source, combined([chunk]), [], [])


def recent_steps(logs: Sequence[RankLog]) -> list[StepNow]:
    """The last steps that any rank has finished."""
    by_step: dict[int, list[Line]] = {}
    for log in logs:
        for step, line in log.steps.items():
            by_step.setdefault(step, []).append(line)
    return [step_now(lines) for _, lines in sorted(by_step.items())]


def step_now(lines: Sequence[Line]) -> StepNow:
    """One step, of all ranks that have finished it."""
    losses = [number(line.loss) for line in lines if line.loss is not None]
    rates = [rate for line in lines if (rate := rate_of(line))]
    return StepNow(
        step=lines[0].step,
        start_ns=min(line.start_ns for line in lines),
        dur_s=max(0, *(line.dur_ns for line in lines)) / 1e9,
        loss=losses[0] if losses else None,
        tokens_per_s=fmean(rates) if rates else None,
        memory_bytes=max(line.memory_bytes for line in lines),
    )


def pace_of(recent: Sequence[StepNow]) -> float:
    """Seconds that a step takes; 0 before the first."""
    return median([one.dur_s for one in recent[-TIMING_STEPS:]] or [0.0])


def rate_of(line: Line) -> float | None:
    return line.tokens * 1e9 / line.dur_ns if line.tokens and line.dur_ns > 0 else None


def utilisation(logs: Sequence[RankLog], manifest: Mapping[str, Any], recent: Sequence[StepNow]) -> float | None:
    """Model-flops utilisation: as told, else from the speed and what the device could do."""
    if told := [log.utilisation for log in logs if log.utilisation is not None]:
        return fmean(told)
    rate = recent[-1].tokens_per_s if recent else None
    flops, peak = number(manifest.get("flops_per_token")), number(manifest.get("peak_flops"))
    return rate * flops / peak if rate and flops > 0 and peak > 0 else None


def shares(logs: Iterable[RankLog]) -> dict[str, float]:
    """What part of the last steps each phase took, the largest first; of all ranks together."""
    spent: Counter[str] = Counter()
    total = 0
    for line in (line for log in logs for line in log.latest(TIMING_STEPS)):
        total += max(0, line.dur_ns)
        spent.update(line.phases)
    return {name: ns / total for name, ns in spent.most_common() if total}
