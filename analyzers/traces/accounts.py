"""Collect all numbers about one device or host in a `RankTrace`: its time by kind, phase, stream and step, and more."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypedDict

import msgspec
import numpy as np

from analyzers.columns import Column, Mask
from analyzers.traces.collectives import RankCollectives, all_to_alls, collective_totals
from analyzers.traces.columns import (
    BACKWARD,
    COMMUNICATION,
    COMPUTE,
    MEMORY,
    OTHER,
    PHASE_NAMES,
    Work,
    names_in_phases,
    spans,
    union_length,
    union_lengths,
)
from analyzers.traces.costs import Attribution, operator_shapes
from analyzers.traces.flops import Formulas, coverage
from analyzers.traces.kernels import compiled_code, kernels, sequences
from analyzers.traces.launches import copies, copy_sizes, graphs, idle, launch_times, stream_queues, synchronisations
from analyzers.traces.model import Breakdown, DeviceCounter, RankTrace, StepTime
from analyzers.traces.opportunities import opportunities
from analyzers.traces.reading.numbering import distinct_values, factorize, sums_by_code
from analyzers.traces.reading.trace import NO_STEP, Problem, ProblemKind, Trace

_KERNELS_AT_MOST = 100
EXCERPT = 0.01
"""If events cover less than this share of the steps, the file is only an excerpt of what was recorded."""
# The fields in which a `RankTrace` divides its whole time, as a `Breakdown` divides the time of a part.
_SHARED_FIELDS = [name for name in Breakdown.__struct_fields__ if name in RankTrace.__struct_fields__]


class Arithmetic(TypedDict):
    """The fields of `RankTrace` on the floating-point operations of a device or host, and on the device's peak rate."""

    flops: int
    recomputed_flops: int
    flops_per_s: float
    peak_flops_per_s: float | None
    peak_arithmetic: str
    flops_coverage: float | None


def answer_account(collectives: RankCollectives, formulas: Formulas) -> RankTrace:
    """Return all numbers about one device or host of a trace.

    The fields `path`, `mfu`, `hfu`, `device_memory` and `problems` stay empty; the caller fills them in.
    """
    work, trace, attribution = collectives.work, collectives.work.trace, Attribution(collectives.work)
    [whole] = breakdowns(work, [""], np.zeros(len(work.rows), np.int64))
    gaps, header = idle(work), trace.header
    return RankTrace(
        path="",
        rank=header.get("rank"),
        device=work.device,
        world_size=header.get("world_size"),
        backend=header.get("backend"),
        source="cpu" if work.device is None else "device",
        device_name=next(iter(header.get("devices", [])), ""),
        steps=len(trace.steps),
        device_events=len(work.rows),
        unlinked_events=int((~work.linked).sum()),
        **{name: getattr(whole, name) for name in _SHARED_FIELDS},
        idle_host_ns=gaps.host,
        idle_dependency_ns=gaps.dependency,
        idle_launch_ns=gaps.launch,
        idle_unexplained_ns=gaps.unexplained,
        blocking_communication_ns=union_length(*collectives.blocking),
        kernels=kernels(attribution)[:_KERNELS_AT_MOST],
        step_times=step_times(work),
        phases=_phase_breakdowns(work),
        streams=_stream_breakdowns(work),
        operators=attribution.operators(formulas),
        modules=attribution.modules(),
        annotations=attribution.annotations(),
        lines=attribution.lines(),
        shapes=operator_shapes(attribution, formulas),
        launched=attribution.launched_kernels(),
        launches=launch_times(work),
        queues=stream_queues(work),
        synchronisations=synchronisations(trace),
        copies=copies(work),
        copy_sizes=copy_sizes(work),
        collectives=collective_totals(collectives),
        exchanges=all_to_alls(collectives),
        graphs=graphs(work),
        compiled=compiled_code(trace),
        sequences=sequences(work),
        counters=msgspec.convert(trace.columns.meta["counters"], list[DeviceCounter]),
        **_arithmetic(attribution, formulas, whole.span_ns),
        python_stacks=bool(trace.category_matches({"python_function"}).any()),
        opportunities=opportunities(collectives, attribution, formulas),
        problems=[],
    )


def _arithmetic(attribution: Attribution, formulas: Formulas, span_ns: int) -> Arithmetic:
    """Return the floating-point operations of a device or host, the operations per second, and the device's peak rate.

    The operations per second are an average over the recorded steps. They are an average over the time of all events
    (`span_ns`) instead if no steps are marked, if the file holds only an excerpt of the steps (see `EXCERPT`), or if
    the events take longer than the steps: steps are marked on the host, which may be far ahead of the device.
    """
    trace = attribution.trace
    # Of several devices each did what launched kernels on it; a single one also did what was launched unseen.
    on_this_device = attribution.inside[1] > 0 if len(distinct_values(trace.devices)) > 1 else None
    operations, recomputed = formulas.total(on_this_device)
    told = coverage(attribution.work, formulas)
    steps_ns = sum(end - start for _, start, end in trace.steps)
    timed = max(steps_ns, span_ns) if span_ns >= EXCERPT * steps_ns else span_ns
    return Arithmetic(
        flops=operations,
        recomputed_flops=recomputed,
        flops_per_s=round(operations / timed * 1e9) if timed else 0,
        peak_flops_per_s=told.peak_flops_per_s,
        peak_arithmetic=str(told.arithmetic),
        flops_coverage=None if told.share is None else round(told.share, 4),
    )


def breakdowns(work: Work, names: Sequence[str], group: Column) -> list[Breakdown]:
    """Return, for each group of events, how its time divides into computing, communication, copies and idle time.

    The time of a group is from the first start to the last end of its events. `group` has, for each event of `work`,
    the index of its group in `names`, or -1 for an event in no group. `names` are the names of the results.
    """
    rows = np.flatnonzero(group >= 0)
    return break_down(work.start[rows], work.end[rows], work.kind[rows], group[rows], names)


def break_down(start: Column, end: Column, kind: Column, group: Column, names: Sequence[str]) -> list[Breakdown]:
    """Return, for each group of events, how the time from its first start to its last end divides among their kinds.

    `kind` has COMPUTE, COMMUNICATION or MEMORY for each event, and `group` the index of its group in `names`.
    """
    count = len(names)

    def unions(mask: Mask) -> list[int]:
        rows = slice(None) if mask.all() else np.flatnonzero(mask)
        return list(union_lengths(start[rows], end[rows], group[rows], count).tolist())

    copies = np.asarray(kind == MEMORY)
    events, work = np.bincount(group, minlength=count).tolist(), sums_by_code(group, end - start, count).tolist()
    span, busy = spans(start, end, group, count).tolist(), unions(np.ones(len(start), bool))
    compute, communication = unions(np.asarray(kind == COMPUTE)), unions(np.asarray(kind == COMMUNICATION))
    memory, kernels = unions(copies), unions(~copies) if copies.any() else busy
    return [
        Breakdown(
            name=name,
            events=events[i],
            work_ns=work[i],
            span_ns=span[i],
            busy_ns=busy[i],
            idle_ns=span[i] - busy[i],
            compute_ns=compute[i],
            communication_ns=communication[i],
            exposed_communication_ns=kernels[i] - compute[i],
            overlapped_communication_ns=compute[i] + communication[i] - kernels[i],
            memory_ns=memory[i],
            exposed_memory_ns=busy[i] - kernels[i],
        )
        for i, name in enumerate(names)
    ]


def _phase_breakdowns(work: Work) -> list[Breakdown]:
    """Return, for each phase such as `forward`, how the time of the events launched in this phase divides.

    Events whose launching call was not recorded are in the phase `no launch`. The phase with most time comes first. The
    list is empty if no phase is known at all.
    """
    phases, group = factorize(work.phase)
    names = [PHASE_NAMES[i] if i >= 0 else "no launch" for i in phases.tolist()]
    return [] if names == [OTHER] else sorted(breakdowns(work, names, group), key=lambda row: -row.busy_ns)


def _stream_breakdowns(work: Work) -> list[Breakdown]:
    lanes, (used, group) = work.trace.columns.meta["lanes"], factorize(work.trace.columns["lane"][work.rows])
    return breakdowns(work, [lanes[i]["name"] for i in used.tolist()], group)


def step_times(work: Work) -> list[StepTime]:
    """Return, for each recorded step, its time on the host, and how the time of the work launched in it divides."""
    steps, base = work.trace.steps, work.trace.base
    parts = breakdowns(work, [f"step {number}" for number, _, _ in steps], work.step())
    return [
        StepTime(step=number, start_ns=start + base, dur_ns=end - start, **msgspec.structs.asdict(times))
        for (number, start, end), times in zip(steps, parts, strict=True)
    ]


def problems(work: Work) -> list[Problem]:
    """Return all problems that limit the meaning of the numbers about a device or host, first those of the file."""
    of_file = msgspec.convert(work.trace.columns.meta["problems"], list[Problem])
    of_account = _device_problems(work) if work.device is not None else [Problem(kind=ProblemKind.NO_DEVICE_EVENTS)]
    return [*of_file, *of_account, *_step_problems(work)]


def _device_problems(work: Work) -> Iterator[Problem]:
    linked, total = work.linked, len(work.rows)
    if unlinked := int((~linked).sum()):
        yield Problem(kind=ProblemKind.NO_LAUNCH, count=unlinked, total=total)
    expected, lost = work.expected_and_lost
    if lost:
        yield Problem(kind=ProblemKind.LOST_KERNELS, count=lost, total=expected)
    early_ns = work.launch_start[linked] - work.start[linked]
    if (early_ns > 0).any():
        count, most = int((early_ns > 0).sum()), int(early_ns.max())
        yield Problem(kind=ProblemKind.EARLY_KERNELS, count=count, most_ns=most)
    if overlapping := overlapping_events(work):
        yield Problem(kind=ProblemKind.OVERLAPPING_EVENTS, count=overlapping)
    repeated = total - len(distinct_values(work.trace.columns["correlation"][work.rows]))
    # Without any launch in the file correlations may be missing altogether, and then all are equal.
    if repeated and linked.any():
        yield Problem(kind=ProblemKind.SHARED_CORRELATION, count=repeated)


def overlapping_events(work: Work) -> int:
    lane = work.trace.columns["lane"][work.rows]
    order = np.lexsort((work.start, lane))
    count = 0
    for stream in distinct_values(lane):
        rows = order[lane[order] == stream]
        latest_end = np.maximum.accumulate(work.end[rows])
        count += int((work.start[rows][1:] < latest_end[:-1]).sum())
    return count


def _step_problems(work: Work) -> Iterator[Problem]:
    trace = work.trace
    if not trace.steps:
        yield Problem(kind=ProblemKind.NO_STEPS)
    elif outside := int((work.step() == NO_STEP).sum()):
        yield Problem(kind=ProblemKind.OUTSIDE_STEPS, count=outside, total=len(work.rows))
    if cut := cut_steps(trace):
        yield Problem(kind=ProblemKind.CUT_STEPS, names=cut)
    if any(start < end for (_, _, end), (_, start, _) in pairwise(trace.steps)):
        yield Problem(kind=ProblemKind.OVERLAPPING_STEPS)
    if count := forward_only_steps(work):
        yield Problem(kind=ProblemKind.FORWARD_ONLY_STEPS, count=count, total=len(trace.steps))


def forward_only_steps(work: Work) -> int:
    """Return how many marked steps with work have no backward pass although others have one; 0 for inference."""
    trace = work.trace
    of_backward = names_in_phases(trace, (BACKWARD, "forward and backward"))[trace.columns["name"]]
    starts = np.sort(trace.columns["start"][of_backward])
    # The last call of profiler.step() may begin a step in which nothing is left to do.
    steps = work.step()
    busy = np.bincount(steps[steps != NO_STEP], minlength=len(trace.steps)) > 0
    bounds = np.array([(begin, end) for _, begin, end in trace.steps], np.int64).reshape(-1, 2)[busy]
    before = np.searchsorted(starts, bounds)
    trains = before[:, 1] > before[:, 0]
    return int(np.count_nonzero(~trains)) if trains.any() else 0


def cut_steps(trace: Trace) -> list[str]:
    rows: Column = trace.columns["unfinished_row"]
    names = {trace.names[i] for i in trace.columns["name"][rows].tolist()}
    return sorted(name for name in names if name.startswith("ProfilerStep"))
