"""What faces draw of traces, as small tables.

Every moment is in nanoseconds from the first event of its own trace; `axis` says how far to shift each trace so that
all ranks lie on one clock, and `ranks_timeline` and `lateness` are on that common clock already.

| question | answer, a row each |
|---|---|
| `breakdown(report)` | account: the parts of its span, which add up to it |
| `steps(report)`, `kernels(report)` | step, kernel of an account |
| `timeline(artefact, window=, width=)` | span of one rank, those narrower than a column joined: nothing vanishes |
| `ranks_timeline(artefacts, window=, bins=, rows=)` | rank (alike ones folded) and bin: how the bin's time divides |
| `lateness(artefacts, limit=)` | rank and collective: how late it came, how long it waited |
| `clock(artefact)` | moment of one rank: the step it lies in |
| `axis(artefacts)` | rank: where its trace begins on the common clock |
| `tree(artefact, by=)` | node of the tree of operators, modules or Python functions |
| `critical_path(artefact, step=)` | piece of the chain of work and waiting that the time consists of |
| `callers(artefact, row)` | event and what encloses it |
| `lanes(artefact)`, `names(artefact)` | stream or thread, name of events |
| `phases(artefact, rows)` | event: the phase of the step that it belongs to |
| `spans(artefact, window=, limit=)` | event, the longest ones |
| `memory(artefact, window=, width=)` | device and stretch of time: most bytes allocated and reserved |
"""

from collections.abc import Iterable

import msgspec
import numpy as np
import pandas as pd

from analyzers import store
from analyzers.columns import Column
from analyzers.report import Report
from analyzers.run import Artefact
from analyzers.traces.across.common_clock import PARTS, Window, axis, lateness, ranks_timeline
from analyzers.traces.answers.call_tree import tree as tree_of
from analyzers.traces.answers.device_allocator import allocators
from analyzers.traces.columns.intervals import KIND_NAMES
from analyzers.traces.columns.nesting import NONE
from analyzers.traces.columns.phases import OTHER
from analyzers.traces.columns.phases import PHASE_NAMES as PHASES
from analyzers.traces.columns.work import launching_rows
from analyzers.traces.critical.path import critical_path as critical_path_of
from analyzers.traces.loading import open_trace
from analyzers.traces.model import DEVICE_LANE, Trace
from analyzers.traces.report import TraceData
from analyzers.traces.structs import RankTrace

__all__ = [
    "PARTS", "PHASES", "axis", "breakdown", "callers", "clock", "critical_path", "kernels", "lanes",
    "lateness", "memory", "names", "phases", "ranks_timeline", "spans", "steps", "timeline", "tree",
]  # fmt: skip
SPANS_AT_MOST = 5000
BLOCK_COLUMNS = ("lane", "on_device", "depth", "name", "kind", "start_ns", "dur_ns", "busy_ns", "count", "row")


def breakdown(report: Report[TraceData]) -> pd.DataFrame:
    """A row an account: path, rank, device, source, span_ns, and the parts of the span, which add up to it."""
    names = ["path", "rank", "device", "source", "span_ns", *PARTS]
    return table(report.data.ranks, names)


def steps(report: Report[TraceData]) -> pd.DataFrame:
    """A row a step of an account: rank, device, and the fields of `StepTime`."""
    return of_accounts(report, "step_times")


def clock(artefact: Artefact, options: store.Options | None = None, logged: pd.DataFrame | None = None) -> pd.DataFrame:
    """Columns: at_ns, step (6.25: a quarter of the time of step 6 has gone); both ascend.

    By the profiler's own marks, else by the wall clock of `logged` (step, start_ns, end_ns); empty where neither tells.
    """
    trace = open_trace(artefact.path, options)
    begin = trace.origin if trace.steps or logged is None else trace.origin + int(trace.header.get("base_ns", 0))
    marks = trace.steps or ([] if logged is None else logged[["step", "start_ns", "end_ns"]].to_numpy().tolist())
    last = int(np.max(trace.columns["end"], initial=trace.origin)) - trace.origin
    edges = [(number, start - begin, end - begin) for number, start, end in marks]
    points = [p for step, start, end in edges if end > 0 and start < last for p in ((start, step), (end, step + 1))]
    return pd.DataFrame(points, columns=["at_ns", "step"])


def kernels(report: Report[TraceData]) -> pd.DataFrame:
    """A row a kernel of an account: rank, device, and the fields of `Kernel`."""
    return of_accounts(report, "kernels")


def of_accounts(report: Report[TraceData], name: str) -> pd.DataFrame:
    """What a list of each account holds, behind the account's rank and device."""
    rows = [
        {"rank": account.rank, "device": account.device} | msgspec.to_builtins(one)
        for account in report.data.ranks
        for one in getattr(account, name)
    ]
    return pd.DataFrame(rows)


def table(rows: Iterable[RankTrace], names: list[str]) -> pd.DataFrame:
    return pd.DataFrame([[getattr(row, name) for name in names] for row in rows], columns=names)


def spans(
    artefact: Artefact, options: store.Options | None = None, window: Window | None = None, limit: int = 2000
) -> pd.DataFrame:
    """The events to draw in `window` (all by default): the `limit` longest, in order of time.

    Columns: lane ("stream 7", "thread 4000"), on_device, name, cat, kind (of work, else ""), start_ns, dur_ns, depth
    (how many events of its lane enclose it).
    """
    trace = open_trace(artefact.path, options)
    rows = within(trace, window)
    c = trace.columns
    rows = rows[np.argsort(c["start"][rows] - c["end"][rows], kind="stable")[:limit]]
    rows = rows[np.lexsort((-c["end"][rows], c["start"][rows]))]
    lanes = trace.columns.meta["lanes"]
    return pd.DataFrame(
        {
            "lane": [lanes[i]["name"] for i in c["lane"][rows].tolist()],
            "on_device": [lanes[i]["kind"] == DEVICE_LANE for i in c["lane"][rows].tolist()],
            "name": [trace.names[i] for i in c["name"][rows].tolist()],
            "cat": [trace.names[i] for i in c["cat"][rows].tolist()],
            "kind": [kind_name(i) for i in c["kind"][rows].tolist()],
            "start_ns": c["start"][rows] - trace.origin,
            "dur_ns": c["end"][rows] - c["start"][rows],
            "depth": c["depth"][rows],
        }
    )


def kind_name(number: int) -> str:
    return KIND_NAMES[number] if number >= 0 else ""


def within(trace: Trace, window: Window | None) -> Column:
    """The rows of the events that touch the window."""
    start, end = np.asarray(trace.columns["start"]), np.asarray(trace.columns["end"])
    if window is None:
        return np.arange(len(start))
    first, last = (trace.origin + edge for edge in window)
    return np.flatnonzero((start < last) & (end > first))


def timeline(
    artefact: Artefact, options: store.Options | None = None, window: Window | None = None, width: int = 400
) -> pd.DataFrame:
    """One rank in a window (all by default) of `width` columns, ready to draw: lanes with nested spans.

    Events that are narrower than a column are joined with their neighbours of the same lane and depth, so that nothing
    vanishes and no more than `SPANS_AT_MOST` rows come back. Columns: lane, on_device, depth, name (of the longest
    event), kind (of most of the time: compute, communication, memory, or ""), start_ns, dur_ns (both of the whole
    block), busy_ns (the sum of its events), count (1: a single event) and row (of the longest event in the trace). In
    order of lane, depth and time.
    """
    trace = open_trace(artefact.path, options)
    c, rows = trace.columns, within(trace, window)
    if not len(rows):
        return pd.DataFrame(columns=[*BLOCK_COLUMNS])
    begin, end = window or (0, int(c["end"][rows].max()) - trace.origin)
    rows = rows[np.lexsort((c["start"][rows], c["depth"][rows], c["lane"][rows]))]
    first = blocks(trace, rows, max(1, (end - begin) // width))
    return joined(trace, rows, first)


def blocks(trace: Trace, rows: Column, column_ns: int) -> Column:
    """Where each block begins among the rows, which are sorted by lane, depth and time."""
    c = trace.columns
    start, end, row_of = c["start"][rows], c["end"][rows], c["lane"][rows].astype(np.int64) << 32 | c["depth"][rows]
    wide = end - start >= column_ns
    begins = np.ones(len(rows), bool)
    begins[1:] = (np.diff(row_of) != 0) | wide[1:] | wide[:-1] | (start[1:] - end[:-1] >= column_ns)
    return np.flatnonzero(begins)


def joined(trace: Trace, rows: Column, first: Column) -> pd.DataFrame:
    c = trace.columns
    start, end, kind = c["start"][rows], c["end"][rows], c["kind"][rows]
    length = end - start
    of_kind = np.array([np.add.reduceat(np.where(kind == one, length, 0), first) for one in range(-1, len(KIND_NAMES))])
    order = np.lexsort((length, np.repeat(np.arange(len(first)), np.diff(np.append(first, len(rows))))))
    longest = rows[order[np.append(first[1:], len(rows)) - 1]]
    lanes = trace.columns.meta["lanes"]
    lane = c["lane"][rows[first]].tolist()
    found = pd.DataFrame(
        {
            "lane": [lanes[i]["name"] for i in lane],
            "on_device": [lanes[i]["kind"] == DEVICE_LANE for i in lane],
            "depth": c["depth"][rows[first]],
            "name": [trace.names[i] for i in c["name"][longest].tolist()],
            "kind": [kind_name(i - 1) for i in of_kind.argmax(axis=0).tolist()],
            "start_ns": start[first] - trace.origin,
            "dur_ns": np.maximum.reduceat(end, first) - start[first],
            "busy_ns": np.add.reduceat(length, first),
            "count": np.diff(np.append(first, len(rows))),
            "row": longest,
        }
    )
    return found.loc[sorted(found["busy_ns"].nlargest(SPANS_AT_MOST).index)].reset_index(drop=True)


def memory(
    artefact: Artefact, options: store.Options | None = None, window: Window | None = None, width: int = 400
) -> pd.DataFrame:
    """What devices held in a window (all by default), in `width` equal stretches of it.

    Columns: where ("cpu", "cuda 0"; hosts first), at_ns (the beginning of the stretch), allocated and reserved (bytes,
    the most in it). Empty where the trace has no allocations.
    """
    trace = open_trace(artefact.path, options)
    at = trace.columns["memory_at"] - trace.origin
    last = int(np.max(trace.columns["end"], initial=trace.origin)) - trace.origin
    begin, end = window or (int(at.min(initial=0)), max(last, int(at.max(initial=0)) + 1))
    edges = begin + (end - begin) * np.arange(width + 1, dtype=np.int64) // width
    found = [pd.DataFrame(columns=["where", "at_ns", "allocated", "reserved"])]
    for one in allocators(trace):
        allocated, reserved = one.highest(edges + trace.origin)
        told = {"at_ns": edges[:-1], "allocated": allocated, "reserved": reserved}
        found.append(pd.DataFrame({"where": one.name, **told}))
    return pd.concat(found[1:] or found, ignore_index=True)


def names(artefact: Artefact, options: store.Options | None = None) -> list[str]:
    """The names of all events, each once."""
    return list(open_trace(artefact.path, options).names)


def lanes(artefact: Artefact, options: store.Options | None = None) -> list[str]:
    """The names of all streams and threads, each once."""
    return list(dict.fromkeys(lane["name"] for lane in open_trace(artefact.path, options).columns.meta["lanes"]))


def phases(artefact: Artefact, rows: Column, options: store.Options | None = None) -> list[str]:
    """The phase of the step that each event belongs to, of work on a device that of its launch; `other` if none."""
    trace = open_trace(artefact.path, options)
    on_device = np.isin(rows, trace.work)
    caller = np.where(on_device, launching_rows(trace, trace.columns["correlation"][rows]), rows)
    return [PHASES[trace.columns["phase"][row]] if row >= 0 else OTHER for row in caller.tolist()]


def callers(artefact: Artefact, row: int, options: store.Options | None = None) -> list[str]:
    """An event (a `row` of `timeline`) and what encloses it, innermost first; of device work what encloses its launch.

    Empty where there is no such event.
    """
    trace = open_trace(artefact.path, options)
    c, found = trace.columns, list[str]()
    at = row if 0 <= row < len(c["name"]) else NONE
    while at != NONE:
        found.append(trace.names[c["name"][at]])
        launched = launching_rows(trace, c["correlation"][[at]])[0] if at in trace.work else NONE
        at = int(launched if launched != NONE else c["parent"][at])
    return found


def critical_path(
    artefact: Artefact, options: store.Options | None = None, step: int | None = None, account: int = 0
) -> pd.DataFrame:
    """The critical path of a device (or host) through a step, the whole recording by default; see `critical`.

    `critical.if_faster` bounds what a faster kernel would save.
    """
    trace = open_trace(artefact.path, options)
    marks = {number: (start - trace.origin, end - trace.origin) for number, start, end in trace.steps}
    return critical_path_of(trace, account, marks.get(step) if step is not None else None)


def tree(artefact: Artefact, options: store.Options | None = None, by: str = "operator") -> pd.DataFrame:
    """The calls of a trace as a tree; `by` is "operator", "module" or "function". The columns are `tree.COLUMNS`."""
    return tree_of(open_trace(artefact.path, options), by)
