"""What faces draw of traces, as small tables."""

from collections.abc import Iterable

import msgspec
import numpy as np
import pandas as pd

from analyzers import store
from analyzers.report import Report
from analyzers.run import Artefact
from analyzers.traces.intervals import KIND_NAMES
from analyzers.traces.model import RankTrace, Trace, TraceData
from analyzers.traces.report import READER
from analyzers.traces.table import FIRST_NAME, Column
from analyzers.traces.work import works

PARTS = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")


def breakdown(report: Report[TraceData]) -> pd.DataFrame:
    """A row an account: path, rank, device, source, span_ns, and the parts of the span, which add up to it."""
    names = ["path", "rank", "device", "source", "span_ns", *PARTS]
    return table(report.data.ranks, names)


def steps(report: Report[TraceData]) -> pd.DataFrame:
    """A row a step of an account: rank, device, and the fields of `StepTime`."""
    rows = [
        {"rank": account.rank, "device": account.device} | msgspec.to_builtins(step)
        for account in report.data.ranks
        for step in account.step_times
    ]
    return pd.DataFrame(rows)


def kernels(report: Report[TraceData]) -> pd.DataFrame:
    """A row a kernel of an account: rank, device, and the fields of `Kernel`."""
    rows = [
        {"rank": account.rank, "device": account.device} | msgspec.to_builtins(kernel)
        for account in report.data.ranks
        for kernel in account.kernels
    ]
    return pd.DataFrame(rows)


def table(rows: Iterable[RankTrace], names: list[str]) -> pd.DataFrame:
    return pd.DataFrame([[getattr(row, name) for name in names] for row in rows], columns=names)


def spans(
    artefact: Artefact,
    options: store.Options | None = None,
    window: tuple[int, int] | None = None,
    limit: int = 2000,
) -> pd.DataFrame:
    """The events to draw in `window` (ns from the first event; all by default): the `limit` longest, in order of time.

    Columns: lane ("stream 7", "thread 4000"), on_device, name, cat, kind (of work, else ""), start_ns, dur_ns, depth
    (how many drawn events of its lane enclose it).
    """
    trace = Trace(artefact, store.load([artefact.path], READER, options))
    c = trace.columns
    start, end = np.asarray(c["start"]), np.asarray(c["end"])
    origin = int(start.min(initial=np.iinfo(np.int64).max)) if len(start) else 0
    first, last = (origin + edge for edge in window) if window else (origin, int(end.max(initial=origin)) + 1)
    rows = np.flatnonzero((start < last) & (end > first))
    rows = rows[np.argsort(start[rows] - end[rows], kind="stable")[:limit]]
    rows = np.sort(rows[np.lexsort((start[rows] - end[rows], start[rows]))])
    return drawn(trace, rows, origin)


def drawn(trace: Trace, rows: Column, origin: int) -> pd.DataFrame:
    c = trace.columns
    on_device = np.isin(rows, trace.work)
    table = pd.DataFrame(
        {
            "lane": [lane(trace, int(row), device) for row, device in zip(rows, on_device, strict=True)],
            "on_device": on_device,
            "name": [trace.names[i] for i in c["name"][rows]],
            "cat": [trace.names[i] for i in c["cat"][rows]],
            "kind": kinds(trace)[rows],
            "start_ns": c["start"][rows] - origin,
            "dur_ns": c["end"][rows] - c["start"][rows],
        }
    ).sort_values(["start_ns", "dur_ns"], ascending=[True, False], ignore_index=True)
    return table.assign(depth=depths(table))


def kinds(trace: Trace) -> Column:
    """The kind of work of each event, as text; empty for those that are no work."""
    found = np.full(len(trace.columns["start"]), "", object)
    for work in works(trace):
        found[work.rows] = np.array(KIND_NAMES, object)[work.kind]
    return found


def lane(trace: Trace, row: int, on_device: bool) -> str:
    c = trace.columns
    if on_device:
        stream = int(c["stream"][row]) if c["stream"][row] != -1 else int(c["tid"][row])
        return f"stream {written(trace, stream)}"
    tid = int(c["tid"][row])
    name = next((text for pid, thread, text in trace.columns.meta["threads"] if thread == tid and text), "")
    return f"thread {written(trace, tid)} {name}".strip()


def written(trace: Trace, number: int) -> str:
    return str(number) if number > FIRST_NAME else trace.names[FIRST_NAME - number]


def depths(table: pd.DataFrame) -> list[int]:
    """How many earlier events of the same lane are still running when each begins; the table is in order of time."""
    running: dict[str, list[int]] = {}
    found = []
    for name, start, dur in zip(table["lane"], table["start_ns"], table["dur_ns"], strict=True):
        ends = running[name] = [end for end in running.get(name, []) if end > start]
        found.append(len(ends))
        ends.append(start + dur)
    return found
