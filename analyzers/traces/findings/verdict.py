"""Write the verdict on a set of traces: one sentence on the most important finding, and which evidence is missing."""

from collections.abc import Sequence
from enum import StrEnum

from analyzers.report import Finding, Severity, Status, Verdict, status_of
from analyzers.traces.accounts import EXCERPT
from analyzers.traces.across.clocks import Clock
from analyzers.traces.findings.common import GPU_TRAINING, lacks_kernels
from analyzers.traces.model import Advice, OpportunityKind, RankTrace
from analyzers.words import duration_ns, rank_names, share

_HEALTHY_CONFIDENCE = 0.8


class VerdictClass(StrEnum):
    """The kinds of a verdict on traces.

    Except for HEALTHY and UNKNOWN, `trace.` plus the value is also the id of a finding.
    """

    STRAGGLER = "straggler"
    EXPOSED_COMMUNICATION = "exposed_communication"
    HOST_BOUND = "host_bound"
    DEVICES_IN_TURN = "devices_in_turn"
    DATA_LOADER = "data_loader"
    PYTHON = "python"
    SYNCHRONISING_CALL = "synchronising_call"
    LAUNCH = "launch"
    UNFUSED_ATTENTION = "unfused_attention"
    FLOAT64 = "float64"
    FLOAT32 = "float32"
    MISALIGNED = "misaligned"
    PAGEABLE_COPIES = "pageable_copies"
    EXPOSED_COPIES = "exposed_copies"
    CROSS_ENTROPY = "cross_entropy"
    LAYOUT_COPIES = "layout_copies"
    ELEMENTWISE = "elementwise"
    SMALL_COLLECTIVES = "small_collectives"
    BUS_BANDWIDTH = "bus_bandwidth"
    RECOMPUTATION = "recomputation"
    MEMORY_NEAR_LIMIT = "memory_near_limit"
    MEMORY_GROWS = "memory_grows"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


class Missing(StrEnum):
    """A kind of evidence that is missing in the traces and would make the verdict more certain."""

    CLOCKS = "clocks"
    STEP_MARKS = "step_marks"
    DEVICE_EVENTS = "device_events"
    OTHER_RANKS = "other_ranks"


_MOST_IMPORTANT = (
    VerdictClass.STRAGGLER,
    VerdictClass.EXPOSED_COMMUNICATION,
    VerdictClass.HOST_BOUND,
    VerdictClass.DEVICES_IN_TURN,
)
_ABOUT_MEMORY = (VerdictClass.MEMORY_NEAR_LIMIT, VerdictClass.MEMORY_GROWS)
_OPPORTUNITIES = {kind.value for kind in OpportunityKind} & {kind.value for kind in VerdictClass}


def verdict(
    accounts: Sequence[RankTrace],
    findings: Sequence[Finding],
    clocks: Sequence[Clock],
    opportunities: Sequence[Advice] = (),
) -> Verdict:
    """Return the verdict on a set of traces: the most important finding; without findings "healthy" or "unknown".

    A straggler comes first, then the largest loss of time, then a problem with memory. `clocks` show whether the ranks'
    clocks could be compared; `opportunities` are sorted by the time that they save, the largest first.
    """
    by_id = {finding.id: finding for finding in findings if _is_lead(finding)}
    lacks = [_missing_sentence(lack, clocks) for lack in missing(accounts, clocks)]
    for kind in _by_importance(opportunities):
        finding = by_id.get(f"trace.{kind}")
        if finding is not None:
            return Verdict(
                status=status_of(findings),
                kind=kind,
                ranks=finding.ranks,
                sentence=f"{finding.title}; {division(of_ranks(accounts, finding.ranks))}",
                confidence=finding.confidence,
                missing=lacks,
            )
    worked = any(account.device_events for account in accounts) and not (
        _lacks_device(accounts) or _is_excerpt(accounts) or any(map(lacks_kernels, accounts))
    )
    status = status_of(findings)
    return Verdict(
        status=Status.UNKNOWN if status is Status.OK and not worked else status,
        kind=VerdictClass.HEALTHY if worked else VerdictClass.UNKNOWN,
        sentence=division(accounts) if worked else _unknown_reason(accounts),
        confidence=_HEALTHY_CONFIDENCE if worked else 0.0,
        missing=lacks,
    )


def _lacks_device(accounts: Sequence[RankTrace]) -> bool:
    """Return whether only hosts were recorded although there are devices; the time of the devices is then unknown."""
    return all(account.source == "cpu" for account in accounts) and any(
        account.device_name or GPU_TRAINING.search(account.backend or "") for account in accounts
    )


def _is_excerpt(accounts: Sequence[RankTrace]) -> bool:
    return all(account.span_ns < EXCERPT * sum(step.dur_ns for step in account.step_times) for account in accounts)


def _unknown_reason(accounts: Sequence[RankTrace]) -> str:
    if not any(account.device_events for account in accounts):
        return "the trace records no work"
    if _lacks_device(accounts):
        return f"the work of the devices was not recorded, only that of the host; {division(accounts)}"
    if any(map(lacks_kernels, accounts)):
        return f"many kernels are missing in the trace, so its idle times mean nothing; {division(accounts)}"
    return f"the events cover next to nothing of the recorded steps; {division(accounts)}"


def _by_importance(opportunities: Sequence[Advice]) -> list[VerdictClass]:
    """Return the kinds of verdicts in order of importance; the first kind that has a finding becomes the verdict.

    `opportunities` are sorted by the time that they save, the largest first; their kinds come in the same order.
    """
    largest_first = [VerdictClass(row.kind.value) for row in opportunities if row.kind.value in _OPPORTUNITIES]
    return [*_MOST_IMPORTANT, *largest_first, *_ABOUT_MEMORY]


def _is_lead(finding: Finding) -> bool:
    """Return whether a finding may become the verdict; an opportunity that saves only little time may not."""
    return finding.severity is not Severity.INFO or finding.id.removeprefix("trace.") not in _OPPORTUNITIES


def of_ranks(accounts: Sequence[RankTrace], ranks: Sequence[int]) -> Sequence[RankTrace]:
    return [account for account in accounts if account.rank in ranks] or accounts


def division(accounts: Sequence[RankTrace]) -> str:
    """Return a clause on how the time of the device or host with the longest recording divides."""
    longest = max(accounts, key=lambda account: account.span_ns)
    span = longest.span_ns
    source = "the device" if longest.source == "device" else "the host"
    name = source if longest.rank is None else f"rank {longest.rank}"
    return (
        f"in the {duration_ns(span)} recorded, {name} computes {share(longest.compute_ns, span)},"
        f" communicates without computing {share(longest.exposed_communication_ns, span)}"
        f" and idles {share(longest.idle_ns, span)}"
    )


def missing(accounts: Sequence[RankTrace], clocks: Sequence[Clock]) -> list[Missing]:
    """Return the kinds of evidence that the traces lack and that would make the verdict more certain."""
    world = max((account.world_size or 1 for account in accounts), default=1)
    lacks = {
        Missing.CLOCKS: any(not clock.agrees for clock in clocks),
        Missing.STEP_MARKS: any(not account.steps for account in accounts),
        Missing.DEVICE_EVENTS: any(account.source == "cpu" for account in accounts),
        Missing.OTHER_RANKS: len({account.rank for account in accounts}) < world,
    }
    return [lack for lack, holds in lacks.items() if holds]


def _missing_sentence(lack: Missing, clocks: Sequence[Clock]) -> str:
    if lack is Missing.CLOCKS:
        ranks = [clock.rank for clock in clocks if not clock.agrees]
        return f"collectives that fix the clock of {rank_names(ranks)}: there are none, or they contradict each other"
    return _MISSING_SENTENCES[lack]


_MISSING_SENTENCES = {
    Missing.STEP_MARKS: "step marks (call profiler.step() at the end of each step)",
    Missing.DEVICE_EVENTS: "device events (record with the activity of the device, such as ProfilerActivity.CUDA)",
    Missing.OTHER_RANKS: "the traces of the other ranks",
}
