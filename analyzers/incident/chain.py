"""Build the causal chain of a run: from the first cause to the last effect.

Several analyzers may describe one incident. If rank 3 runs out of memory, the memory analyzer reports this, the hang
analyzer reports that rank 3 exited and that the others wait for it, and the other ranks report broken connections.
`chain_of` tries possible causes in a fixed order, causes before consequences, and returns the chain of the first cause
that applies:

    rank 3 ran out of memory at step 6  ->  ranks 0-2 wait in all_gather #91 of process group default_pg for it
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from analyzers import hangs
from analyzers.frames import is_library
from analyzers.hangs import Culprit, ExitFile, Frame, HangClass, HangData, Wait
from analyzers.incident.analyzer_reports import AnalyzerReport, AnalyzerReports
from analyzers.incident.model import IncidentClass
from analyzers.log_signs import first_error, split_hint
from analyzers.logs import EventKind, LogClass, LogsData
from analyzers.report import Finding, Severity, Status
from analyzers.run import Run
from analyzers.steps.live import launcher_is_lost
from analyzers.steps.model import Problem

_LONGEST_MESSAGE = 300
NOT_FINITE = re.compile(r"\bnan\b|finite", re.IGNORECASE)
"""Matches the errors of checks by PyTorch and users, such as "loss is NaN" or "non-finite gradients"."""


@dataclass(frozen=True)
class Crash:
    """An uncaught exception, as a rank recorded it (`exit_file`), and the path of the file that holds it (`source`)."""

    exit_file: ExitFile
    source: str

    @property
    def is_symptom(self) -> bool:
        """Whether the exception was raised because a different rank ended or did not arrive in time."""
        return hangs.is_victim(self.exit_file)

    @property
    def message(self) -> str:
        """The exception as Python prints it, with its class and message: `ValueError: no tokens`."""
        # The launcher may have recorded only the class or only the text.
        own = f"{self.exit_file.error}: {self.exit_file.message}".removesuffix(": ").removeprefix(": ")
        return first_error(self.exit_file.message) or own

    @property
    def ranks(self) -> list[int]:
        """The rank that raised the exception, in a list; empty if it is unknown."""
        return [self.exit_file.rank] if self.exit_file.rank >= 0 else []

    @property
    def line(self) -> Frame | None:
        """The innermost frame of the user's own code in the exception's traceback; None without one."""
        return next((f for f in self.exit_file.traceback if not is_library(f.filename)), None)

    @property
    def says_not_finite(self) -> bool:
        """Whether the text of the exception mentions numbers that are not finite, such as a loss of NaN."""
        return bool(NOT_FINITE.search(self.message))


def first_crash(run: Run) -> Crash | None:
    """Return the earliest exception that was not caused by another rank's failure, else the earliest of all.

    The result is None if there is none.
    """
    crashes = sorted((Crash(*error) for error in hangs.read_errors(run)), key=lambda crash: crash.exit_file.time_ns)
    cause = _launchers_cause(run.manifest().get("cause"))
    if cause and not any(crash.message == cause.message for crash in crashes):
        # In front, as its time is not known: the launcher names the rank that failed first.
        crashes.insert(0, cause)
    # min keeps the first of equals: the earliest crash of its kind.
    return min(crashes, key=lambda crash: crash.is_symptom, default=None)


def _launchers_cause(cause: object) -> Crash | None:
    """Return the error that the launcher recorded in the field `cause` of `run.json`; None if it names no error.

    The error has no traceback.
    """
    if not isinstance(cause, dict) or not (cause.get("error") or cause.get("message")):
        return None
    rank = cause.get("rank")
    exit_file = ExitFile(
        rank=rank if isinstance(rank, int) else -1,
        error=str(cause.get("error") or ""),
        message=_first_line(str(cause.get("message") or "")),
        hint=split_hint(str(cause.get("message") or ""))[1],
    )
    return Crash(exit_file, str(cause.get("log") or ""))


def _first_line(text: str) -> str:
    """Return the first line of a message, truncated to a length that fits in a sentence."""
    return (text.strip().splitlines() or [""])[0][:_LONGEST_MESSAGE]


def is_completed(manifest: Mapping[str, object]) -> bool:
    """Return whether `run.json` (`manifest`) records that the run ended without an error."""
    return manifest.get("status") == "completed"


_SURE = 0.8
DEEPEST = (
    LogClass.HARDWARE,
    LogClass.OOM,
    LogClass.HOST_OOM,
    LogClass.DATALOADER_WORKER,
    LogClass.DISK_FULL,
    LogClass.UNUSED_PARAMETERS,
    LogClass.STARTUP,
)
"""The classes of failures that logs explain better than dumps, which only show that a rank died."""
_CATCHABLE = (LogClass.OOM, LogClass.HOST_OOM, LogClass.DATALOADER_WORKER, LogClass.DISK_FULL, LogClass.CRASHED)
_OF_ROWS = (LogClass.DATA_TIME, LogClass.LOSS_SPIKE)
"""The classes that the analyzer of steps judges better, as it reads all rows."""
_SYSTEM_EXIT = re.compile(r"SystemExit\b")
WAITS = (EventKind.TIMEOUT, EventKind.CONNECTION_LOST)
CRASHED = "incident.crashed"
"""The id of the finding about an uncaught exception."""
LOST = "incident.launcher_lost"
"""The id of the finding about a launcher that was killed."""


@dataclass(frozen=True)
class Waiting:
    """The victims of a hang's culprit, and an operation in which `count` of them wait (None: not known).

    `group` is the label of the operation's process group, such as `dp`.
    """

    culprit: Culprit
    operation: Wait | None = None
    group: str = ""
    count: int = 0


@dataclass(frozen=True)
class Event:
    """One event in the chain from cause to effect, before its sentence is written.

    The sentence is `title` if an analyzer gave one, else it is made from `crash`, `waiting` or `launcher`. `findings`
    are the ids of the findings that the event is based on. `culprit` is set if `title` is about the culprit of a
    hang.
    """

    kind: str
    ranks: list[int] = field(default_factory=list)
    step: int | None = None
    findings: list[str] = field(default_factory=list)
    title: str = ""
    crash: Crash | None = None
    waiting: Waiting | None = None
    culprit: Culprit | None = None
    launcher: Mapping[str, object] | None = None


def chain_of(reports: AnalyzerReports, crash: Crash | None, manifest: Mapping[str, object]) -> list[Event]:
    """Return the chain of events from the first cause to the last effect; empty if nothing is wrong.

    `crash` is the first uncaught exception of the run, `manifest` the content of `run.json`.
    """
    completed = is_completed(manifest) or reports.ended_cleanly
    failed_by = None if completed else crash
    lived_on = crash is None and manifest.get("status") == "interrupted" and _is_of_a_rank(reports.logs)
    questions: Sequence[Callable[[], list[Event]]] = (
        # Memory and a broken loss explain a crash or a hang that followed; a hang explains a rank's broken connection.
        lambda: out_of_memory(reports),
        lambda: [] if completed or lived_on else _printed_failure(reports, DEEPEST),
        lambda: _broken_loss(reports) if completed or (crash and crash.says_not_finite) else [],
        lambda: _printed_reason(reports),
        lambda: _swallowed_failure(reports) if completed else [],
        lambda: hung(reports),
        lambda: _lost_launcher(manifest) if failed_by is None or failed_by.is_symptom else [],
        lambda: [crashed(failed_by)] if failed_by and not failed_by.is_symptom else [],
        lambda: [] if completed or lived_on else _printed_failure(reports),
        lambda: hung(reports, undecided=True),
        lambda: [crashed(failed_by)] if failed_by else [],
        lambda: _broken_loss(reports),
        lambda: warnings(reports),
    )
    return next((chain for question in questions if (chain := question())), [])


def crashed(crash: Crash) -> Event:
    """Return the event of an uncaught exception.

    If another rank's failure caused the exception, the event blames no rank: the rank that raised the exception is a
    victim.
    """
    if crash.is_symptom:
        return Event(IncidentClass.UNKNOWN, findings=[CRASHED], crash=crash)
    return Event(IncidentClass.CRASHED, crash.ranks, findings=[CRASHED], crash=crash)


def _lost_launcher(manifest: Mapping[str, object]) -> list[Event]:
    """Return, in a list, the event that the launcher was killed, after which its watchdog process ended the ranks.

    The list is empty if the launcher was not killed; `manifest` is the content of `run.json`.
    """
    launcher = manifest.get("launcher")
    if not isinstance(launcher, dict) or not launcher_is_lost(manifest):
        return []
    return [Event(IncidentClass.LAUNCHER_LOST, findings=[LOST], launcher=launcher)]


def out_of_memory(reports: AnalyzerReports) -> list[Event]:
    """Return the event that a rank ran out of memory, then the events of ranks that wait for it; empty without one."""
    culprits = reports.hang.data.culprits if reports.hang else []
    dead = [c for c in culprits if c.out_of_memory]
    if reports.memory and reports.memory.verdict.kind == IncidentClass.OOM:
        verdict = reports.memory.verdict
        finding = next(f for f in reports.memory.findings if f.id == "memory.oom")
        ranks = verdict.ranks or sorted(r for c in dead for r in c.ranks)
        step = finding.step if finding.step is not None else next((c.step for c in dead), None)
        if step is not None and reports.hang and _went_on(reports.hang.data, set(ranks), step):
            return []
        root = Event(IncidentClass.OOM, ranks, step, [finding.id], title=verdict.sentence)
    elif dead:
        first = dead[0]
        root = Event(IncidentClass.OOM, first.ranks, first.step, ["hang.dead"], title=first.title, culprit=first)
    else:
        return []
    return [root, *(event for c in culprits if set(c.ranks) & set(root.ranks) for event in waiting(reports, c))]


def _went_on(data: HangData, ranks: set[int], step: int) -> bool:
    """Return whether ranks that ran out of memory at `step` are seen at a later step, so that they caught the error.

    They ended there for another reason, or they wait there for a rank that did.
    """
    later = [c for c in data.culprits if c.step is not None and c.step > step and not c.out_of_memory]
    if any(set(c.ranks) == ranks for c in later):
        return True
    return ranks <= {wait.rank for wait in data.waits} and any(ranks.isdisjoint(c.ranks) for c in later)


def hung(reports: AnalyzerReports, *, undecided: bool = False) -> list[Event]:
    """Return the events of a hang: for each culprit, one event for it and one for its victims; empty without a hang.

    With `undecided`, culprits are also returned if the verdict on the hang is unknown. The list is also empty if the
    step log explains a slow rank better.
    """
    if reports.hang is None or is_explained_by_steps(reports):
        return []
    kind = reports.hang.verdict.kind
    if kind == HangClass.HEALTHY or (kind == HangClass.UNKNOWN and not undecided):
        return []
    return [
        event
        for culprit in reports.hang.data.culprits
        for event in (blame(reports, culprit), *waiting(reports, culprit))
    ]


def blame(reports: AnalyzerReports, culprit: Culprit) -> Event:
    """Return the event of a hang's culprit; a rank ended by an exception counts as crashed."""
    kind = IncidentClass.CRASHED if culprit.kind is HangClass.DEAD and culprit.error else culprit.kind
    findings = [f"hang.{culprit.kind}", *_count_findings(reports, culprit)]
    return Event(kind, culprit.ranks, culprit.step, findings, title=culprit.title, culprit=culprit)


def is_explained_by_steps(reports: AnalyzerReports) -> bool:
    """Return whether the step log shows more about a slow rank than the dumps do: how late it is, and why."""
    if reports.hang is None or reports.steps is None:
        return False
    return (reports.hang.verdict.kind, reports.steps.verdict.kind) == (HangClass.SLOW, Problem.STRAGGLER)


def _count_findings(reports: AnalyzerReports, culprit: Culprit) -> list[str]:
    """Return the ids of findings on step logs about fewer collectives on `culprit` than on other ranks."""
    findings = reports.steps.findings if reports.steps else []
    count = f"steps.{Problem.COLLECTIVE_COUNT}"
    return [f.id for f in findings if f.id == count and set(f.ranks) & set(culprit.ranks)]


def _printed_failure(reports: AnalyzerReports, kinds: Collection[LogClass] | None = None) -> list[Event]:
    """Return the event of the failure that the text logs show, then the events of ranks that wait for the failed ranks.

    The list is empty if the logs show no failure. With `kinds`, it is also empty if the failure is of another class, or
    if the confidence of the finding on it is below `_SURE`.
    """
    if reports.logs is None or reports.logs.verdict.status not in (Status.ERROR, Status.WARNING):
        return []
    if not reports.logs.findings:
        return []
    verdict, finding = reports.logs.verdict, reports.logs.findings[0]
    if verdict.kind in _OF_ROWS and reports.steps and reports.steps.verdict.status is not Status.UNKNOWN:
        return []
    if kinds is not None and (verdict.kind not in kinds or finding.confidence < _SURE):
        return []
    if is_outlived(reports, verdict.ranks):
        return []
    root = Event(verdict.kind, verdict.ranks, finding.step, [finding.id], title=verdict.sentence)
    culprits = reports.hang.data.culprits if reports.hang else []
    return [root, *(event for c in culprits if set(c.ranks) & set(root.ranks) for event in waiting(reports, c))]


def _is_of_a_rank(logs: AnalyzerReport | None) -> bool:
    """Return whether the logs blame an error that ranks raise themselves, and not the end that somebody asked for.

    In a run that was interrupted no such error ended a rank, or the launcher would have seen that rank end.
    """
    return logs is not None and bool(logs.verdict.ranks) and logs.verdict.kind in _CATCHABLE


def is_outlived(reports: AnalyzerReports, ranks: Collection[int]) -> bool:
    """Return whether ranks that printed an error went on and at last only waited for others, by the dumps.

    They caught the error, or another thread printed it: they are the victims of a rank with a failure of its own.
    """
    culprits = reports.hang.data.culprits if reports.hang else []
    blamed = {rank for c in culprits for rank in c.ranks}
    failed = [c for c in culprits if c.kind is HangClass.HOST_STUCK or (c.kind is HangClass.DEAD and c.error)]
    waiting_for_others = {rank for c in failed for rank in c.victims}
    return bool(ranks) and blamed.isdisjoint(ranks) and waiting_for_others >= set(ranks)


def _printed_reason(reports: AnalyzerReports) -> list[Event]:
    """Return the events of a failure in the text logs that explains why ranks ended, if the dumps do not explain it.

    There are five kinds: an error that a rank caught before it skipped collectives; a stack in the log that shows a
    rank outside of the collective; a loss that is not finite, after which a rank called `sys.exit`; an exception hidden
    by a collective in a `finally` block; an exception that a rank printed and could not record.
    """
    if reports.hang is None or reports.logs is None:
        return []
    culprits = reports.hang.data.culprits
    ended = {rank for c in culprits for rank in c.ranks}
    said = reports.logs.verdict
    if said.kind == LogClass.CRASHED and set(said.ranks) == ended and _is_hidden(reports.logs.data, said.ranks):
        return _printed_failure(reports)
    # Victims may leave by sys.exit, too: the log of the first rank says why.
    left = all(c.error and _SYSTEM_EXIT.match(c.error) for c in culprits)
    if left and said.kind == LogClass.CRASHED and set(said.ranks) & ended == set(said.ranks) != set():
        return _printed_failure(reports)
    is_open = all(c.kind is HangClass.DEAD and (not c.error or _SYSTEM_EXIT.match(c.error)) for c in culprits)
    explains = (LogClass.MISMATCH, LogClass.NONFINITE_LOSS, LogClass.CRASHED)
    is_reason = (said.kind in explains and set(said.ranks) == ended) or (
        said.kind == LogClass.COLLECTIVE_TIMEOUT and set(said.ranks) < ended
    )
    return _printed_failure(reports) if is_open and said.ranks and is_reason else []


def _swallowed_failure(reports: AnalyzerReports) -> list[Event]:
    """Return the events of a rank that left the others in a collective although all ranks ended with exit code 0.

    A program may handle an error by ending the rank as if nothing had happened. The collective of the other ranks then
    fails, and they end in the same way. But their logs show that they lost a connection in the middle of the job.
    """
    is_left = reports.logs is not None and reports.logs.verdict.kind == LogClass.EARLY_EXIT
    return _printed_failure(reports) if is_left else []


def _is_hidden(data: LogsData, ranks: Collection[int]) -> bool:
    """Return whether each of `ranks` failed in a collective while it handled an earlier error that is in its log.

    A `finally` block with a collective leads to this: Python then ends with the failure of the collective, and the
    first error is only its context. `data` has the events of the logs.
    """
    events = [event for event in data.events if event.rank in ranks]
    waits = [e for e in events if e.kind in WAITS and e.facts.operation]
    return {e.rank for e in events if any(e.rank == w.rank and e.message in w.chain for w in waits)} == set(ranks)


def waiting(reports: AnalyzerReports, culprit: Culprit) -> list[Event]:
    """Return, in a list, the event that the victims of a hang's culprit wait, with an operation that some are in.

    The operation that the culprit did not join is preferred, then one that waits for the culprit itself, then one that
    waits for another victim. The list is empty if the culprit has no victims.
    """
    if not culprit.victims or reports.hang is None:
        return []
    labels = {group.name: group.label for group in reports.hang.data.groups}

    def what(wait: Wait) -> tuple[str, int, str]:
        return labels.get(wait.group, wait.group), wait.seq, wait.operation

    victims, missing = set(culprit.victims), (culprit.group, culprit.seq, culprit.operation)
    waits = [w for w in reports.hang.data.waits if w.rank in victims]
    # Victims of a victim wait in operations that the culprit has no part in.
    direct = [w for w in waits if not set(culprit.ranks).isdisjoint(w.waits_for)]
    lacking = [w for w in direct if (w.group, w.seq, w.operation) == missing]
    first = next(iter(lacking or direct or waits), None)
    count = len({w.rank for w in waits if first and what(w) == what(first)})
    waited = Waiting(culprit, first, what(first)[0] if first else "", count)
    return [Event(IncidentClass.WAITING, culprit.victims, None, [f"hang.{culprit.kind}"], waiting=waited)]


def _broken_loss(reports: AnalyzerReports) -> list[Event]:
    """Return the events of values and losses that are not finite (NaN or infinite).

    The first event is the operation that produced the first such value, if it is known. Then follows one event for each
    finding about the loss.
    """
    findings = reports.steps.findings if reports.steps else []
    kind = Problem.NONFINITE_LOSS
    losses = [f for f in findings if f.id == f"steps.{kind}"]
    made = [Event(kind, f.ranks, f.step, [f.id], title=f.title) for f in reports.not_finite]
    # All ranks share the loss: those that made the value are to blame, not those that saw it.
    return [*made, *(Event(kind, [] if made else f.ranks, f.step, [f.id], title=f.title) for f in losses)]


def warnings(reports: AnalyzerReports) -> list[Event]:
    """Return an event for each warning or error in the reports on a run that neither hung nor died, most severe first.

    Each report gives at most one event, from its verdict. The report on traces is used only if there is none on steps,
    because most of its findings say how a step could be faster, which is no incident.
    """
    asked: list[AnalyzerReport | None] = [reports.steps or reports.trace, reports.memory]
    asked += [] if is_explained_by_steps(reports) else [reports.hang]
    leads = [(r, f) for r in asked if r is not None and (f := _lead_of(r))]
    # A snapshot shows which memory grows, a step log only that some memory does.
    if any(f.id == "memory.leak" for _, f in leads):
        leads = [(r, f) for r, f in leads if r.verdict.kind != Problem.MEMORY_GROWTH]
    leads.sort(key=lambda lead: -lead[1].severity.weight)
    return [Event(r.verdict.kind, r.verdict.ranks, f.step, [f.id], title=r.verdict.sentence) for r, f in leads]


def _lead_of(report: AnalyzerReport) -> Finding | None:
    """Return the first finding of a report whose verdict is a warning or an error; None for other verdicts."""
    first = report.findings[0] if report.findings else None
    is_bad = report.verdict.status in (Status.WARNING, Status.ERROR)
    return first if first and is_bad and first.severity is not Severity.INFO else None
