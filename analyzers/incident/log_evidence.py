"""Add lines of the text logs as evidence to findings of other analyzers on the same ranks or operations."""

from collections.abc import Iterable, Sequence

import msgspec

from analyzers.incident.analyzer_reports import AnalyzerReports
from analyzers.logs import EventKind, LogEvent
from analyzers.report import EVIDENCE_AT_MOST, Evidence, Finding

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
