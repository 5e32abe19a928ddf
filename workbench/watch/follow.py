"""Show a job until it ends, without the terminal app.

If stderr is a terminal, the launcher shows a status that it redraws. Otherwise it prints lines of text.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from analyzers.report import Report
from analyzers.steps.live import FinishedStep, JobState, RankState
from analyzers.words import duration, percent, size
from workbench.colours import LIVE_STATE_SIGNS, LIVE_STATES, SEVERITIES, SEVERITY_SIGNS, STATUSES, phase_colour
from workbench.console import clean
from workbench.present.figure import bar, spark
from workbench.present.text import head
from workbench.watch.watched_job import (
    LAUNCHER_LOST,
    SMALLEST_SHARE,
    JobWatcher,
    WatchedJob,
    alerts,
    lost_ranks,
    lost_text,
    progress,
    rank_row,
    stall_text,
    troubled_first,
)


class LogLines:
    """Converts successive states of a watched job to lines of text, and reports everything only once.

    An exception is a step that a restarted job trains again. Without `with_steps`, there are no lines about steps.
    """

    def __init__(self, *, with_steps: bool = True) -> None:
        self._with_steps = with_steps
        self._launcher_lost = False
        self._last_step, self._attempt = (0, 0), 0
        self._finding_ids: set[str] = set()
        self._notes: set[tuple[int, str]] = set()
        self._troubled: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._sentence = ""

    def new_lines(self, job: WatchedJob) -> Iterator[str]:
        """Yield lines about everything that has happened since the last call."""
        yield from self._restart_lines(job.now)
        yield from self._note_lines(job.now)
        if self._with_steps:
            yield from self._step_lines(job.now)
        yield from self._trouble_lines(job.now)
        if job.report:
            yield from self._verdict_lines(job.report)

    def _restart_lines(self, now: JobState) -> Iterator[str]:
        if now.attempt > self._attempt:
            self._attempt = now.attempt
            yield f"restarted, attempt {now.attempt}"

    def _note_lines(self, now: JobState) -> Iterator[str]:
        for note in now.notes:
            if (now.attempt, note) not in self._notes:
                self._notes.add((now.attempt, note))
                yield note

    def _step_lines(self, now: JobState) -> Iterator[str]:
        for step in now.recent:
            # By start time first: a restarted job counts its steps from the checkpoint again.
            if (step.start_ns, step.step) > self._last_step:
                self._last_step = step.start_ns, step.step
                yield step_line(step, now)

    def _trouble_lines(self, now: JobState) -> Iterator[str]:
        for finding in now.findings:
            if finding.id not in self._finding_ids:
                self._finding_ids.add(finding.id)
                yield f"{SEVERITY_SIGNS[finding.severity]} {finding.title}"
        if now.launcher_lost and not self._launcher_lost:
            self._launcher_lost = True
            yield f"✗ {LAUNCHER_LOST}"
        lost = lost_ranks(now)
        troubled = (tuple(lost), tuple(now.stall.ranks if now.stall else ()))
        if troubled != self._troubled:
            self._troubled = troubled
            if lost:
                yield f"✗ {lost_text(lost)}"
            if now.stall:
                yield f"‖ {stall_text(now.stall)}"

    def _verdict_lines(self, report: Report[object]) -> Iterator[str]:
        verdict, lead = report.verdict, report.lead()
        if verdict.sentence != self._sentence:
            self._sentence = verdict.sentence
            yield f"verdict: {verdict.kind.replace('_', ' ')}: {verdict.sentence}"
            if lead:
                yield f"why: {lead.why}"
                yield f"next: {lead.next}"


def step_line(step: FinishedStep, now: JobState) -> str:
    """Return a finished step as text such as `step 3/10  loss 5.1000  1,234 tok/s  memory 1.2 GiB  took 870 ms`."""
    total = f"/{now.steps}" if now.steps else ""
    # A step between two that `metrics.log_freq` selects has no loss.
    loss = "" if step.loss is None else f"  loss {step.loss:.4f}"
    rate = "" if step.tokens_per_s is None else f"  {step.tokens_per_s:,.0f} tok/s"
    # Logs of other trainers may have neither.
    memory = f"  memory {size(step.memory_bytes)}" if step.memory_bytes else ""
    took = f"  took {duration(step.dur_s)}" if step.dur_s else ""
    return f"step {step.step}{total}{loss}{rate}{memory}{took}"


# Write the status of a watched job as text: summary, charts over time, alerts, and a line per rank.
#
# The launcher, `workbench watch` and the terminal app show this text.

LABEL_WIDTH = 8
_NUMBER_WIDTH = 12
_MEMORY_BAR_WIDTH = 8
_VERDICT_LINES = 12
_SPARE_LINES = 3
"""The lines reserved for the head of the rank table, the line about hidden ranks, and a second summary line."""
RANK_HEADS = " rank state       step phase          for    memory          room left full at"
ANALYSING = "analysing the files that were recorded ..."


def status_text(job: WatchedJob, width: int, height: int) -> RenderableType:
    """Return the state of a job as text for a terminal of `width` columns and `height` lines.

    If there is no space for all ranks, only ranks with problems are shown.
    """
    upper = [summary(job.now), *charts(job.now, width), *alert_lines(job)]
    verdict = [head(job.report)] if job.report else []
    room = height - len(upper) - (_VERDICT_LINES if verdict else 0) - _SPARE_LINES
    ranks = troubled_first(job.now.ranks)[: max(2, room)]
    hidden = len(job.now.ranks) - len(ranks)
    rest = [Text(f"        and {hidden} more ranks", style="dim")] if hidden > 0 else []
    lines = [Text(RANK_HEADS[:width], style="dim"), *map(rank_line, ranks), *rest] if ranks else []
    return Group(*upper, *lines, *verdict)


def summary(now: JobState) -> Text:
    sign, colour = LIVE_STATE_SIGNS.get(now.status, "?"), LIVE_STATES.get(now.status, STATUSES["unknown"])
    return Text.assemble((f"{sign} {now.status}", f"bold {colour}"), "  ", "  ".join(progress(now)))


def charts(now: JobState, width: int) -> list[Text]:
    if not now.recent:
        return []
    room = max(8, width - LABEL_WIDTH - 2 * _NUMBER_WIDTH)
    losses = [step.loss for step in now.recent if step.loss is not None]
    times = [step.dur_s for step in now.recent]
    lines = [sparkline("loss", losses, room, "{:.4f}".format)] if losses else []
    lines += [sparkline("step", times, room, duration)]
    return [*lines, *([_phase_bar(now.phases, width - LABEL_WIDTH)] if now.phases else [])]


def sparkline(label: str, values: Sequence[float], room: int, written: Callable[[float], str]) -> Text:
    """Return a line such as `loss  6.1243  █▇▅▃▁  4.5123`: label, first value, sparkline, last value."""
    first, last = written(values[0]).rjust(_NUMBER_WIDTH - 1), written(values[-1]).rjust(_NUMBER_WIDTH - 2)
    line = (spark(values, room), STATUSES["ok"])
    return Text.assemble((label.ljust(LABEL_WIDTH), "dim"), first, " ", line, " ", last)


def _phase_bar(shares: dict[str, float], width: int) -> Text:
    """Return a line such as `phases ███ fwd 31 % █████ bwd 55 %`; the length of each bar is the share of its phase.

    Small phases are left out.
    """
    labels = {f" {clean(name)} {percent(part)} ": name for name, part in shares.items() if part >= SMALLEST_SHARE}
    room = max(0, width - sum(map(len, labels)))
    line = Text("phases".ljust(LABEL_WIDTH), style="dim")
    for label, name in labels.items():
        # Rounded down: bars that are rounded up could together exceed the room, and the line would wrap.
        piece = "█" * int(shares[name] * room)
        line = Text.assemble(line, (piece, phase_colour(name)), (label, ""))
    return line


def alert_lines(job: WatchedJob) -> list[Text]:
    lines = [
        Text.assemble((f"{SEVERITY_SIGNS[severity]} ", f"bold {SEVERITIES[severity]}"), clean(text))
        for severity, text in alerts(job)
    ]
    return [*lines, *([Text(ANALYSING, style="dim")] if job.analysing else [])]


def rank_line(rank: RankState) -> Text:
    """Return the row of a rank in the table of ranks as text; `RANK_HEADS` has the headings of the columns."""
    sign, colour = LIVE_STATE_SIGNS.get(rank.state, "?"), LIVE_STATES.get(rank.state, STATUSES["unknown"])
    meter = bar(rank.memory_bytes, rank.limit_bytes, _MEMORY_BAR_WIDTH) if rank.limit_bytes else ""
    row = rank_row(rank)
    return Text.assemble(
        f"{row.rank:>5} ",
        (f"{sign} {row.state:<7}", colour),
        f"{row.step:>7} {clean(row.phase)[:9]:<10}{row.seconds:>8} {row.memory:>9} ",
        (meter.ljust(_MEMORY_BAR_WIDTH), LIVE_STATES["stalled"] if rank.oom_step else STATUSES["ok"]),
        f" {row.room:>9} ",
        (row.full_at, SEVERITIES["warning"]),
    )


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
