"""Run each analyzer on its own artefacts of a run, and collect the reports."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from analyzers import hangs, logs, memory, steps, store, traces
from analyzers.errors import NothingRecorded, WorkbenchError
from analyzers.hangs import HangData
from analyzers.incident.not_finite import not_finite_findings
from analyzers.limits import limited
from analyzers.logs import EventKind, LogEvent, LogsData
from analyzers.memory import MemoryData
from analyzers.report import EVIDENCE_AT_MOST, Evidence, Finding, Report
from analyzers.run import TIMED, Artefact, Kind, Run, newest_step, unreadable
from analyzers.steps import StepsData
from analyzers.traces import TraceData

Data = TypeVar("Data")
AnalyzerReport = Report[MemoryData] | Report[HangData] | Report[TraceData] | Report[StepsData] | Report[LogsData]

MOST_SNAPSHOTS = 32
"""The most memory snapshots that are read; if there are more, those of the last step are enough for a verdict."""


@dataclass
class AnalyzerReports:
    """The report of each analyzer; None if the analyzer had nothing to read, or failed.

    `problems` has the errors of analyzers that failed, and `unreadable` the findings on analyzers that could read none
    of their files. `not_finite` has the finding on the operation that first returned NaN or infinity, if there is one.
    """

    memory: Report[MemoryData] | None = None
    hang: Report[HangData] | None = None
    trace: Report[TraceData] | None = None
    steps: Report[StepsData] | None = None
    logs: Report[LogsData] | None = None
    not_finite: list[Finding] = field(default_factory=list)
    has_empty_step_logs: bool = False
    problems: list[str] = field(default_factory=list)
    unreadable: list[Finding] = field(default_factory=list)

    def by_name(self) -> dict[str, AnalyzerReport]:
        """Return {analyzer's name: its report} of the existing reports; the ids of findings begin with this name."""
        reports: Mapping[str, AnalyzerReport | None] = {
            "memory": self.memory,
            "hang": self.hang,
            "trace": self.trace,
            "steps": self.steps,
            "logs": self.logs,
        }
        return {name: report for name, report in reports.items() if report is not None}

    @property
    def ended_cleanly(self) -> bool:
        """Whether all ranks marked a clean end and no launcher reported a failure; then no error in a log was fatal."""
        failed = self.logs and any(event.kind == EventKind.TORCHRUN_ROOT_CAUSE for event in self.logs.data.events)
        return bool(self.hang and self.hang.data.ended_cleanly) and not failed

    def existing(self) -> list[AnalyzerReport]:
        """Return the reports that are not None."""
        return list(self.by_name().values())


def run_analyzers(run: Run, options: store.Options) -> AnalyzerReports:
    """Return the reports of all analyzers; each reads its own files of the run."""
    reports = AnalyzerReports(not_finite=not_finite_findings(run.of(Kind.NOT_FINITE)))
    # The logs come first: they show the buffers of NCCL, which the memory analyzer needs.
    if printed := run.of(Kind.LOG, Kind.TEXT, Kind.ERROR):
        reports.logs = _try_analyzer(reports, printed, "logs", lambda: logs.analyze(run, options))
    buffers = reports.logs.data.nccl if reports.logs else ()
    if snapshots := snapshots_to_read(run):
        reports.memory = _try_analyzer(
            reports, snapshots, "memory", lambda: memory.analyze(snapshots, options, buffers)
        )
    if run.of(Kind.FLIGHT, Kind.COLLECTION, Kind.EXIT) or _has_failed_rank(run.manifest()) or _is_foreign_end(run):
        reports.hang = _try_analyzer(reports, run.of(Kind.FLIGHT), "hang", lambda: hangs.analyze(run, options))
    if recorded := newest_step(run.of(Kind.TRACE)):
        reports.trace = _try_analyzer(reports, recorded, "trace", lambda: traces.analyze(recorded, options))
    _add_steps_report(reports, run, options)
    return reports


def _add_steps_report(reports: AnalyzerReports, run: Run, options: store.Options) -> None:
    """Analyze the files of a run that may contain steps, and store the report in `reports.steps`.

    If the run has step logs but none of them has a step, `reports.has_empty_step_logs` is set.
    """
    timed = run.of(*TIMED)
    if any(log.kind is not Kind.LOG for log in timed):
        reports.steps = _try_analyzer(reports, timed, "steps", lambda: steps.analyze(timed, options))
        reports.has_empty_step_logs = reports.steps is None
    elif timed and not run.of(Kind.MANIFEST):
        # Worker logs are what any job prints: they may have no step, which is no problem.
        with suppress(WorkbenchError):
            reports.steps = steps.analyze(timed, options)


def snapshots_to_read(run: Run) -> list[Artefact]:
    """Return all memory snapshots of a run, or only the newest if there are more than `MOST_SNAPSHOTS`.

    The newest are those of the last step. If ranks wrote them when they failed, the last snapshots of other ranks are
    added, up to `MOST_SNAPSHOTS`: what the failed ranks have more than the others is known only beside those.
    """
    snapshots = run.of(Kind.SNAPSHOT)
    if len(snapshots) <= MOST_SNAPSHOTS:
        return snapshots
    newest = newest_step(snapshots)
    if not any(snapshot.exit for snapshot in newest):
        return newest
    failed = {snapshot.rank for snapshot in newest}
    others = newest_step([s for s in snapshots if not s.exit and s.rank not in failed])
    return [*newest, *others[: max(0, MOST_SNAPSHOTS - len(newest))]]


def _has_failed_rank(manifest: Mapping[str, object]) -> bool:
    """Return whether run.json names a rank with an exit code other than 0."""
    codes = manifest.get("exit_codes")
    return isinstance(codes, dict) and any(codes.values())


def _is_foreign_end(run: Run) -> bool:
    """Return whether all ranks marked a clean end in a run whose training script is not this project's trainer.

    There is then no `run.json`, or one written by this project's launcher (it has the field `command`). In such a run
    only these marks, which recorders write, show that the run ended well.
    """
    manifest = run.manifest()
    is_foreign = not manifest or "command" in manifest
    return bool(run.of(Kind.GROUPS)) and is_foreign and hangs.has_ended_cleanly(run)


def _try_analyzer(
    reports: AnalyzerReports, files: Sequence[Artefact], name: str, question: Callable[[], Report[Data]]
) -> Report[Data] | None:
    """Call `question`, which runs the analyzer `name` on `files`, and return its report.

    If it fails, the result is None, and the error is added to `reports.problems`.
    """
    try:
        # Half of the time: the rest is left to the other analyzers.
        with limited(str(files[0].path) if files else name, [file.path for file in files], share=0.5):
            return question()
    except WorkbenchError as error:
        reports.problems.append(error.message)
        if files and not isinstance(error, NothingRecorded):
            reports.unreadable.append(unreadable(files[0], name, error))
        return None


# Add lines of the text logs as evidence to findings of other analyzers on the same ranks or operations.

_OWN_END = (
    EventKind.EXCEPTION,
    EventKind.OUT_OF_MEMORY,
    EventKind.HOST_OUT_OF_MEMORY,
    EventKind.CUDA_ERROR,
    EventKind.DATALOADER_WORKER,
    EventKind.DISK_FULL,
    EventKind.SIGNAL,
    EventKind.EXIT,
    EventKind.TORCHRUN_ROOT_CAUSE,
    EventKind.NAN,
)
"""The kinds of log events that show how a rank ended, printed by the rank or its launcher."""
LINES_AT_MOST = 2
_TEXT_LENGTH = 240


def with_log_evidence(findings: Iterable[Finding], reports: AnalyzerReports) -> list[Finding]:
    """Return all findings; those on hangs, memory and crashes get lines of the text logs as further evidence.

    The lines are about the ranks or the operation of the finding.
    """
    if reports.logs is None:
        return list(findings)
    events = reports.logs.data.events
    return [_with_lines(f, matching(f, events, reports)) if _is_of_another_analyzer(f) else f for f in findings]


def _is_of_another_analyzer(finding: Finding) -> bool:
    """Return whether a finding is of a kind that log lines can be added to: on hangs, memory or crashes."""
    return finding.id.startswith(("hang.", "memory.oom", "incident."))


def matching(finding: Finding, events: Sequence[LogEvent], reports: AnalyzerReports) -> list[LogEvent]:
    """Return the log events that show how the finding's ranks ended.

    Of a hang, the timeouts in the operation in which the culprit's victims wait are added.
    """
    ended = [e for e in events if e.kind in _OWN_END and e.rank is not None and e.rank in finding.ranks]
    culprits = [c for c in reports.hang.data.culprits if f"hang.{c.kind}" == finding.id] if reports.hang else []
    operations = {(name, c.seq) for c in culprits if c.seq is not None for name in (c.group, c.group_desc)}
    # PyTorch's C++ logs name a group by its description, or by its number where it has none.
    timed_out = [e for e in events if e.kind is EventKind.WATCHDOG_TIMEOUT and (e.group, e.seq) in operations]
    # The first line of a rank says most: its exit code follows from its exception.
    return [*ended[:1], *timed_out[:LINES_AT_MOST]]


def _with_lines(finding: Finding, events: Sequence[LogEvent]) -> Finding:
    """Return a copy of a finding with the log lines of `events` added after its own evidence."""
    lines = [Evidence(text=e.headline[:_TEXT_LENGTH], source=f"{e.path}:{e.line}", line=e.source) for e in events]
    return msgspec.structs.replace(finding, evidence=[*finding.evidence, *lines][:EVIDENCE_AT_MOST])
