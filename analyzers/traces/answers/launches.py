"""The host's side of a device's work: launch delays, queues, calls that wait, copies, graphs."""

import re
from typing import Any

import numpy as np

from analyzers.columns import Column
from analyzers.traces.columns.intervals import MEMORY
from analyzers.traces.columns.nesting import NONE
from analyzers.traces.columns.work import Work
from analyzers.traces.model import LAUNCHES, Trace
from analyzers.traces.reading.distinct import distinct_values
from analyzers.traces.structs import CallTotal, Copy, CopySize, CudaGraphs, Launches, StreamQueue

WAITING = re.compile(r"Synchronize$|^(cuda|hip)(Malloc|Free|HostAlloc|HostMalloc|MemcpyWithStream|Memcpy)\b")
GRAPH_LAUNCH = re.compile(r"GraphLaunch")
BLOCKED = 10
FULL = 1000
"""Kernels in a queue; a driver takes about so many before its launching calls wait."""


def launch_times(work: Work) -> Launches | None:
    """Statistics over the events whose launch is known; None where there are none."""
    linked = np.flatnonzero(work.linked)
    if work.device is None or not len(linked):
        return None
    delay = np.sort(work.start[linked] - work.launch_end[linked])
    calls = distinct_values(work.launch[linked])
    lasting = work.trace.columns["end"][calls] - work.trace.columns["start"][calls]
    blocked = lasting[lasting > BLOCKED * max(1.0, float(np.median(lasting)))]
    mean, most = queue(*queue_length(work.launch_start[linked], work.start[linked]))
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
    )


def queue(at: Column, length: Column) -> tuple[float, int]:
    """How many kernels were launched and had not begun, by `queue_length`: the mean over time, and the most."""
    if not len(at):
        return 0.0, 0
    passed, most = np.diff(at), int(length.max())
    return round(float((passed * length[:-1]).sum()) / int(at[-1] - at[0]), 3), most


def queue_length(launched: Column, begun: Column) -> tuple[Column, Column]:
    """(moment, length of the queue from then on) at each of its changes."""
    late = begun > launched
    at = np.concatenate([begun[late], launched[late]])  # of what happens at once the beginning counts first
    change = np.repeat(np.array([-1, 1], np.int8), int(late.sum()))
    order = np.argsort(at, kind="stable")
    return at[order], np.cumsum(change[order], dtype=np.int32)


def queues(work: Work) -> list[StreamQueue]:
    """The queue of each stream, those with most kernels first."""
    c, found = work.trace.columns, []
    lanes = c["lane"][work.rows]
    for lane in np.unique(lanes[work.linked]).tolist() if work.device is not None else []:
        mine = work.linked & (lanes == lane)
        at, length = queue_length(work.launch_start[mine], work.start[mine])
        mean, most = queue(at, length)
        full = int(np.diff(at)[length[:-1] > FULL].sum()) if len(at) else 0
        name = c.meta["lanes"][lane]["name"]
        found.append(StreamQueue(name=name, count=int(mine.sum()), mean=mean, max=most, full_ns=full))
    return sorted(found, key=lambda one: -one.count)


def synchronisations(trace: Trace) -> list[CallTotal]:
    """Calls of the runtime in which the host waits for the device, or for memory."""
    return calls(trace, waiting_calls(trace))


def waiting_calls(trace: Trace) -> Column:
    """The rows of these calls."""
    return np.flatnonzero(trace.category_matches(LAUNCHES) & trace.name_matches(WAITING))


def calls(trace: Trace, rows: Column) -> list[CallTotal]:
    c = trace.columns
    lasting = c["end"][rows] - c["start"][rows]
    found = []
    for name in distinct_values(c["name"][rows]):
        same = lasting[c["name"][rows] == name]
        found.append(
            CallTotal(name=trace.names[name], count=len(same), total_ns=int(same.sum()), max_ns=int(same.max()))
        )
    return sorted(found, key=lambda call: -call.total_ns)


def copies(work: Work) -> list[Copy]:
    """Copies and sets of memory by name; those without a size count no bytes."""
    rows, size = moving(work)
    found = [Copy(**copied(work, same, size)) for same in by_name(work, rows)]
    return sorted(found, key=lambda copy: -copy.total_ns)


def copy_sizes(work: Work) -> list[CopySize]:
    """The same, told apart by how much is moved at once: small ones do not reach the bandwidth of large ones."""
    rows, size = moving(work)
    rows = rows[size[rows] > 0]
    # Classes begin at 1, 16, 256 B, 4 KiB and so on.
    classes = 1 << 4 * (np.floor(np.log2(size[rows])).astype(np.int64) // 4)
    found = [
        CopySize(at_least=least, **copied(work, same, size))
        for least in np.unique(classes).tolist()
        for same in by_name(work, rows[classes == least])
    ]
    return sorted(found, key=lambda one: (one.name, one.at_least))


def moving(work: Work) -> tuple[Column, Column]:
    """(rows of the copies, bytes of every event of the trace, 0 where none are told)."""
    c, mine = work.trace.columns, work.kind == MEMORY
    size = np.zeros(len(c["start"]), np.int64)
    size[c["copy_row"]] = c["copy_bytes"]
    rows, launch = work.rows[mine], work.launch[mine]
    silent = (size[rows] == 0) & (launch != NONE)
    size[rows[silent]] = size[launch[silent]]  # ROCm notes them with the call alone
    return rows, size


def by_name(work: Work, rows: Column) -> list[Column]:
    names = work.trace.columns["name"][rows]
    return [rows[names == name] for name in np.unique(names)]


def copied(work: Work, rows: Column, size: Column) -> dict[str, Any]:
    """What is told of copies of one name."""
    c = work.trace.columns
    total, moved = int((c["end"][rows] - c["start"][rows]).sum()), int(size[rows].sum())
    return {
        "name": work.trace.names[c["name"][rows[0]]],
        "count": len(rows),
        "total_ns": total,
        "bytes": moved,
        "bytes_per_s": round(moved / total * 1e9) if total else 0,
    }


def graphs(work: Work) -> CudaGraphs | None:
    """What ran from CUDA graphs: kernels that say so, or whose launch is that of a whole graph."""
    c = work.trace.columns
    whole = (
        work.trace.text_matches(GRAPH_LAUNCH)[c["name"][work.launch]] & work.linked if len(c["name"]) else work.linked
    )
    inside = whole | np.isin(work.rows, c["graph_row"])
    if not inside.any():
        return None
    launched = work.launch[inside & (work.launch != NONE)]
    return CudaGraphs(
        launches=len(distinct_values(launched)), kernels=int(inside.sum()), device_ns=int(work.own[inside].sum())
    )
