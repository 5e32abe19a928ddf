"""What is worth knowing about where the time goes, and what to try next."""

import re
from collections.abc import Iterator, Sequence

from analyzers.report import Evidence, Finding, Severity
from analyzers.traces.structs import CallTotal, CompiledCode, CompiledFrame, RankTrace
from analyzers.words import duration_ns, rank_ranges, share

HOST_BOUND, MEMORY_CALLS, BROKEN = 0.2, 0.01, 0.01
"""Parts of the time."""
FACTS_AT_MOST = 5
DRIVER_MEMORY = re.compile(r"^(cuda|hip)(Malloc|Free)")
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
    if account.compiled and account.compiled.compilations:
        yield compiled_finding(account, account.compiled)
    if account.compiled and account.compiled.breaks:
        yield breaks_finding(account, account.compiled)
    grown = [call for call in account.synchronisations if DRIVER_MEMORY.search(call.name)]
    if sum(call.total_ns for call in grown) > MEMORY_CALLS * account.span_ns:
        yield allocation_finding(account, grown)
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
        f"{share(exposed, span)} of the time only communication runs",
        f"{duration_ns(exposed)} of {duration_ns(account.communication_ns)} of communication run while nothing"
        f" computes; for {duration_ns(account.blocking_communication_ns)} of it something that was ready waited for its"
        " end.",
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
        f"{share(idle, span)} of the time the device waits for the host",
        f"For {duration_ns(idle)} the device had finished all it was given before the next launch came.",
        "Launch fewer and larger kernels (torch.compile, CUDA graphs, a larger batch); look for .item() and other"
        " synchronising calls, and for a slow data loader.",
        severity=Severity.WARNING,
        confidence=0.8,
        facts=busy_host(account),
    )


def busy_host(account: RankTrace) -> list[str]:
    """What the host spends most time on: a call that waits, and an operator without what it calls."""
    calls = [f"{call.name}: {call.count} calls, {duration_ns(call.total_ns)}" for call in account.synchronisations[:1]]
    busiest = sorted(account.operators, key=lambda one: -one.own_ns)[:1]
    return calls + [f"{one.name}: {one.count} calls, {duration_ns(one.own_ns)} of the host" for one in busiest]


def compiled_finding(account: RankTrace, found: CompiledCode) -> Finding:
    costly = sorted((one for one in found.frames if one.compilations), key=lambda one: -one.compile_ns)
    return finding(
        account,
        "trace.compiled_meanwhile",
        f"torch.compile was at work during the recording ({times(found.compilations)})",
        f"{duration_ns(found.compile_ns)} of compiling; {found.recompiled} of {found.regions} regions are of code"
        " that was compiled before for other inputs.",
        "TORCH_LOGS=recompiles says what changed; mark sizes that vary as dynamic, and record only after warm-up.",
        severity=Severity.WARNING,
        confidence=0.9,
        facts=[
            f"{named(one)}: compiled {times(one.compilations)}, {duration_ns(one.compile_ns)},"
            f" version {one.versions} now"
            for one in costly[:FACTS_AT_MOST]
        ],
    )


def breaks_finding(account: RankTrace, found: CompiledCode) -> Finding:
    timed = sum(step.dur_ns for step in account.step_times) or account.span_ns
    matters = found.between_ns > BROKEN * timed
    broken = [one for one in found.frames if one.breaks]
    return finding(
        account,
        "trace.graph_breaks",
        f"Graphs of torch.compile break {times(found.breaks)}, {share(found.between_ns, timed)} of the time",
        f"From leaving a graph to entering the one behind the break the host takes {duration_ns(found.between_ns)}:"
        " guards are checked again, and what lies between is not compiled.",
        "TORCH_LOGS=graph_breaks gives the reason of each, torch.compile(fullgraph=True) makes it an error; printing,"
        " .item() and calls into C are the usual ones.",
        severity=Severity.WARNING if matters else Severity.INFO,
        confidence=0.9,
        facts=[
            f"{one.broken_at or named(one)}: breaks {times(one.breaks)}, {duration_ns(one.between_ns)}"
            for one in broken[:FACTS_AT_MOST]
        ],
    )


def named(frame: CompiledFrame) -> str:
    return frame.function or f"frame {frame.frame}"


def times(count: int) -> str:
    return f"{count} {'time' if count == 1 else 'times'}"


def allocation_finding(account: RankTrace, calls: Sequence[CallTotal]) -> Finding:
    return finding(
        account,
        "trace.driver_allocations",
        f"Memory is asked of the driver {sum(call.count for call in calls)} times during the recording",
        "cudaMalloc and cudaFree wait for the device; the caching allocator needs them only while it grows, or when"
        " memory is short.",
        "Look at the memory snapshot for fragmentation and retries; expandable_segments:True may help.",
        severity=Severity.WARNING,
        confidence=0.7,
        facts=[f"{call.name}: {call.count} calls, {duration_ns(call.total_ns)}" for call in calls],
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
        f"{share(account.unlinked_events, account.device_events)} of the device events have no launch",
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
    account: RankTrace,
    name: str,
    title: str,
    why: str,
    then: str,
    *,
    severity: Severity,
    confidence: float,
    facts: Sequence[str] = (),
) -> Finding:
    where = "" if account.rank is None else f"rank {account.rank}, "
    where += "host" if account.device is None else f"device {account.device}"
    where += f", step {rank_ranges(step.step for step in account.step_times)}" if account.step_times else ""
    numbers = f"{where}: span {duration_ns(account.span_ns)}, busy {duration_ns(account.busy_ns)}"
    return Finding(
        id=name,
        severity=severity,
        title=title,
        why=why,
        next=then,
        ranks=[] if account.rank is None else [account.rank],
        evidence=[Evidence(text=text, source=account.path) for text in (numbers, *facts)],
        confidence=confidence,
    )
