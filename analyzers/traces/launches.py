"""The host's side of a device's work: launch delays, queues, calls that wait, copies, graphs."""

import re

import numpy as np

from analyzers.traces.answers import Call, Copy, Graphs, Launches
from analyzers.traces.distinct import distinct
from analyzers.traces.intervals import MEMORY
from analyzers.traces.model import LAUNCHES, Trace
from analyzers.traces.nesting import NONE
from analyzers.traces.table import Column
from analyzers.traces.work import Work

WAITING = re.compile(r"Synchronize$|^(cuda|hip)(Malloc|Free|HostAlloc|HostMalloc|MemcpyWithStream|Memcpy)\b")
GRAPH_LAUNCH = re.compile(r"GraphLaunch")
BLOCKED = 10


def launch_times(work: Work) -> Launches | None:
    """Statistics over the events whose launch is known; None where there are none."""
    linked = np.flatnonzero(work.linked)
    if work.device is None or not len(linked):
        return None
    delay = np.sort(work.start[linked] - work.launch_end[linked])
    calls = distinct(work.launch[linked])
    lasting = work.trace.columns["end"][calls] - work.trace.columns["start"][calls]
    blocked = lasting[lasting > BLOCKED * max(1.0, float(np.median(lasting)))]
    mean, most = queue(work.launch_start[linked], work.start[linked])
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


def queue(launched: Column, begun: Column) -> tuple[float, int]:
    """How many kernels were launched and had not begun: the mean over time, and the most."""
    late = begun > launched
    launched, begun = launched[late], begun[late]
    if not len(launched):
        return 0.0, 0
    at = np.concatenate([launched, begun])
    change = np.repeat([1, -1], len(launched))
    order = np.lexsort((change, at))
    length = np.cumsum(change[order])
    window = int(at.max() - at.min())
    return round(float((begun - launched).sum()) / window, 3), int(length.max())


def synchronisations(trace: Trace) -> list[Call]:
    """Calls of the runtime in which the host waits for the device, or for memory."""
    return calls(trace, waiting_calls(trace))


def waiting_calls(trace: Trace) -> Column:
    """The rows of these calls."""
    return np.flatnonzero(trace.of_cat(LAUNCHES) & trace.is_named(WAITING))


def calls(trace: Trace, rows: Column) -> list[Call]:
    c = trace.columns
    lasting = c["end"][rows] - c["start"][rows]
    found = []
    for name in distinct(c["name"][rows]):
        same = lasting[c["name"][rows] == name]
        found.append(Call(name=trace.names[name], count=len(same), total_ns=int(same.sum()), max_ns=int(same.max())))
    return sorted(found, key=lambda call: -call.total_ns)


def copies(work: Work) -> list[Copy]:
    """Copies and sets of memory by name; those without a size count no bytes."""
    c = work.trace.columns
    size = dict(zip(c["copy_row"].tolist(), c["copy_bytes"].tolist(), strict=True))
    rows = work.rows[work.kind == MEMORY]
    found = []
    for name in distinct(c["name"][rows]):
        same = rows[c["name"][rows] == name]
        total = int((c["end"][same] - c["start"][same]).sum())
        moved = sum(size.get(row, 0) for row in same.tolist())
        found.append(
            Copy(
                name=work.trace.names[name],
                count=len(same),
                total_ns=total,
                bytes=moved,
                bytes_per_s=round(moved / total * 1e9) if total else 0,
            )
        )
    return sorted(found, key=lambda copy: -copy.total_ns)


def graphs(work: Work) -> Graphs | None:
    """What ran from CUDA graphs: kernels that say so, or whose launch is that of a whole graph."""
    c = work.trace.columns
    whole = work.trace.named(GRAPH_LAUNCH)[c["name"][work.launch]] & work.linked if len(c["name"]) else work.linked
    inside = whole | np.isin(work.rows, c["graph_row"])
    if not inside.any():
        return None
    launched = work.launch[inside & (work.launch != NONE)]
    return Graphs(launches=len(distinct(launched)), kernels=int(inside.sum()), device_ns=int(work.own[inside].sum()))
