"""Write the findings about the time of one device or host.

These are exposed communication, a slow host, compilation, and flaws of the recording.
"""

import re
from collections.abc import Iterator, Sequence

from analyzers.report import Evidence, Finding, Severity
from analyzers.traces.findings.opportunities import largest_wait, stack_warning, wait_advice, wait_parts
from analyzers.traces.findings.problems import problem_sentence
from analyzers.traces.model import CallTotal, Collective, CompiledCode, CompiledFrame, RankTrace
from analyzers.traces.reading.problems import DAMAGE, Problem
from analyzers.words import duration_ns, quantity, rank_ranges, share, size, times

# Parts of the time (of the events for `UNLINKED`) from which on something is a finding, or a warning.
HOST_BOUND, DRIVER_CALLS, GRAPH_BREAKS, UNLINKED = 0.2, 0.01, 0.01, 0.1
FACTS_AT_MOST, COLLECTIVES_AT_MOST = 5, 3
# Part of the time of the driver's calls from which on that of the frees alone explains them.
START_UP_SHARE = 0.8
STANDS_OUT = 5
"""A free that takes so many times the mean of the others stands out."""
SHORT_OF_MEMORY = (
    "Record a memory snapshot and look for fragmentation and allocation retries. Set"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if memory is fragmented."
)
START_UP = (
    "This is most likely the start of the program, not a usual step: begin the recording after a few warm-up steps, and"
    " look again."
)
DRIVER_MEMORY = re.compile(r"^(cuda|hip)(Malloc|Free)")
LAUNCH_LESS = (
    "Launch fewer and larger kernels (torch.compile, CUDA graphs, a larger batch), remove .item() and other calls that"
    " synchronise, and check the data loader."
)
HOST_ONLY = " (measured on the host: the trace has no device events)"
# Part of the time. On a CPU processes take turns on the same cores, so much of the waiting is for a core.
EXPOSED = {"device": 0.1, "cpu": 0.5}


def time_findings(account: RankTrace, problems: Sequence[Problem] = ()) -> Iterator[Finding]:
    """Yield the findings about a device or host: where its time goes, and how far its recording can be trusted."""
    if not account.device_events:
        yield empty_finding(account)
        return
    if account.exposed_communication_ns > EXPOSED[account.source] * account.span_ns:
        yield exposed_finding(account)
    if account.source == "device" and account.idle_host_ns > HOST_BOUND * account.span_ns:
        yield host_bound_finding(account)
    if account.compiled and account.compiled.compilations:
        yield compilation_finding(account, account.compiled)
    if account.compiled and account.compiled.breaks:
        yield graph_break_finding(account, account.compiled)
    driver_calls = [call for call in account.synchronisations if DRIVER_MEMORY.search(call.name)]
    if sum(call.total_ns for call in driver_calls) > DRIVER_CALLS * account.span_ns:
        yield driver_allocation_finding(account, driver_calls)
    if account.source == "cpu":
        yield cpu_finding(account)
    if account.unlinked_events:
        yield unlinked_finding(account)
    if damage := [problem for problem in problems if problem.kind in DAMAGE]:
        yield damage_finding(account, damage)


def exposed_finding(account: RankTrace) -> Finding:
    exposed, span = account.exposed_communication_ns, account.span_ns
    blocking = (
        f" During {duration_ns(account.blocking_communication_ns)} of the {duration_ns(exposed)},"
        f" {'the program' if account.source == 'cpu' else 'launched kernels'} waited for the communication to end."
        if account.blocking_communication_ns
        else ""
    )
    return account_finding(
        account,
        "trace.exposed_communication",
        f"Exposed communication takes {share(exposed, span)} of the {recorded_time(account)}",
        f"Of {duration_ns(account.communication_ns)} of communication {duration_ns(exposed)} are exposed: they do not"
        f" overlap with compute.{blocking}",
        "If this report names a rank that comes late to collectives, fix that first. Otherwise look at the longest"
        " collectives: with FSDP2"
        " prefetch the next layer (set_modules_to_forward_prefetch), with DDP use fewer and larger buckets"
        " (bucket_cap_mb).",
        severity=Severity.WARNING,
        confidence=0.9,
        facts=[
            f"communication {duration_ns(account.communication_ns)}, exposed {duration_ns(exposed)}",
            *longest_collectives(account),
        ],
    )


def recorded_time(account: RankTrace) -> str:
    """Return a phrase for the time that a share refers to, such as `recorded time of rank 3`."""
    whose = "" if account.rank is None else f" of rank {account.rank}"
    return f"recorded time{whose}{HOST_ONLY if account.source == 'cpu' else ''}"


def longest_collectives(account: RankTrace) -> list[str]:
    """Return texts on the longest collectives, such as `all_gather of mesh_fsdp, 1.5 MiB each: 12 calls, 81.0 ms`."""
    longest = sorted(account.collectives, key=lambda collective: -collective.total_ns)[:COLLECTIVES_AT_MOST]
    return [
        f"{collective_text(collective)}: {quantity(collective.count, 'call')}, {duration_ns(collective.total_ns)}"
        for collective in longest
    ]


def collective_text(collective: Collective) -> str:
    """Return a text with operation, process group and buffer size of a collective, as far as the trace has them."""
    label = collective.group_desc or collective.group
    each = f", {size(collective.bytes)} each" if collective.bytes else ", of unknown size"
    return f"{collective.name}{f' of {label}' if label else ''}{each}"


def host_bound_finding(account: RankTrace) -> Finding:
    idle, span, wait = account.idle_host_ns, account.span_ns, largest_wait(account)
    stacks = stack_warning(account, wait) if wait else ""
    return account_finding(
        account,
        "trace.host_bound",
        f"The device waits for the host during {share(idle, span)} of the {recorded_time(account)}",
        f"For {duration_ns(idle)} of {duration_ns(span)} the device had finished all launched kernels, and the host had"
        f" not launched the next one yet.{stacks}",
        wait_advice(account, START_UP) or LAUNCH_LESS,
        severity=Severity.WARNING,
        confidence=0.8,
        facts=[
            f"idle for {duration_ns(account.idle_ns)}, {duration_ns(idle)} of it until the host launched a kernel",
            *wait_parts(account),
            *busiest_on_host(account),
        ],
    )


def busiest_on_host(account: RankTrace) -> list[str]:
    """Return texts on where the host spends most time: a call that waits, and an operator (without calls inside it)."""
    facts = [
        f"longest call of the driver on the host: {call.name}, {quantity(call.count, 'call')},"
        f" {duration_ns(call.total_ns)}"
        for call in account.synchronisations[:1]
    ]
    busiest = sorted(account.operators, key=lambda operator: -operator.own_ns)[:1]
    return facts + [
        f"longest operator on the host: {operator.name}, {quantity(operator.count, 'call')},"
        f" {duration_ns(operator.own_ns)} in all threads"
        for operator in busiest
    ]


def compilation_finding(account: RankTrace, compiled: CompiledCode) -> Finding:
    frames = sorted((frame for frame in compiled.frames if frame.compilations), key=lambda frame: -frame.compile_ns)
    return account_finding(
        account,
        "trace.compiled_meanwhile",
        f"torch.compile compiled {times(compiled.compilations)} during the recording",
        f"Compiling took {duration_ns(compiled.compile_ns)}. {compiled.recompiled} of"
        f" {quantity(compiled.regions, 'compiled region')} had been compiled before for different inputs.",
        "Set TORCH_LOGS=recompiles to see which input changed, mark sizes that vary with"
        " torch._dynamo.mark_dynamic, and record after warm-up.",
        severity=Severity.WARNING,
        confidence=0.9,
        facts=[
            f"{frame_name(frame)}: compiled {times(frame.compilations)} in {duration_ns(frame.compile_ns)}, now"
            f" {quantity(frame.versions, 'version')}"
            for frame in frames[:FACTS_AT_MOST]
        ],
    )


def graph_break_finding(account: RankTrace, compiled: CompiledCode) -> Finding:
    timed = sum(step.dur_ns for step in account.step_times) or account.span_ns
    costly = compiled.between_ns > GRAPH_BREAKS * timed
    frames = [frame for frame in compiled.frames if frame.breaks]
    return account_finding(
        account,
        "trace.graph_breaks",
        f"Graphs of torch.compile break {times(compiled.breaks)}, which takes {share(compiled.between_ns, timed)} of"
        " the time",
        f"From leaving a graph to entering the next one the host takes {duration_ns(compiled.between_ns)} in total:"
        " it runs uncompiled code and checks guards again.",
        "Set TORCH_LOGS=graph_breaks to see the reason of each, or torch.compile(fullgraph=True) to make it an error."
        " Usual reasons are print, .item() and calls into C extensions.",
        severity=Severity.WARNING if costly else Severity.INFO,
        confidence=0.9,
        facts=[
            f"{frame.broken_at or frame_name(frame)}: breaks {times(frame.breaks)}, {duration_ns(frame.between_ns)}"
            for frame in frames[:FACTS_AT_MOST]
        ],
    )


def frame_name(frame: CompiledFrame) -> str:
    return frame.function or f"frame {frame.frame}"


def driver_allocation_finding(account: RankTrace, calls: Sequence[CallTotal]) -> Finding:
    total, count = sum(call.total_ns for call in calls), sum(call.count for call in calls)
    names, longest = " and ".join(call.name for call in calls), max(calls, key=lambda call: call.total_ns)
    split = f" ({' + '.join(str(call.count) for call in calls)})" if len(calls) > 1 else ""
    most = f", {duration_ns(longest.total_ns)} of it in {longest.name}" if len(calls) > 1 else ""
    return account_finding(
        account,
        "trace.driver_allocations",
        f"{names} {'was' if len(calls) == 1 else 'were'} called {times(count)}{split} during the recording and took"
        f" {duration_ns(total)}{most}",
        "cudaMalloc and cudaFree go to the driver, and a free waits for the device. The caching allocator calls them"
        " only to grow, or to give cached memory back when memory is short. The start of CUDA in a process shows as one"
        " long free, too.",
        START_UP if is_start_up(calls, total) else SHORT_OF_MEMORY,
        severity=Severity.WARNING,
        confidence=0.7,
        facts=[call_text(call) for call in calls],
    )


def call_text(call: CallTotal) -> str:
    """Return a text on the number and time of the calls of one name; a free far longer than the others is set apart."""
    text = f"{call.name}: {quantity(call.count, 'call')}, {duration_ns(call.total_ns)}, the longest"
    others = call.count - 1
    if "Free" not in call.name or not others or call.max_ns < STANDS_OUT * (call.total_ns - call.max_ns) / others:
        return f"{text} {duration_ns(call.max_ns)}"
    rest = f"the other {others} took {duration_ns(call.total_ns - call.max_ns)}"
    return f"{text} {duration_ns(call.max_ns)}, which may be the start of CUDA; {rest}"


def is_start_up(calls: Sequence[CallTotal], total_ns: int) -> bool:
    """Return whether the longest of some calls frees memory and takes most of `total_ns`, the time of all of them.

    Such a call is the start of CUDA, which happens inside the first cudaFree(0) of a process.
    """
    longest = max(calls, key=lambda call: call.max_ns)
    return "Free" in longest.name and longest.max_ns > START_UP_SHARE * total_ns


def cpu_finding(account: RankTrace) -> Finding:
    return account_finding(
        account,
        "trace.cpu_only",
        "No accelerator work that this tool recognises was recorded",
        "There are no device kernels, so CPU operators count as compute, and the collectives of the host (gloo) as"
        " communication.",
        "If the job uses a GPU, add ProfilerActivity.CUDA to the profiler's activities. For a CPU job there is nothing"
        " to do.",
        severity=Severity.INFO,
        confidence=1.0,
    )


def unlinked_finding(account: RankTrace) -> Finding:
    unlinked, total = account.unlinked_events, account.device_events
    return account_finding(
        account,
        "trace.unlinked",
        f"{share(unlinked, total)} of the device events have no launch in the file",
        f"{unlinked} of {total} events were launched before the recording began, or their launches were not recorded."
        " They are counted here but belong to no step; tools that drop them report less busy time.",
        "Add a warm-up step to the profiler: torch.profiler.schedule(warmup=1, ...).",
        severity=Severity.WARNING if unlinked > UNLINKED * total else Severity.INFO,
        confidence=1.0,
    )


def damage_finding(account: RankTrace, damage: Sequence[Problem]) -> Finding:
    return account_finding(
        account,
        "trace.truncated",
        "The trace file is damaged",
        " ".join(problem_sentence(problem) for problem in damage),
        "Let the job finish writing the file before it is stopped. The numbers hold for the part that was read.",
        severity=Severity.WARNING,
        confidence=1.0,
    )


def empty_finding(account: RankTrace) -> Finding:
    return account_finding(
        account,
        "trace.empty",
        "The trace records no work",
        "It has neither kernels nor operators.",
        "Export the trace in on_trace_ready: after the loop the profiler has already begun its next, empty cycle.",
        severity=Severity.WARNING,
        confidence=1.0,
    )


def account_finding(
    account: RankTrace,
    finding_id: str,
    title: str,
    why: str,
    next_step: str,
    *,
    severity: Severity,
    confidence: float,
    facts: Sequence[str] = (),
) -> Finding:
    """Return a finding about one device or host, with its rank, device, steps and times as the first evidence."""
    where = "" if account.rank is None else f"rank {account.rank}, "
    where += "host" if account.device is None else f"device {account.device}"
    where += f", step {rank_ranges(step.step for step in account.step_times)}" if account.step_times else ""
    numbers = f"{where}: {duration_ns(account.span_ns)} recorded, at work for {duration_ns(account.busy_ns)} of it"
    return Finding(
        id=finding_id,
        severity=severity,
        title=title,
        why=why,
        next=next_step,
        ranks=[] if account.rank is None else [account.rank],
        evidence=[Evidence(text=text, source=account.path) for text in (numbers, *facts)],
        confidence=confidence,
    )
