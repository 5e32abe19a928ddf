"""What is worth knowing about where the time goes, and what to try next."""

from collections.abc import Iterator, Sequence

from analyzers.report import Evidence, Finding, Severity
from analyzers.traces.model import RankTrace, RankWaits
from analyzers.traces.waits import straggler

HOST_BOUND, LATE, OFTEN, IN_VAIN = 0.2, 0.2, 0.3, 0.2
EXPOSED = {"device": 0.1, "cpu": 0.5}
"""On a CPU the processes take turns on the same cores, so much of the waiting is for a core."""
EVIDENCE_AT_MOST = 8


def findings_of(account: RankTrace) -> Iterator[Finding]:
    """The findings of one account."""
    if not account.device_events:
        yield empty_finding(account)
        return
    if account.exposed_communication_ns > EXPOSED[account.source] * account.span_ns:
        yield exposed_finding(account)
    if account.source == "device" and account.idle_host_ns > HOST_BOUND * account.span_ns:
        yield host_bound_finding(account)
    if account.source == "cpu":
        yield cpu_finding(account)
    if account.unlinked_events:
        yield unlinked_finding(account)
    if broken := [line for line in account.problems if "cut off" in line or "left out" in line or "replaced" in line]:
        yield truncated_finding(account, broken)


def exposed_finding(account: RankTrace) -> Finding:
    exposed, span = account.exposed_communication_ns, account.span_ns
    return finding(
        account,
        "trace.exposed_communication",
        f"{percent(exposed, span)} of the time only communication runs",
        f"{millis(exposed)} of {millis(account.communication_ns)} of communication run while nothing computes.",
        "See which collectives are long; prefetch the next layer, use fewer and larger buckets, or find the rank that"
        " the others wait for.",
        severity=Severity.WARNING,
        confidence=0.9,
    )


def host_bound_finding(account: RankTrace) -> Finding:
    idle, span = account.idle_host_ns, account.span_ns
    return finding(
        account,
        "trace.host_bound",
        f"{percent(idle, span)} of the time the device waits for the host",
        f"For {millis(idle)} the device had finished all it was given before the next launch came.",
        "Launch fewer and larger kernels (torch.compile, CUDA graphs, a larger batch); look for .item() and other"
        " synchronising calls, and for a slow data loader.",
        severity=Severity.WARNING,
        confidence=0.8,
    )


def cpu_finding(account: RankTrace) -> Finding:
    return finding(
        account,
        "trace.cpu_only",
        "No device worked in this trace",
        "It has no kernels, so operators count as compute and the host's own collectives as communication.",
        "If the job used a GPU, record with ProfilerActivity.CUDA.",
        severity=Severity.INFO,
        confidence=1.0,
    )


def unlinked_finding(account: RankTrace) -> Finding:
    part = account.unlinked_events / account.device_events
    return finding(
        account,
        "trace.unlinked",
        f"{percent(account.unlinked_events, account.device_events)} of the device events have no launch",
        "They were launched before the recording began, or their launches were not recorded; they count here, but"
        " belong to no step. Tools that drop them report less busy time.",
        "Use a warm-up step in the profiler's schedule.",
        severity=Severity.WARNING if part > 0.1 else Severity.INFO,
        confidence=1.0,
    )


def truncated_finding(account: RankTrace, broken: Sequence[str]) -> Finding:
    return finding(
        account,
        "trace.truncated",
        "The file is damaged",
        "; ".join(broken).capitalize() + ".",
        "Let the job finish writing before it is stopped; the numbers hold for what was read.",
        severity=Severity.WARNING,
        confidence=1.0,
    )


def empty_finding(account: RankTrace) -> Finding:
    return finding(
        account,
        "trace.empty",
        "The trace has no work in it",
        "Neither kernels nor operators were recorded.",
        "Export from on_trace_ready: after the loop the profiler's next cycle has begun already.",
        severity=Severity.WARNING,
        confidence=1.0,
    )


def finding(
    account: RankTrace, name: str, title: str, why: str, then: str, *, severity: Severity, confidence: float
) -> Finding:
    where = "host" if account.device is None else f"device {account.device}"
    numbers = f"{where}: span {millis(account.span_ns)}, busy {millis(account.busy_ns)}"
    return Finding(
        id=name,
        severity=severity,
        title=title,
        why=why,
        next=then,
        ranks=[] if account.rank is None else [account.rank],
        evidence=[Evidence(text=numbers, source=account.path)],
        confidence=confidence,
    )


def straggler_findings(accounts: Sequence[RankTrace], rows: Sequence[RankWaits]) -> Iterator[Finding]:
    """The rank that the others wait for, if their waiting is a good part of the time."""
    found = straggler(rows)
    window = max((row.window_ns for row in rows), default=0)
    if not found or found[1] < LATE * window:
        return
    slow, gap = found
    often = slow.last_arrivals / slow.collectives
    # On a busy machine every rank is late now and then: a straggler hardly ever waits itself.
    if often < OFTEN or slow.wait_ns > IN_VAIN * (slow.wait_ns + gap):
        return
    yield Finding(
        id="trace.straggler",
        severity=Severity.WARNING,
        title=f"The others wait for rank {slow.rank}",
        why=f"In {slow.collectives} collectives rank {slow.rank} waits {millis(slow.wait_ns)}, the others"
        f" {millis(slow.wait_ns + gap)} in the median: {percent(gap, window)} of the recorded time."
        f" {because(accounts, slow.rank, gap)}",
        next=f"Compare what rank {slow.rank} does between collectives with another rank:"
        " its operators, its data loading, garbage collection, the load of its host.",
        ranks=[slow.rank],
        evidence=[
            Evidence(text=f"rank {row.rank}: waits {millis(row.wait_ns)}, last in {row.last_arrivals}") for row in rows
        ][:EVIDENCE_AT_MOST],
        confidence=round(min(0.95, 0.4 + 0.5 * often), 2),
    )


def because(accounts: Sequence[RankTrace], slow: int, gap: int) -> str:
    """Whether the slow rank computes longer, or does something that is no recorded work."""
    own = sum(account.compute_ns for account in accounts if account.rank == slow)
    others = sorted(account.compute_ns for account in accounts if account.rank != slow)
    more = own - others[len(others) // 2]
    if more >= 0.5 * gap:
        return f"It computes {millis(more)} longer than the median of the others."
    return "Recorded operators do not account for it: see its data loading, garbage collection and host load."


def millis(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.1f} ms"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
