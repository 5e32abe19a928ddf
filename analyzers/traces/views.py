"""Make small tables about traces for the user interfaces.

Times are in nanoseconds from the first event of their own trace. `axis` returns by how much to shift each trace so that
all ranks are on one clock; `ranks_timeline` and `lateness` already use this common clock. A `window` is (start, end).

| function | one row of its table |
|---|---|
| `breakdown(report)` | device or host: the parts of its time, which add up to it |
| `steps(report)`, `kernels(report)` | step of a device or host; kernel of a device or host |
| `timeline(artefact, window=, width=)` | event of one rank, or several narrow neighbours joined into one |
| `ranks_timeline(artefacts, window=, bins=, rows=)` | rank (similar ranks share a row) and bin: how its time divides |
| `lateness(artefacts, limit=)` | rank and collective: how late the rank arrived, how long it waited |
| `clock(artefact)` | time in one trace: the step at that time |
| `axis(artefacts)` | rank: where its trace begins on the common clock |
| `tree(artefact, by=)` | node of the call tree of operators, modules or Python functions |
| `critical_path(artefact, step=)` | piece of the chain of work and waiting that determines the duration of a step |
| `callers(artefact, row)` | event, then the events around it |
| `lanes(artefact)`, `names(artefact)` | stream or thread; name of events |
| `phases(artefact, rows)` | event: its phase of the step |
| `spans(artefact, window=, limit=)` | event, only the longest |
| `memory(artefact, window=, width=)` | device and interval of time: the most bytes allocated and reserved |
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import pandas as pd

from analyzers import store
from analyzers.columns import Column, Floats, Integers, Mask
from analyzers.report import Report
from analyzers.run import Artefact
from analyzers.traces.allocations import allocators
from analyzers.traces.columns import (
    KIND_NAMES,
    NONE,
    OTHER,
    inclusive_sums,
    innermost_selected,
    launching_rows,
    self_times,
)
from analyzers.traces.columns import PHASE_NAMES as PHASES
from analyzers.traces.common_clock import PARTS, Window, axis, lateness, ranks_timeline
from analyzers.traces.costs import MODULE, is_user_function
from analyzers.traces.critical_path import critical_path as critical_path_of
from analyzers.traces.loading import open_trace
from analyzers.traces.model import RankTrace
from analyzers.traces.reading.numbering import sums_by_code
from analyzers.traces.reading.trace import DEVICE_LANE, OPS, Trace
from analyzers.traces.report import TraceData
from analyzers.words import rank_ranges

COLUMNS = ("node", "parent", "depth", "name", "count", "host_ns", "own_ns", "device_ns", "kernels")


def _call_tree(trace: Trace, by: str) -> pd.DataFrame:
    """Return the call tree as a table with a row per node and the columns of COLUMNS; a parent precedes its children.

    `by` is the kind of the nodes: "operator", "module", "function" or "user_function" (functions outside libraries).
    `parent` is the `node` of the parent, -1 at a root; `count` is the number of calls. `device_ns` and `kernels` are
    the time and number of kernels launched inside the node, `host_ns` is its host time, and `own_ns` the part of it
    outside its children.

    Example: linear calls mm twice, and mm is also called alone. That makes three nodes: linear, linear > mm with a
    count of 2, and mm with a count of 1.
    """
    c, selected = trace.columns, _is_node(trace, by)
    rows = np.flatnonzero(selected)
    if not len(rows):
        return pd.DataFrame(columns=COLUMNS)
    inner = innermost_selected(selected, c["parent"])
    above = np.where(selected & (c["parent"] >= 0), inner[c["parent"]], NONE)
    node, parents, names = nodes(trace, rows, above)
    calls, duration = _launched_work(trace)
    spent, count = (inclusive_sums(calls, values, c["parent"]) for values in (duration, np.ones_like(duration)))
    own = self_times(above, c["start"], c["end"])
    sums = {
        name: sums_by_code(node[rows], values[rows], len(names))
        for name, values in (
            ("host_ns", c["end"] - c["start"]),
            ("own_ns", own),
            ("device_ns", spent),
            ("kernels", count),
        )
    }
    return pd.DataFrame(
        {
            "node": np.arange(len(names)),
            "parent": parents,
            "depth": _depths_of(parents),
            "name": [trace.names[i] for i in names],
            "count": np.bincount(node[rows], minlength=len(names)),
            **sums,
        }
    )[list(COLUMNS)]


def _is_node(trace: Trace, by: str) -> Mask:
    """Return, for each event of the trace, whether it is a node of the call tree of kind `by`."""
    functions = trace.category_matches({"python_function"})
    if by == "operator":
        return trace.category_matches(OPS)
    if by == "user_function":
        users: Mask = np.array([*map(is_user_function, trace.names)], bool)[trace.columns["name"]]
        return functions & users
    return functions & trace.name_matches(MODULE) if by == "module" else functions


def nodes(trace: Trace, rows: Integers, above: Column) -> tuple[Integers, list[int], list[int]]:
    """Return the tree node of each event of the trace, and the parent and the name of each node.

    Events outside of the tree have the node NONE. Names are indices into `trace.names`. `rows` are the trace rows of
    the events in the tree; `above` has, for each event of the trace, the row of the innermost event of the tree that
    encloses it, or NONE.
    """
    node, name = np.full(len(above), NONE), trace.columns["name"]
    known: dict[tuple[int, int], int] = {}
    # By depth, so that the node around an event is known before the event.
    order = rows[np.argsort(trace.columns["depth"][rows], kind="stable")]
    for row in order.tolist():
        outer = int(node[above[row]]) if above[row] >= 0 else NONE
        node[row] = known.setdefault((outer, int(name[row])), len(known))
    return node, [outer for outer, _ in known], [own for _, own in known]


def _depths_of(parents: list[int]) -> list[int]:
    """Return the number of ancestors of each node; a parent must precede its children."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths


def _launched_work(trace: Trace) -> tuple[Integers, Column]:
    c = trace.columns
    rows = np.flatnonzero((c["launch"] >= 0) & (c["launch"] != np.arange(len(c["launch"]))))
    return c["launch"][rows], c["end"][rows] - c["start"][rows]


__all__ = [
    "PARTS", "PHASES", "axis", "breakdown", "callers", "clock", "critical_path", "kernels", "lanes",
    "lateness", "memory", "names", "phases", "ranks_timeline", "spans", "steps", "timeline", "tree",
]  # fmt: skip
_SPANS_AT_MOST = 5000
"""The most rows of a timeline; more could not be told apart on a screen, and a browser would draw them slowly."""
_MEMORY_COLUMNS = ("where", "at_ns", "allocated", "reserved")
_BLOCK_TYPES = {"lane": object, "on_device": bool, "name": object, "kind": object}
"""{column of a timeline: its type}, for the columns that do not hold integers."""
_BLOCK_COLUMNS = ("lane", "on_device", "depth", "name", "kind", "start_ns", "dur_ns", "busy_ns", "count", "row")


def breakdown(report: Report[TraceData]) -> pd.DataFrame:
    """Return a table with a row per device or host: path, rank, device, source, span_ns and the parts of its time.

    The parts (compute_ns, exposed_communication_ns, exposed_memory_ns, idle_ns) add up to span_ns, the duration of
    the recording. Exposed communication overlaps with no computing, exposed memory copies with no kernel.
    """
    names = ["path", "rank", "device", "source", "span_ns", *PARTS]
    return table(report.data.ranks, names)


def steps(report: Report[TraceData]) -> pd.DataFrame:
    """Return a table with a row per recorded step of each device or host: rank, device and the fields of `StepTime`."""
    return _of_accounts(report, "step_times")


def clock(artefact: Artefact, options: store.Options | None = None, logged: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return a table of points (at_ns, step) that converts times to steps by linear interpolation; both columns ascend.

    Step 6.25 means that a quarter of the time of step 6 has passed. `at_ns` is in ns from the first event. The steps
    are those that the profiler marked, else those of `logged` (columns step, start_ns and end_ns in Unix time); the
    table is empty if neither has steps.
    """
    trace = open_trace(artefact.path, options)
    begin = trace.origin if trace.steps or logged is None else trace.origin + trace.base
    marks = trace.steps or ([] if logged is None else logged[["step", "start_ns", "end_ns"]].to_numpy().tolist())
    last = int(np.max(trace.columns["end"], initial=trace.origin)) - trace.origin
    edges = [(number, start - begin, end - begin) for number, start, end in marks]
    points = [p for step, start, end in edges if end > 0 and start < last for p in ((start, step), (end, step + 1))]
    return pd.DataFrame(points, columns=["at_ns", "step"])


def kernels(report: Report[TraceData]) -> pd.DataFrame:
    """Return a table with a row per kernel name of each device: rank, device, and the fields of `Kernel`.

    For a host without devices there is a row per operator.
    """
    return _of_accounts(report, "kernels")


def _of_accounts(report: Report[TraceData], name: str) -> pd.DataFrame:
    """Return the items of the list field `name` of `RankTrace` as rows of a table, over all devices and hosts.

    The first columns are rank and device.
    """
    rows = [
        {"rank": account.rank, "device": account.device} | msgspec.to_builtins(struct)
        for account in report.data.ranks
        for struct in getattr(account, name)
    ]
    return pd.DataFrame(rows)


def table(rows: Iterable[RankTrace], names: list[str]) -> pd.DataFrame:
    return pd.DataFrame([[getattr(row, name) for name in names] for row in rows], columns=names)


def spans(
    artefact: Artefact, options: store.Options | None = None, window: Window | None = None, limit: int = 2000
) -> pd.DataFrame:
    """Return a table of the `limit` longest events in the window (default: everything), in order of time.

    Columns: lane ("stream 7", "thread 4000"), on_device, name, cat (category), kind (compute, communication, memory;
    "" if it is no work), start_ns, dur_ns, depth (how many events of its lane enclose it).
    """
    trace = open_trace(artefact.path, options)
    rows = _rows_in_window(trace, window)
    c = trace.columns
    rows = rows[np.argsort(c["start"][rows] - c["end"][rows], kind="stable")[:limit]]
    rows = rows[np.lexsort((-c["end"][rows], c["start"][rows]))]
    return pd.DataFrame(
        {
            "lane": [trace.lanes[i]["name"] for i in c["lane"][rows].tolist()],
            "on_device": trace.lane_is(DEVICE_LANE).take(c["lane"][rows]),
            "name": [trace.names[i] for i in c["name"][rows].tolist()],
            "cat": [trace.names[i] for i in c["cat"][rows].tolist()],
            "kind": [_kind_name(i) for i in c["kind"][rows].tolist()],
            "start_ns": c["start"][rows] - trace.origin,
            "dur_ns": c["end"][rows] - c["start"][rows],
            "depth": c["depth"][rows],
        }
    )


def _kind_name(number: int) -> str:
    return KIND_NAMES[number] if number >= 0 else ""


def _rows_in_window(trace: Trace, window: Window | None) -> Integers:
    """Return the trace rows of the events that are at least partly in the window.

    The window is (start, end) in ns from the first event, None for everything.
    """
    start, end = np.asarray(trace.columns["start"]), np.asarray(trace.columns["end"])
    if window is None:
        return np.arange(len(start))
    first, last = (trace.origin + edge for edge in window)
    return np.flatnonzero((start < last) & (end > first))


def timeline(
    artefact: Artefact, options: store.Options | None = None, window: Window | None = None, width: int = 400
) -> pd.DataFrame:
    """Return the events of one rank in a window (default: everything), ready to draw on `width` columns of a screen.

    Events narrower than a column are joined with neighbours of the same lane (thread or stream) and depth into one
    block, so that no time is lost. At most `_SPANS_AT_MOST` blocks are returned, those with most time, in order of
    lane, depth and time. Columns: lane, on_device, depth, name (of the longest event), kind (of most of the time:
    compute, communication, memory, or ""), start_ns and dur_ns (of the whole block), busy_ns (the sum of its events),
    count (of its events) and row (trace row of its longest event).
    """
    trace = open_trace(artefact.path, options)
    c, rows = trace.columns, _rows_in_window(trace, window)
    if not len(rows):
        # Of numbers, as those of a window with events: pandas ranks no empty columns of objects.
        return pd.DataFrame({name: np.zeros(0, _BLOCK_TYPES.get(name, np.int64)) for name in _BLOCK_COLUMNS})
    begin, end = window or (0, int(c["end"][rows].max()) - trace.origin)
    rows = rows[np.lexsort((c["start"][rows], c["depth"][rows], c["lane"][rows]))]
    first = _block_starts(trace, rows, max(1, (end - begin) // width))
    return _joined_blocks(trace, rows, first)


def _block_starts(trace: Trace, rows: Integers, column_ns: int) -> Integers:
    """Return the indices in `rows` at which a block begins; a block is drawn as one and has one event or several.

    `rows` are trace rows, sorted by lane, depth and time. A new block begins at another lane or depth, before and after
    an event as wide as a column of the screen (`column_ns`), and after a gap of this width.
    """
    c = trace.columns
    start, end = c["start"][rows], c["end"][rows]
    # Lane and depth in one number, so that one comparison sees a change of either.
    line = c["lane"][rows].astype(np.int64) << 32 | c["depth"][rows]
    wide = end - start >= column_ns
    begins = np.ones(len(rows), bool)
    begins[1:] = (np.diff(line) != 0) | wide[1:] | wide[:-1] | (start[1:] - end[:-1] >= column_ns)
    return np.flatnonzero(begins)


def _joined_blocks(trace: Trace, rows: Integers, first: Integers) -> pd.DataFrame:
    """Return a table of blocks, each drawn as one, with the columns of `timeline`.

    `rows` are the trace rows of the events, `first` the indices in `rows` at which a block begins.
    """
    c = trace.columns
    start, end, kind = c["start"][rows], c["end"][rows], c["kind"][rows]
    length = end - start
    kinds = range(-1, len(KIND_NAMES))
    of_kind = np.array([np.add.reduceat(np.where(kind == number, length, 0), first) for number in kinds])
    count = np.diff(np.append(first, len(rows)))
    # Sorted by block and length, the last event of each block is its longest.
    order = np.lexsort((length, np.repeat(np.arange(len(first)), count)))
    longest = rows[order[np.append(first[1:], len(rows)) - 1]]
    lane = c["lane"][rows[first]]
    blocks = pd.DataFrame(
        {
            "lane": [trace.lanes[i]["name"] for i in lane.tolist()],
            "on_device": trace.lane_is(DEVICE_LANE).take(lane),
            "depth": c["depth"][rows[first]],
            "name": [trace.names[i] for i in c["name"][longest].tolist()],
            "kind": [_kind_name(i - 1) for i in of_kind.argmax(axis=0).tolist()],
            "start_ns": start[first] - trace.origin,
            "dur_ns": np.maximum.reduceat(end, first) - start[first],
            "busy_ns": np.add.reduceat(length, first),
            "count": count,
            "row": longest,
        }
    )
    return blocks.loc[sorted(blocks["busy_ns"].nlargest(_SPANS_AT_MOST).index)].reset_index(drop=True)


def memory(
    artefact: Artefact, options: store.Options | None = None, window: Window | None = None, width: int = 400
) -> pd.DataFrame:
    """Return the memory of each device in a window (default: everything), in `width` equal intervals of time.

    Columns: where ("cpu", "cuda 0"; hosts first), at_ns (the start of the interval, from the first event), allocated
    and reserved (the maximum in the interval, so that a short peak stays visible). The table is empty if the trace has
    no allocations.
    """
    trace = open_trace(artefact.path, options)
    at = trace.columns["memory_at"] - trace.origin
    last = int(np.max(trace.columns["end"], initial=trace.origin)) - trace.origin
    begin, end = window or (int(at.min(initial=0)), max(last, int(at.max(initial=0)) + 1))
    edges = begin + (end - begin) * np.arange(width + 1, dtype=np.int64) // width
    tables = list[pd.DataFrame]()
    for allocator in allocators(trace):
        allocated, reserved = allocator.most_between(edges + trace.origin)
        values = {"at_ns": edges[:-1], "allocated": allocated, "reserved": reserved}
        tables.append(pd.DataFrame({"where": allocator.name, **values}))
    return pd.concat(tables or [pd.DataFrame(columns=[*_MEMORY_COLUMNS])], ignore_index=True)


def names(artefact: Artefact, options: store.Options | None = None) -> list[str]:
    """Return the distinct texts in a trace: the names of its events, and others such as categories."""
    return list(open_trace(artefact.path, options).names)


def lanes(artefact: Artefact, options: store.Options | None = None) -> list[str]:
    return list(dict.fromkeys(lane["name"] for lane in open_trace(artefact.path, options).lanes))


def phases(artefact: Artefact, rows: Column, options: store.Options | None = None) -> list[str]:
    """Return the phase of the step, such as `forward`, of the event in each of the trace rows; `other` if it has none.

    For work on a device it is the phase of its launch.
    """
    trace = open_trace(artefact.path, options)
    on_device = np.isin(rows, trace.work)
    caller = np.where(on_device, launching_rows(trace, trace.columns["correlation"][rows]), rows)
    return [PHASES[trace.columns["phase"][row]] if row >= 0 else OTHER for row in caller.tolist()]


def callers(artefact: Artefact, row: int, options: store.Options | None = None) -> list[str]:
    """Return the names of the event in a row of the trace and of the events that enclose it, the innermost first.

    For work on a device, its launching call on the host and the events around that call follow. The list is empty if
    the trace has no such row.
    """
    trace = open_trace(artefact.path, options)
    c, stack = trace.columns, list[str]()
    at = row if 0 <= row < len(c["name"]) else NONE
    while at != NONE:
        stack.append(trace.names[c["name"][at]])
        launched = launching_rows(trace, c["correlation"][[at]])[0] if at in trace.work else NONE
        at = int(launched if launched != NONE else c["parent"][at])
    return stack


def critical_path(
    artefact: Artefact, options: store.Options | None = None, step: int | None = None, account: int = 0
) -> pd.DataFrame:
    """Return a table of the critical path of a device or host through a step (default: the whole recording).

    This is the chain of work and waiting that determines the duration. Each row is a piece of it, in order of time:
    start_ns (from the first event), dur_ns, kind (of work or waiting), name and row of its event (empty and -1 for a
    pause). `account` is the index of the device or host in the trace.
    """
    trace = open_trace(artefact.path, options)
    marks = {number: (start - trace.origin, end - trace.origin) for number, start, end in trace.steps}
    return critical_path_of(trace, account, marks.get(step) if step is not None else None)


def tree(artefact: Artefact, options: store.Options | None = None, by: str = "operator") -> pd.DataFrame:
    """Return the call tree of a trace as a table with a row per node.

    `by` is "operator", "module", "function" or "user_function" (functions outside libraries). Calls with the same path
    of names are one node. The columns are node, parent, depth, name, count, host_ns, own_ns, device_ns and kernels; the
    docstring of `_call_tree` explains them.
    """
    return _call_tree(open_trace(artefact.path, options), by)


RANKS_AT_MOST = 256


def traffic(accounts: Sequence[RankTrace], at_most: int = RANKS_AT_MOST) -> pd.DataFrame:
    """Return a table of the bytes that each rank (row) sends to each rank (column) in all-to-alls.

    `accounts` are the results of all devices and hosts (`RankTrace`). The value is NaN if two ranks share no group.
    With more than `at_most` ranks, neighbours share a row and a column ("0-3"). A value is then the largest amount that
    one rank of the row sends to one rank of the column. Calls whose group members are not recorded are left out.
    """
    known = [account for account in accounts if account.rank is not None and any(e.ranks for e in account.exchanges)]
    senders = sorted({account.rank for account in known if account.rank is not None})
    receivers = sorted({rank for account in known for exchange in account.exchanges for rank in exchange.ranks})
    joined = -(-max(len(senders), len(receivers)) // at_most) or 1
    rows, columns = (np.arange(0, len(ranks), joined) for ranks in (senders, receivers))
    sent = _bytes_between(known, senders, receivers)
    if len(sent):
        # The maximum, as in every chart: a pair that exchanges much must stay visible among quiet neighbours.
        sent = np.fmax.reduceat(np.fmax.reduceat(sent, rows, axis=0), columns, axis=1)
    return pd.DataFrame(
        sent,
        index=[rank_ranges(senders[row : row + joined]) for row in rows],
        columns=[rank_ranges(receivers[column : column + joined]) for column in columns],
    )


def _bytes_between(accounts: Sequence[RankTrace], senders: Sequence[int], receivers: Sequence[int]) -> Floats:
    """Return float64[sender, receiver] of bytes sent in all-to-alls, summed over all process groups and traces.

    The value is NaN where two ranks share no group.
    """
    row_of, column_of = ({rank: i for i, rank in enumerate(ranks)} for ranks in (senders, receivers))
    sent = np.full((len(senders), len(receivers)), np.nan)
    for account in accounts:
        row = sent[row_of[account.rank or 0]]
        for exchange in (e for e in account.exchanges if e.ranks):
            columns = [column_of[rank] for rank in exchange.ranks]
            row[columns] = np.nan_to_num(row[columns]) + exchange.sent_bytes
    return sent
