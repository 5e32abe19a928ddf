"""The verdict on a set of traces: which finding comes first, in one sentence, and which evidence was missing."""

from collections.abc import Sequence
from enum import StrEnum

from analyzers.report import Finding, Verdict, status_of
from analyzers.traces.across.clocks import Clock
from analyzers.traces.model import RankTrace
from analyzers.words import duration_ns, rank_names, share

HEALTHY_CONFIDENCE = 0.8


class VerdictClass(StrEnum):
    """The classes of a trace verdict, that of most importance first; all but the last two are ids of findings."""

    STRAGGLER = "straggler"
    EXPOSED_COMMUNICATION = "exposed_communication"
    HOST_BOUND = "host_bound"
    MEMORY_NEAR_LIMIT = "memory_near_limit"
    MEMORY_GROWS = "memory_grows"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


class Missing(StrEnum):
    """Evidence that would make a verdict firmer."""

    CLOCKS = "clocks"
    STEP_MARKS = "step_marks"
    DEVICE_EVENTS = "device_events"
    OTHER_RANKS = "other_ranks"


WITHOUT_FINDING = (VerdictClass.HEALTHY, VerdictClass.UNKNOWN)


def verdict(accounts: Sequence[RankTrace], findings: Sequence[Finding], clocks: Sequence[Clock]) -> Verdict:
    """Return the verdict: a straggler first, else the largest loss of time, else trouble with memory, else healthy."""
    by_id = {finding.id: finding for finding in findings}
    lacks = [missing_sentence(lack, clocks) for lack in missing(accounts, clocks)]
    for kind in VerdictClass:
        finding = by_id.get(f"trace.{kind}")
        if finding is not None and kind not in WITHOUT_FINDING:
            return Verdict(
                status=status_of(findings),
                kind=kind,
                ranks=finding.ranks,
                sentence=f"{finding.title}; {division(accounts)}",
                confidence=finding.confidence,
                missing=lacks,
            )
    worked = any(account.device_events for account in accounts)
    return Verdict(
        status=status_of(findings),
        kind=VerdictClass.HEALTHY if worked else VerdictClass.UNKNOWN,
        sentence=division(accounts) if worked else "the trace records no work",
        confidence=HEALTHY_CONFIDENCE if worked else 0.0,
        missing=lacks,
    )


def division(accounts: Sequence[RankTrace]) -> str:
    """Return how the time of the longest account divides, as half a sentence."""
    longest = max(accounts, key=lambda account: account.span_ns)
    span = longest.span_ns
    name = "the trace" if longest.rank is None else f"rank {longest.rank}"
    return (
        f"of {duration_ns(span)}, {name} computes {share(longest.compute_ns, span)}, communicates without computing"
        f" {share(longest.exposed_communication_ns, span)} and idles {share(longest.idle_ns, span)}"
    )


def missing(accounts: Sequence[RankTrace], clocks: Sequence[Clock]) -> list[Missing]:
    """Return the evidence that would have made the verdict firmer."""
    world = max((account.world_size or 1 for account in accounts), default=1)
    lacks = {
        Missing.CLOCKS: any(not clock.agrees for clock in clocks),
        Missing.STEP_MARKS: any(not account.steps for account in accounts),
        Missing.DEVICE_EVENTS: any(account.source == "cpu" for account in accounts),
        Missing.OTHER_RANKS: len({account.rank for account in accounts}) < world,
    }
    return [lack for lack, holds in lacks.items() if holds]


def missing_sentence(lack: Missing, clocks: Sequence[Clock]) -> str:
    """Return what is missing and, where the user can supply it, how."""
    if lack is Missing.CLOCKS:
        ranks = [clock.rank for clock in clocks if not clock.agrees]
        return f"collectives that fix the clock of {rank_names(ranks)}: there are none, or they contradict each other"
    return MISSING_SENTENCES[lack]


MISSING_SENTENCES = {
    Missing.STEP_MARKS: "step marks (call profiler.step() at the end of each step)",
    Missing.DEVICE_EVENTS: "device events (record with ProfilerActivity.CUDA)",
    Missing.OTHER_RANKS: "the traces of the other ranks",
}
