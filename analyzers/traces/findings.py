"""What is worth knowing about where the time goes, and what to try next."""

from collections.abc import Iterator, Sequence

from analyzers.report import Evidence, Finding, Severity
from analyzers.traces.answers import RankTrace

HOST_BOUND = 0.2
EXPOSED = {"device": 0.1, "cpu": 0.5}
"""On a CPU the processes take turns on the same cores, so much of the waiting is for a core."""


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


def millis(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.1f} ms"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
