"""Convert the causes of a hang to findings of the report, and to the culprits of its JSON document."""

from dataclasses import replace

import msgspec

from analyzers.hangs.classify.cause import UNKNOWN_PROCESS, Cause, HangContext, Process
from analyzers.hangs.classify.parting import find_parting
from analyzers.hangs.findings.catalogue import detail, entry_of, next_step, title, why
from analyzers.hangs.findings.evidence import evidence, measure_growth
from analyzers.hangs.model import Culprit, HangClass, Job
from analyzers.hangs.reading.side_files import SideFiles
from analyzers.report import EVIDENCE_AT_MOST, Evidence, Finding, Severity
from analyzers.words import rank_names

COLLECT_AGAIN = "collect the dumps again, or copy the files again: they may be truncated"


def make_culprit(cause: Cause) -> Culprit:
    """Return the culprit of a cause with its title and evidence, for the JSON document."""
    return msgspec.structs.replace(cause.culprit, detail=detail(cause), title=title(cause))


def make_finding(context: HangContext, cause: Cause) -> Finding:
    """Return the finding on a cause; its id is `hang.` followed by the cause's class."""
    process, parting = process_of(context.side, cause.ranks[0]), find_parting(context.side, cause)
    cause = replace(cause, process=process, parting=parting, is_gloo=context.is_gloo)
    if cause.end and cause.end.is_silent:
        cause = replace(cause, growth=measure_growth(context.side.step_logs.get(cause.ranks[0])))
    return Finding(
        id=f"hang.{cause.kind}",
        severity=_severity_of(context, cause),
        title=title(cause),
        why=why(cause),
        next=next_step(cause),
        ranks=cause.ranks,
        step=cause.culprit.step,
        evidence=evidence(context, cause),
        confidence=cause.culprit.confidence,
    )


def process_of(side: SideFiles, rank: int) -> Process:
    """Return the process of a rank; its id and host are unknown if there is no `groups_R.json` for the rank."""
    file = side.groups.get(rank)
    return Process(file.pid, file.host) if file else UNKNOWN_PROCESS


def _severity_of(context: HangContext, cause: Cause) -> Severity:
    """Return the severity of a cause; it is `INFO` if a rank was only slow in a job that ended cleanly."""
    if cause.kind is HangClass.SLOW and context.side.all_ended_cleanly(context.job.world_size):
        return Severity.INFO
    return entry_of(cause).severity


def report_unreadable(job: Job) -> list[Finding]:
    """Return, in a list, the finding that some dumps could not be read; the list is empty if all could be read."""
    damaged = sorted(job.unreadable)
    if not damaged:
        return []
    return [
        Finding(
            id="hang.unreadable_dump",
            severity=Severity.WARNING,
            title=f"the {'dump' if len(damaged) == 1 else 'dumps'} of {rank_names(damaged)} could not be read",
            why="an unreadable dump may hold the cause, or show what the other ranks wait for",
            next=COLLECT_AGAIN,
            ranks=damaged,
            evidence=[Evidence(text=f"rank {r}: {job.unreadable[r]}") for r in damaged[:EVIDENCE_AT_MOST]],
            confidence=1.0,
        )
    ]
