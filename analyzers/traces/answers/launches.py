"""Describe how the host drives a device: launch delays, queues, calls that wait, copies and CUDA graphs."""

import re
from typing import TypedDict

import numpy as np

from analyzers.columns import Column, Integers
from analyzers.traces.columns.intervals import MEMORY
from analyzers.traces.columns.nesting import NONE
from analyzers.traces.columns.work import Work
from analyzers.traces.model import CallTotal, Copy, CopySize, CudaGraphs, Launches, StreamQueue
from analyzers.traces.reading.distinct import distinct_values
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
    """Return the trace rows of the runtime calls in which the host waits for the device or for memory."""
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
