"""Write the findings about the time of one device or host: a slow host, compilation, and flaws of the recording."""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from analyzers.report import Finding, Severity
from analyzers.traces.advice import (
    emptied_sentence,
    largest_wait,
    stack_advice,
    stack_warning,
    wait_advice,
    wait_parts,
)
from analyzers.traces.communication import exposed_finding
from analyzers.traces.evidence import (
    GPU_TRAINING,
    account_finding,
    lacks_kernels,
    less_fragmentation,
    problem_sentence,
    recorded_time,
)
from analyzers.traces.model import CallTotal, CompiledCode, CompiledFrame, OpportunityKind, RankTrace
from analyzers.traces.reading.trace import DAMAGE, Problem, ProblemKind
from analyzers.words import duration_ns, quantity, share, times

# Parts of the time (of the events for `_UNLINKED`) from which on something is a finding, or a warning.
_HOST_BOUND, _DRIVER_CALLS, _GRAPH_BREAKS, _UNLINKED = 0.2, 0.01, 0.01, 0.1
_FACTS_AT_MOST = 5
# Part of the time of the driver's calls from which on that of the frees alone explains them.
_START_UP_SHARE = 0.8
_STANDS_OUT = 5
"""A call that frees memory stands out if it takes at least this many times the mean of the others."""
_MAYBE_START_UP = (
    "If the recording begins with the start of the process, begin it some steps later, after the warm-up. "
)
_SHORT_OF_MEMORY = (
    "Look for torch.cuda.empty_cache() in the training loop and remove it. If there is none, record a memory snapshot"
    " and look for fragmentation and allocation retries. "
)
START_UP = (
    "This is most likely the start of the program, not a usual step: begin the recording after a few warm-up steps, and"
    " look again."
)
_CUT_OFF = (
    "Record again, and let the job finish writing the file before it is stopped. The numbers here hold for the part"
    " that was read."
)
_ODD_ENTRIES = (
    "Nothing to do for a few events: the rest of the file was read. If many were left out, report which version of"
    " PyTorch wrote the file."
)
DRIVER_MEMORY = re.compile(r"^(cuda|hip)(Malloc|Free)")
_LAUNCH_LESS = (
    "Launch fewer and larger kernels (torch.compile, CUDA graphs, a larger batch), remove .item() and other calls that"
    " synchronise, and check the data loader."
)
# Part of the time. On a CPU processes take turns on the same cores, so much of the waiting is for a core.
_EXPOSED = {"device": 0.1, "cpu": 0.5}


def time_findings(account: RankTrace, problems: Sequence[Problem] = ()) -> Iterator[Finding]:
    """Yield the findings about a device or host: where its time goes, and how far the recording can be trusted."""
    if not account.device_events:
        yield _empty_finding(account)
        return
    if account.exposed_communication_ns > _EXPOSED[account.source] * account.span_ns:
        yield exposed_finding(account)
    if _is_host_bound(account):
        yield _host_bound_finding(account)
    if account.compiled and account.compiled.compilations:
        yield _compilation_finding(account, account.compiled)
    if account.compiled and account.compiled.breaks:
        yield _graph_break_finding(account, account.compiled)
    driver_calls = [call for call in account.synchronisations if DRIVER_MEMORY.search(call.name)]
    if sum(call.total_ns for call in driver_calls) > _DRIVER_CALLS * account.span_ns:
        yield _driver_allocation_finding(account, driver_calls)
    yield from _recording_findings(account, problems)


def _recording_findings(account: RankTrace, problems: Sequence[Problem]) -> Iterator[Finding]:
    if lacks_kernels(account):
        yield _lost_kernels_finding(account)
    if account.source == "cpu":
        yield _cpu_finding(account)
    if account.unlinked_events:
        yield _unlinked_finding(account)
    if damage := [problem for problem in problems if problem.kind in DAMAGE]:
        yield _damage_finding(account, damage)


def _is_host_bound(account: RankTrace) -> bool:
    waits = account.source == "device" and account.idle_host_ns > _HOST_BOUND * account.span_ns
    return waits and not lacks_kernels(account)


def _lost_kernels_finding(account: RankTrace) -> Finding:
    expected, lost = (account.launches.expected, account.launches.lost) if account.launches else (0, 0)
    return account_finding(
        account,
        "trace.lost_kernels",
        f"For {share(lost, expected)} of the launches the trace has no kernel",
        f"The kernels of {lost} of {expected} launches are missing: the profiler lost or sampled them. So the idle"
        " times here are too long, and the times of kernels too short.",
        "Record again, with fewer steps or without record_shapes and with_stack, and with no other profiler on the"
        " machine (Nsight Systems, DCGM).",
        severity=Severity.WARNING,
        confidence=0.9,
    )


def _host_bound_finding(account: RankTrace) -> Finding:
    idle, span, wait = account.idle_host_ns, account.span_ns, largest_wait(account)
    return account_finding(
        account,
        "trace.host_bound",
        f"The device waits for the host during {share(idle, span)} of the {recorded_time(account)}",
        "While it waited, the device had finished every kernel that was launched, and the host (the CPU) had not"
        f" launched the next one yet.{emptied_sentence(wait) + stack_warning(account, wait) if wait else ''}",
        f"{stack_advice(account, wait) if wait else ''}{wait_advice(account, START_UP) or _LAUNCH_LESS}",
        severity=Severity.WARNING,
        confidence=0.8,
        facts=[_idle_text(account), *wait_parts(account), *_busiest_on_host(account)],
    )


def _idle_text(account: RankTrace) -> str:
    other = account.idle_ns - account.idle_host_ns
    rest = f", {duration_ns(other)} had other reasons" if other else ""
    return f"of the idle time, {duration_ns(account.idle_host_ns)} were waits for the host's next launch{rest}"


_WORTH_NAMING = 0.01
"""The share of the time in which the device waits for the host from which on a synchronising call is named."""


def _busiest_on_host(account: RankTrace) -> list[str]:
    """Return texts on the longest synchronising call and on the longest operator of the host.

    The time of an operator leaves out the operators that it calls.
    """
    facts = [
        f"the synchronising call with most time on the host: {call.name}, {quantity(call.count, 'call')},"
        f" {duration_ns(call.total_ns)} in total"
        for call in account.synchronisations[:1]
        if call.total_ns >= _WORTH_NAMING * account.idle_host_ns
    ]
    busiest = sorted(account.operators, key=lambda operator: -operator.own_ns)[:1]
    return facts + [
        f"the operator with most time on the host: {operator.name}, {quantity(operator.count, 'call')},"
        f" {duration_ns(operator.own_ns)} in total, summed over all threads"
        for operator in busiest
    ]


def _compilation_finding(account: RankTrace, compiled: CompiledCode) -> Finding:
    frames = sorted((frame for frame in compiled.frames if frame.compilations), key=lambda frame: -frame.compile_ns)
    # A host that is far enough ahead of its device compiles while the device still works.
    waits = account.source == "cpu" or any(one.kind is OpportunityKind.COMPILATION for one in account.opportunities)
    return account_finding(
        account,
        "trace.compiled_meanwhile",
        f"torch.compile compiled code {times(compiled.compilations)} during the recording",
        f"Compiling took {duration_ns(compiled.compile_ns)}."
        + ("" if waits else " The device had work meanwhile: it waited for this less than 2 % of the time.")
        + (
            f" {compiled.recompiled} of {quantity(compiled.regions, 'compiled region')} had been compiled before, for"
            " different inputs."
            if compiled.regions
            else ""
        ),
        "Record some steps later, after the warm-up. If code is still compiled then, set TORCH_LOGS=recompiles to see"
        " which input changed, and mark sizes that vary with torch._dynamo.mark_dynamic.",
        severity=Severity.WARNING if waits else Severity.INFO,
        confidence=0.9,
        facts=[
            f"{frame_name(frame)}: compiled {times(frame.compilations)} in {duration_ns(frame.compile_ns)}, now"
            f" {quantity(frame.versions, 'version')}"
            for frame in frames[:_FACTS_AT_MOST]
        ],
    )


def _graph_break_finding(account: RankTrace, compiled: CompiledCode) -> Finding:
    timed = sum(step.dur_ns for step in account.step_times) or account.span_ns
    costly = compiled.between_ns > _GRAPH_BREAKS * timed
    frames = [frame for frame in compiled.frames if frame.breaks]
    return account_finding(
        account,
        "trace.graph_breaks",
        f"torch.compile could not compile the code as one graph: it was interrupted {times(compiled.breaks)} (graph"
        f" breaks), which takes {share(compiled.between_ns, timed)} of the recorded time",
        "At a graph break the host leaves the compiled code, runs plain Python, and checks whether the next compiled"
        f" part fits its inputs. This took {duration_ns(compiled.between_ns)} of {duration_ns(timed)}.",
        "Set TORCH_LOGS=graph_breaks to see the reason of each break, or torch.compile(fullgraph=True) to make it an"
        " error. Usual reasons are print(), .item() and calls into C extensions: move them out of the compiled code.",
        severity=Severity.WARNING if costly else Severity.INFO,
        confidence=0.9,
        facts=[
            f"{frame.broken_at or frame_name(frame)}: {quantity(frame.breaks, 'graph break')},"
            f" {duration_ns(frame.between_ns)} in total"
            for frame in frames[:_FACTS_AT_MOST]
        ],
    )


def frame_name(frame: CompiledFrame) -> str:
    return frame.function or f"frame {frame.frame}"


def _driver_allocation_finding(account: RankTrace, calls: Sequence[CallTotal]) -> Finding:
    total, count = sum(call.total_ns for call in calls), sum(call.count for call in calls)
    names = " and ".join(call.name for call in calls)
    return account_finding(
        account,
        "trace.driver_allocations",
        f"The allocator called the driver {times(count)} during the recording ({names}), which took"
        f" {duration_ns(total)}",
        "These calls are slow: cudaFree waits until the device has finished its work. PyTorch's caching allocator"
        " calls cudaMalloc when it needs more memory from the driver. It calls cudaFree when memory is short, or when"
        " the program calls torch.cuda.empty_cache(). The start of CUDA shows as one long cudaFree, too.",
        START_UP
        if _is_start_up(calls, total)
        else (_MAYBE_START_UP if any(map(_free_apart, calls)) else "")
        + f"{_SHORT_OF_MEMORY}{less_fragmentation(account)}",
        severity=Severity.WARNING,
        confidence=0.7,
        facts=[_call_text(call) for call in calls],
    )


def _call_text(call: CallTotal) -> str:
    """Return a text on the number and time of the calls of one name.

    If the calls free memory and one of them takes far longer than the others, this one is mentioned separately.
    """
    text = f"{call.name}: {quantity(call.count, 'call')}, {duration_ns(call.total_ns)} in total, the longest"
    if not _free_apart(call):
        return f"{text} {duration_ns(call.max_ns)}"
    rest = f"the other {call.count - 1} took {duration_ns(call.total_ns - call.max_ns)}"
    return f"{text} {duration_ns(call.max_ns)}, which may be the start of CUDA; {rest}"


def _free_apart(call: CallTotal) -> bool:
    others = call.count - 1
    return "Free" in call.name and others > 0 and call.max_ns >= _STANDS_OUT * (call.total_ns - call.max_ns) / others


def _is_start_up(calls: Sequence[CallTotal], total_ns: int) -> bool:
    """Return whether the longest of some calls is the start of CUDA, which happens in a process's first cudaFree(0).

    This is assumed if the call frees memory and takes most of `total_ns`, the time of all the calls.
    """
    longest = max(calls, key=lambda call: call.max_ns)
    return "Free" in longest.name and longest.max_ns > _START_UP_SHARE * total_ns


def _cpu_finding(account: RankTrace) -> Finding:
    backend = f" (process group backend: {account.backend})" if account.backend else ""
    on_cpu = f"operators and collectives{backend} on the CPU: {account.device_events}"
    gpu = f"; GPU that the file names: {account.device_name}" if account.device_name else ""
    return account_finding(
        account,
        "trace.cpu_only",
        "The trace has no GPU work: it records only what ran on the CPU",
        "All times in this report are therefore times of the CPU: operators count as compute, collectives as"
        " communication. If the job used GPUs, it is not known when they were busy or idle.",
        _record_device(account),
        severity=Severity.INFO,
        confidence=1.0,
        facts=[
            f"GPU kernels, copies and memsets: none; {on_cpu}{gpu}",
        ],
        with_times=False,
    )


def _record_device(account: RankTrace) -> str:
    record = (
        "record again with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
        " (ProfilerActivity.XPU on Intel GPUs; AMD GPUs use CUDA too)"
    )
    if account.device_name or GPU_TRAINING.search(account.backend or ""):
        return (
            f"The job uses GPUs: {record}. If you did this already, stop other profilers on the machine (Nsight"
            " Systems, DCGM): only one at a time can record the work of an NVIDIA GPU."
        )
    return f"If the job runs on CPUs only, there is nothing to do. If it uses a GPU, {record}."


def _unlinked_finding(account: RankTrace) -> Finding:
    unlinked, total = account.unlinked_events, account.device_events
    return account_finding(
        account,
        "trace.unlinked",
        f"For {share(unlinked, total)} of the kernels and copies the trace does not show which code launched them",
        f"{unlinked} of {total} were launched before the recording began, or their launches were not recorded. Their"
        " time is counted here, but belongs to no step. Tools that leave them out report less busy time.",
        "Let the profiler warm up for one step before it records: torch.profiler.schedule(warmup=1, ...).",
        severity=Severity.WARNING if unlinked > _UNLINKED * total else Severity.INFO,
        confidence=1.0,
    )


def _damage_finding(account: RankTrace, damage: Sequence[Problem]) -> Finding:
    name, is_cut = PurePath(account.path).name, any(problem.kind is ProblemKind.CUT_OFF for problem in damage)
    return account_finding(
        account,
        "trace.truncated",
        f"The trace file {name} is cut off" if is_cut else f"The trace file {name} has entries that cannot be right",
        " ".join(problem_sentence(problem) for problem in damage),
        _CUT_OFF if is_cut else _ODD_ENTRIES,
        severity=Severity.WARNING,
        confidence=1.0,
        facts=[f"read: {quantity(account.device_events, 'event')} over {duration_ns(account.span_ns)}"],
        with_times=False,
    )


def _empty_finding(account: RankTrace) -> Finding:
    return account_finding(
        account,
        "trace.empty",
        f"The trace file {PurePath(account.path).name} records no work",
        "The file has neither kernels nor operators.",
        "Export the trace in the profiler's on_trace_ready. An export after the loop is too late: by then the profiler"
        " has begun its next cycle, which is empty.",
        severity=Severity.WARNING,
        confidence=1.0,
        with_times=False,
    )
