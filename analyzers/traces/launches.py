"""Describe how the host drives a device: launch delays, queues, calls that wait, copies and CUDA graphs."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.traces.columns import COMMUNICATION, COMPUTE, HOST_PHASES, MEMORY, NONE, Work, merge, phase_intervals
from analyzers.traces.model import CallTotal, Copy, CopySize, CudaGraphs, Launches, StreamQueue
from analyzers.traces.reading.numbering import distinct_values
from analyzers.traces.reading.trace import COPIES, LAUNCHES, Trace

WAITING = re.compile(r"Synchronize$|^(cuda|hip)(Malloc|Free|HostAlloc|HostMalloc|MemcpyWithStream|Memcpy)\b")
_GRAPH_LAUNCH = re.compile(r"GraphLaunch")
# Times the median duration from which on a launching call counts as blocked.
BLOCKED_FACTOR = 10
# Kernels in a queue: CUDA takes about 1024 launches before the next launching call has to wait.
FULL = 1000
_LONG_NS = 20_000
"""The shortest kernel whose end tells whether its launching call waited for it; a call itself takes up to 10 µs."""
_LOST_AT_MOST = 0.1
"""The share of launches whose kernels may be missing in a file before its idle times mean nothing."""


def launch_times(work: Work) -> Launches | None:
    """Return statistics over the launch delays of a device's events; None if no launching call is known.

    The delay is the time from the end of the launching call to the start of the kernel. It is negative if the kernel
    starts before the call ends.
    """
    linked = np.flatnonzero(work.linked)
    if work.device is None or not len(linked):
        return None
    delay = np.sort(work.start[linked] - work.launch_end[linked])
    calls = distinct_values(work.launch[linked])
    duration = work.trace.columns["end"][calls] - work.trace.columns["start"][calls]
    blocked = duration[duration > BLOCKED_FACTOR * max(1.0, float(np.median(duration)))]
    expected, lost = work.expected_and_lost
    long = linked[(work.own[linked] >= _LONG_NS) & (work.kind[linked] != MEMORY)]
    mean, most = _mean_and_most(*_queue_length(work.launch_start[linked], work.start[linked]))
    return Launches(
        count=len(linked),
        early=int((delay < 0).sum()),
        delay_median_ns=int(delay[len(delay) // 2]),
        delay_p95_ns=int(delay[len(delay) * 95 // 100]),
        delay_max_ns=int(delay[-1]),
        queue_mean=mean,
        queue_max=most,
        blocked=len(blocked),
        blocked_ns=int(blocked.sum()),
        expected=expected,
        lost=lost,
        long=len(long),
        outlasting=int((work.launch_end[long] >= work.end[long]).sum()),
    )


def loses_kernels(expected: int, lost: int) -> bool:
    return lost > _LOST_AT_MOST * expected


def _mean_and_most(at: Column, length: Column) -> tuple[float, int]:
    """Return the mean over time and the maximum of the length of a queue.

    `at` has the times (ns) at which the length changes, and `length` the length from each of these times on.
    """
    if not len(at):
        return 0.0, 0
    passed, most = np.diff(at), int(length.max())
    return round(float((passed * length[:-1]).sum()) / int(at[-1] - at[0]), 3), most


def _queue_length(launched: Column, started: Column) -> tuple[Column, Integers]:
    """Return the times (ns) at which the length of a launch queue changes, and the new length at each of these times.

    The length is the number of kernels that are launched but have not started. Example: kernels launched at 0 and 10
    that start at 20 and 30 give the times 0, 10, 20, 30 and the lengths 1, 2, 1, 0.
    """
    late = started > launched
    # Of what happens at once the start counts first, else a queue would look longer than it ever was.
    at = np.concatenate([started[late], launched[late]])
    change = np.repeat(np.array([-1, 1], np.int8), int(late.sum()))
    order = np.argsort(at, kind="stable")
    return at[order], np.cumsum(change[order], dtype=np.int32)


def stream_queues(work: Work) -> list[StreamQueue]:
    """Return statistics on the launch queue of each stream, the stream with the most kernels first.

    The list is empty for a host.
    """
    c, queues = work.trace.columns, []
    lanes = c["lane"][work.rows]
    for lane in np.unique(lanes[work.linked]).tolist() if work.device is not None else []:
        mine = work.linked & (lanes == lane)
        at, length = _queue_length(work.launch_start[mine], work.start[mine])
        mean, most = _mean_and_most(at, length)
        full = int(np.diff(at)[length[:-1] > FULL].sum()) if len(at) else 0
        name = c.meta["lanes"][lane]["name"]
        queues.append(StreamQueue(name=name, count=int(mine.sum()), mean=mean, max=most, full_ns=full))
    return sorted(queues, key=lambda queue: -queue.count)


def synchronisations(trace: Trace) -> list[CallTotal]:
    """Return the number and total time of the runtime calls in which the host waits for the device or for memory.

    There is an item for each name of a call, the most time first.
    """
    return _call_totals(trace, waiting_calls(trace))


def waiting_calls(trace: Trace) -> Column:
    return trace.rows_named(trace.text_matches(WAITING), LAUNCHES)


def _call_totals(trace: Trace, rows: Column) -> list[CallTotal]:
    c = trace.columns
    duration = c["end"][rows] - c["start"][rows]
    totals = []
    for name in distinct_values(c["name"][rows]):
        same = duration[c["name"][rows] == name]
        totals.append(
            CallTotal(name=trace.names[name], count=len(same), total_ns=int(same.sum()), max_ns=int(same.max()))
        )
    return sorted(totals, key=lambda call: -call.total_ns)


def copies(work: Work) -> list[Copy]:
    """Return, for each name of memory copies and memsets, their number, time and bytes, the most time first.

    A size that was not recorded counts as 0.
    """
    rows, size = copy_rows(work)
    totals = [Copy(**_copy_totals(work, same, size)) for same in _grouped_by_name(work, rows)]
    return sorted(totals, key=lambda copy: -copy.total_ns)


def copy_sizes(work: Work) -> list[CopySize]:
    """Return the number, time and bytes of copies by name and range of sizes.

    The sizes are kept apart because small copies reach a lower bandwidth.
    """
    rows, size = copy_rows(work)
    rows = rows[size[rows] > 0]
    # Size classes begin at 1, 16, 256 B, 4 KiB and so on.
    classes = 1 << 4 * (np.floor(np.log2(size[rows])).astype(np.int64) // 4)
    totals = [
        CopySize(at_least=least, **_copy_totals(work, same, size))
        for least in np.unique(classes).tolist()
        for same in _grouped_by_name(work, rows[classes == least])
    ]
    return sorted(totals, key=lambda copy: (copy.name, copy.at_least))


def copy_rows(work: Work) -> tuple[Column, Integers]:
    """Return the trace rows of memory copies, and an array with the copied bytes of every event of the trace.

    The bytes are 0 if the event is no copy, or if its size was not recorded.
    """
    c, mine = work.trace.columns, work.trace.category_matches(COPIES)[work.rows]
    size = np.zeros(len(c["start"]), np.int64)
    size[c["copy_row"]] = c["copy_bytes"]
    rows, launch = work.rows[mine], work.launch[mine]
    # ROCm records the bytes with the launching call alone.
    on_call = (size[rows] == 0) & (launch != NONE)
    size[rows[on_call]] = size[launch[on_call]]
    return rows, size


def _grouped_by_name(work: Work, rows: Column) -> list[Column]:
    names = work.trace.columns["name"][rows]
    return [rows[names == name] for name in np.unique(names)]


class CopyTotals(TypedDict):
    """The fields that `Copy` and `CopySize` share."""

    name: str
    count: int
    total_ns: int
    bytes: int
    bytes_per_s: float


def _copy_totals(work: Work, rows: Column, size: Integers) -> CopyTotals:
    """Return count, time, bytes and bandwidth of copies that have the same name.

    `rows` are their trace rows, `size` has the copied bytes of every event of the trace.
    """
    c = work.trace.columns
    total, moved = int((c["end"][rows] - c["start"][rows]).sum()), int(size[rows].sum())
    return CopyTotals(
        name=work.trace.names[c["name"][rows[0]]],
        count=len(rows),
        total_ns=total,
        bytes=moved,
        bytes_per_s=round(moved / total * 1e9) if total else 0,
    )


def graphs(work: Work) -> CudaGraphs | None:
    """Return how often CUDA graphs were launched, and the number and time of their kernels; None if there were none.

    A kernel belongs to a graph if it has a graph id, or if its launching call launched a whole graph.
    """
    c = work.trace.columns
    whole = (
        work.trace.text_matches(_GRAPH_LAUNCH)[c["name"][work.launch]] & work.linked if len(c["name"]) else work.linked
    )
    inside = whole | np.isin(work.rows, c["graph_row"])
    if not inside.any():
        return None
    launched = work.launch[inside & (work.launch != NONE)]
    return CudaGraphs(
        launches=len(distinct_values(launched)), kernels=int(inside.sum()), device_ns=int(work.own[inside].sum())
    )


# Find out why a device does not compute: gaps between its events, and communication that its work waits for.
#
# Communication is *exposed* while nothing computes at the same time.

Intervals = tuple[Column, Column]
"""(starts, ends) of disjoint intervals in ascending order, in ns."""
# On an idle stream a kernel begins some µs after its launching call returned; a longer delay needs another reason.
# HolisticTraceAnalysis draws the same line at 30.
LATENCY_NS = 30_000


@dataclass(frozen=True)
class Idle:
    """The idle time of a device or host by cause, in ns.

    `host`: the host had not launched the next kernel yet. `dependency`: the next kernel was already launched, but
    waited for other work. `launch`: the usual latency of a launch. `unexplained`: the rest.
    """

    host: int = 0
    dependency: int = 0
    launch: int = 0
    unexplained: int = 0


def idle(work: Work) -> Idle:
    """Return the idle time of a device or host by cause; the cause of a gap follows from the launch of the next kernel.

    Example: nothing runs from 100 to 150 µs. The kernel after the gap was launched by a call that returned at 110 µs:
    10 µs count for the host, 30 µs for launch latency, and the last 10 µs are unexplained. If the call had returned
    before 100 µs, all 50 µs would be a dependency: the kernel had been launched, and waited for something else.
    """
    if not len(work.rows):
        return Idle()
    busy_start, busy_end = merge(work.start, work.end)
    begin, end = busy_end[:-1], busy_start[1:]
    next_event = _event_at(work, end)
    linked = work.linked[next_event]
    launched = np.clip(np.where(linked, work.launch_end[next_event], begin), begin, end)
    queued = linked & (work.launch_end[next_event] <= begin)
    rest = end - launched
    latency = np.where(linked & ~queued, np.minimum(rest, LATENCY_NS), 0)
    return Idle(
        host=int((launched - begin).sum()),
        dependency=int(rest[queued].sum()),
        launch=int(latency.sum()),
        unexplained=int((rest - latency)[~queued].sum()),
    )


def _event_at(work: Work, at: Column) -> Integers:
    """Return, for each time in `at` (ns), the index in `work` of an event that begins at this time.

    If several events begin then, one with a known launch is preferred.
    """
    order = np.lexsort((~work.linked, work.start))
    index: Integers = order[np.searchsorted(work.start[order], at)]
    return index


def exposed(work: Work) -> Intervals:
    """Return the intervals (starts, ends) in which communication runs and nothing computes."""
    return subtract(intervals_of_kind(work, COMMUNICATION), intervals_of_kind(work, COMPUTE))


def intervals_of_kind(work: Work, kind: int) -> Intervals:
    return merge(work.start[work.kind == kind], work.end[work.kind == kind])


def subtract(intervals: Intervals, others: Intervals) -> Intervals:
    return combine(intervals, others, lambda inside, inside_other: inside & ~inside_other)


def intersect(intervals: Intervals, others: Intervals) -> Intervals:
    return combine(intervals, others, lambda inside, inside_other: inside & inside_other)


def combine(intervals: Intervals, others: Intervals, keep: Callable[[Mask, Mask], Mask]) -> Intervals:
    """Cut time at each start and end of the intervals, and return the pieces that the function `keep` selects.

    `keep` gets two masks with an entry per piece: whether the piece is inside `intervals`, and whether it is inside
    `others`. Neighbouring pieces are joined.
    """
    edges = np.concatenate([*intervals, *others])
    order = np.argsort(edges, kind="stable")  # merges the four ascending columns; another sort takes 20 times as long
    moments = edges.take(order)
    begin, end = moments[:-1], moments[1:]
    # Nothing changes between two edges, so the state behind an edge, and all others at its time, speaks for the piece.
    inside, inside_other = (
        np.cumsum(np.repeat(np.array(change, np.int8), [*map(len, (*intervals, *others))]).take(order), dtype=np.int32)[
            :-1
        ]
        > 0
        for change in ((1, -1, 0, 0), (0, 0, 1, -1))
    )
    kept = keep(inside, inside_other)
    return merge(begin[kept], end[kept])


def union(intervals: Intervals, others: Intervals) -> Intervals:
    return merge(np.concatenate([intervals[0], others[0]]), np.concatenate([intervals[1], others[1]]))


def blocking(work: Work) -> Intervals:
    """Return the intervals of exposed communication (without overlapping computing) that delayed other work.

    Communication delays a computing kernel if the kernel was launched before the communication ended, and begins when
    it ends. Communication also delays a host that waits in a synchronising call. If the host itself does the work, all
    exposed communication counts, except during the host's own phases (data loading, garbage collection ...).
    """
    bare = exposed(work)
    if work.device is None:
        return subtract(bare, merge(*phase_intervals(work.trace, HOST_PHASES)))
    rows, c = waiting_calls(work.trace), work.trace.columns
    return union(_kernel_waits(work, bare), intersect(bare, merge(c["start"][rows], c["end"][rows])))


def standing_still(work: Work, blocked: Intervals) -> Intervals:
    """Return the intervals in which a rank does no work because it waits for communication to end.

    They consist of two parts. First, the intervals `blocked` (the result of `blocking`), in which the trace shows the
    waiting. Second, on a device, exposed communication during which the host launched no computing kernel, because the
    host then probably waited, too; the host's own phases, such as data loading, are left out of this part.
    """
    start, end = exposed(work)
    if work.device is None:
        return blocked
    launched = np.sort(work.launch_start[work.linked & (work.kind == COMPUTE)], kind="stable")
    quiet = np.searchsorted(launched, start) == np.searchsorted(launched, end)
    host_phases = merge(*phase_intervals(work.trace, HOST_PHASES))
    return union(blocked, subtract((start[quiet], end[quiet]), host_phases))


def _kernel_waits(work: Work, bare: Intervals) -> Intervals:
    """Return the intervals of exposed communication (`bare`) during which a computing kernel waited for its end.

    The waiting kernel was launched before the communication ended, and began at most 30 µs after the end. Example:
    communication is exposed from 2 to 12 µs. The kernel that begins at 12 µs was launched at 5 µs, so it waited from 5
    to 12 µs.
    """
    start, end = bare
    order = np.lexsort((work.launch_end, work.start))
    order = order[((work.kind == COMPUTE) & work.linked)[order]]
    if not len(order):
        return end[:0], end[:0]
    index = np.searchsorted(work.start[order], end)
    next_kernel = order[np.minimum(index, len(order) - 1)]
    soon = (index < len(order)) & (work.start[next_kernel] - end <= LATENCY_NS)
    ready = np.clip(work.launch_end[next_kernel], start, end)
    return ready[soon], end[soon]
