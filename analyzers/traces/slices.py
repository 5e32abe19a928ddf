"""Return the events of a trace as columns of slices, up to a million, from which a timeline is drawn.

A *line* of the timeline shows the events of one lane (a thread or a stream) at one nesting depth. The slices are sorted
by line and start, so the slices of a line in a time range are one contiguous part of the columns.
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analyzers import store
from analyzers.columns import Column, Integers, Mask, narrowed
from analyzers.run import Artefact
from analyzers.traces.columns import NONE, UNNAMED, launched_rows, launching_rows
from analyzers.traces.loading import open_trace
from analyzers.traces.reading.trace import DEVICE_LANE, HOST_LANE, Lane, Trace

_MOST_SLICES = 1 << 20
"""The most slices that are returned: about 24 MB in a browser, which draws them 30 times a second without a GPU."""
_LONGEST_TITLE = 200
HOST = 0
KINDS = ("", "compute", "communication", "memory", "idle")
"""The kinds of slices, to which `Slices.kind` holds indices.

"" is work of the host, "idle" is waiting on a critical path.
"""


@dataclass(frozen=True)
class Line:
    """A line of the timeline: its lane (a stream or thread), nesting depth, and slices from `first` to `last`.

    `last` is the index after its last slice.
    """

    lane: str
    on_device: bool
    depth: int
    first: int
    last: int


@dataclass(frozen=True)
class Slices:
    """The slices of a timeline, each an event or several joined ones; columns have an entry per slice.

    Times are in ns from the first event of the trace. `name` holds indices into `names`, `kind` into `KINDS`, and
    `phase` into `views.PHASES`. `row` is the trace row of the event (of the longest if several are joined; -1: none),
    and `count` the number of events; `events` is the number of all events. `joined_ns` is the longest time range whose
    events were joined (0: none were). Inside this range the slices have the right durations, but not their exact
    positions.
    """

    lines: list[Line]
    names: list[str]
    start: Integers
    dur: Integers
    name: Column
    kind: Column
    phase: Column
    row: Integers
    count: Integers
    events: int
    joined_ns: int = 0


def slices(
    artefact: Artefact,
    options: store.Options | None = None,
    window: tuple[int, int] | None = None,
    most: int = _MOST_SLICES,
) -> Slices:
    """Return the events of a trace that are at least partly in the window, as slices of a timeline.

    The window is (start, end) in ns from the first event, None for everything. If there are more than `most` events,
    narrow neighbours of the same line, kind and phase are joined; the total duration of each kind stays the same.
    """
    trace = open_trace(artefact.path, options)
    rows, line = _sorted_rows(trace, window)
    c = trace.columns
    start = c["start"][rows].astype(np.int64) - trace.origin
    dur = (c["end"][rows] - c["start"][rows]).astype(np.int64)
    used, name = _used_names(trace, c["name"][rows])
    exact = Slices(
        lines=lines_of(trace, rows, line),
        names=used,
        start=start,
        dur=dur,
        name=name,
        kind=(c["kind"][rows] + 1).astype(np.uint8),
        phase=_phase_codes(trace, rows),
        row=rows,
        count=np.ones(len(rows), np.int64),
        events=len(rows),
    )
    return exact if len(rows) <= most else joined(exact, line, most)


def path_slices(path: pd.DataFrame) -> Slices:
    """Return a critical path, the result of `views.critical_path`, as slices of one line.

    Pauses of the path have the kind "idle", whatever they wait for; time of the host has the kind "".
    """
    names = (path["name"].where(path["name"] != "", path["kind"])).tolist()
    used = list(dict.fromkeys(names))
    index = {text: number for number, text in enumerate(used)}
    known = {"host": HOST, **{kind: number for number, kind in enumerate(KINDS) if kind}}
    kinds = [known.get(kind, KINDS.index("idle")) for kind in path["kind"]]
    return Slices(
        lines=[Line("critical path", True, 0, 0, len(path))],
        names=used,
        start=path["start_ns"].to_numpy(np.int64),
        dur=path["dur_ns"].to_numpy(np.int64),
        name=np.array([index[text] for text in names], np.int64),
        kind=np.array(kinds, np.uint8),
        phase=np.full(len(path), UNNAMED, np.uint8),
        row=path["row"].to_numpy(np.int64),
        count=np.ones(len(path), np.int64),
        events=len(path),
    )


def _sorted_rows(trace: Trace, window: tuple[int, int] | None) -> tuple[Integers, Integers]:
    """Return the trace rows of the events in a window in order of line and start, and the line number of each row.

    Lines of devices come first, then those of threads; the lines of one lane are in order of depth.
    """
    c = trace.columns
    start, end = np.asarray(c["start"]), np.asarray(c["end"])
    low, high = (trace.origin + edge for edge in window) if window else (0, 0)
    rows = np.flatnonzero((start < high) & (end > low)) if window else np.arange(len(start))
    rows = rows[np.argsort(start[rows], kind="stable")]
    depths = int(np.max(c["depth"], initial=0)) + 1
    line = _lane_order(trace)[c["lane"][rows]] * depths + c["depth"][rows]
    order = np.argsort(narrowed(line), kind="stable")  # 16 bits sort by radix
    return rows[order], line[order].astype(np.int64)


def _lane_order(trace: Trace) -> Integers:
    """Return the position of each lane on the timeline: first streams by device, then threads, then profiler marks."""
    rank = {DEVICE_LANE: 0, HOST_LANE: 1}
    keys = [(rank.get(lane["kind"], 2), lane["pid"] if lane["kind"] == DEVICE_LANE else 0) for lane in trace.lanes]
    order = sorted(range(len(keys)), key=lambda i: (keys[i], trace.lanes[i]["name"]))
    position = np.zeros(max(len(keys), 1), np.int64)
    position[order] = np.arange(len(order))
    return position


def lines_of(trace: Trace, rows: Integers, line: Integers) -> list[Line]:
    """Return the lines of the timeline; `rows` and `line` are the result of `_sorted_rows`."""
    first = np.flatnonzero(np.append(True, np.diff(line) != 0))[: len(rows)]
    last = np.append(first[1:], len(rows))
    lane, depth = trace.columns["lane"][rows[first]].tolist(), trace.columns["depth"][rows[first]].tolist()
    titles = lane_titles(trace.lanes)
    return [
        Line(titles[number], trace.lanes[number]["kind"] == DEVICE_LANE, level, low, high)
        for number, level, low, high in zip(lane, depth, first.tolist(), last.tolist(), strict=True)
    ]


def lane_titles(lanes: list[Lane]) -> list[str]:
    names = [lane["name"][:_LONGEST_TITLE] for lane in lanes]
    counts, seen, titles = Counter(names), Counter[str](), []
    for name, lane in zip(names, lanes, strict=True):
        whose = "device" if lane["kind"] == DEVICE_LANE else "process"
        title = f"{name}, {whose} {lane['pid']}" if counts[name] > 1 else name
        seen[title] += 1
        titles.append(title if seen[title] == 1 else f"{title} ({seen[title]})")
    return titles


def _used_names(trace: Trace, name: Column) -> tuple[list[str], Column]:
    """Return the names of some events without repetition, and for each event the index of its name among them."""
    occurs = np.zeros(len(trace.names), bool)
    occurs[name] = True
    texts = [trace.names[number] for number in np.flatnonzero(occurs).tolist()]
    return texts, (np.cumsum(occurs) - 1)[name]


def _phase_codes(trace: Trace, rows: Integers) -> Column:
    """Return the phase of each event as an index into `views.PHASES`; for work on a device, the phase of its launch."""
    phase, on_device = np.asarray(trace.columns["phase"]), np.zeros(len(trace.columns["start"]), bool)
    on_device[trace.work] = True
    codes = phase[rows].astype(np.uint8)
    at = np.flatnonzero(on_device[rows])
    launch = launching_rows(trace, trace.columns["correlation"][rows[at]])
    codes[at] = np.where(launch >= 0, phase[launch], UNNAMED)
    return codes


def joined(exact: Slices, line: Integers, most: int) -> Slices:
    """Return at most about `most` slices, by joining those that are short.

    Time is divided into equal cells. Slices shorter than a cell that begin in the same cell and have the same line,
    kind and phase become one. The joined slices of a cell follow each other without gaps from the start of its first
    event, so no time is lost or moved to another line. Example: with cells of 10 ns, compute [0, 2), copy [3, 4),
    compute [6, 7) become compute [0, 3), copy [3, 4).
    """
    span = int((exact.start + exact.dur).max()) - int(exact.start.min())
    cell_ns = max(2, span * len(exact.lines) // most // EMPTY)
    while len(first := _group_starts(key := _group_keys(exact, line, cell_ns))[1]) > most:
        cell_ns *= 2
    order, first = _group_starts(key)
    dur = exact.dur[order]
    total = np.add.reduceat(dur, first)
    # The longest of a group: the duration in the upper bits, the index in the lower ones.
    bits = len(order).bit_length()
    longest = order[np.maximum.reduceat(dur << bits | np.arange(len(order)), first) & ((1 << bits) - 1)]
    cell = key[order[first]] >> _CODE_BITS
    moved = replace(
        exact,
        start=placed(np.minimum.reduceat(exact.start[order], first), total, cell),
        dur=total,
        row=exact.row[longest],
        count=np.diff(np.append(first, len(order))),
        joined_ns=cell_ns,
        **{name: getattr(exact, name)[longest] for name in ("name", "kind", "phase")},
    )
    lines = np.append(np.searchsorted(line[order[first]], np.unique(line)), len(first)).tolist()
    return replace(moved, lines=[replace(old, first=lines[i], last=lines[i + 1]) for i, old in enumerate(exact.lines)])


EMPTY = 4
"""The assumed number of cells of time for each cell that holds events, when the first width of cells is chosen."""
_CODE_BITS = 16
"""The number of lower bits of a key that hold kind and phase; the bits above are equal for all slices of one cell."""


def _group_keys(exact: Slices, line: Integers, cell_ns: int) -> Integers:
    """Return a key for each slice; slices with equal keys are joined into one.

    Short slices of one kind in the same line and the same cell of time have equal keys. A slice that is at least as
    long as a cell has a key of its own. `line` has the line of each slice, `cell_ns` is the width of a cell. The keys
    ascend with line and time.
    """
    cell = exact.start // cell_ns
    long = exact.dur >= cell_ns
    begins = np.ones(len(line), bool)
    begins[1:] = (np.diff(line) != 0) | (np.diff(cell) != 0) | long[1:] | long[:-1]
    code = exact.kind.astype(np.int64) << 8 | exact.phase
    keys: Integers = np.cumsum(begins) << _CODE_BITS | code
    return keys


def _group_starts(key: Integers) -> tuple[Integers, Integers]:
    order = np.argsort(key, kind="stable")
    begins: Mask = np.append(True, np.diff(key[order]) != 0)
    return order, np.flatnonzero(begins)


def placed(start: Integers, total: Integers, cell: Integers) -> Integers:
    """Return new starts for groups of joined slices: the groups of a cell follow each other from the first start.

    `start` and `total` are the first start and the summed duration of each group, `cell` the number of its cell.
    """
    first = np.flatnonzero(np.append(True, np.diff(cell) != 0))
    size = np.diff(np.append(first, len(cell)))
    before = np.cumsum(total) - total
    shift: Integers = np.repeat(np.minimum.reduceat(start, first) - before[first], size)
    return shift + before


@dataclass(frozen=True)
class Event:
    """One event of a trace; times in ns from the first event, `self_ns` without the events inside it."""

    name: str
    lane: str
    depth: int
    category: str
    kind: str
    start_ns: int
    dur_ns: int
    self_ns: int


def event(artefact: Artefact, row: int, options: store.Options | None = None) -> Event | None:
    trace = open_trace(artefact.path, options)
    c = trace.columns
    if not 0 <= row < len(c["start"]):
        return None
    start, end = int(c["start"][row]), int(c["end"][row])
    inside = np.flatnonzero(np.asarray(c["parent"]) == row)
    covered = int((np.minimum(c["end"][inside], end) - c["start"][inside]).sum())
    return Event(
        name=trace.names[int(c["name"][row])],
        lane=lane_titles(trace.lanes)[int(c["lane"][row])],
        depth=int(c["depth"][row]),
        category=trace.names[int(c["cat"][row])],
        kind=KINDS[int(c["kind"][row]) + 1],
        start_ns=start - trace.origin,
        dur_ns=end - start,
        self_ns=max(0, end - start - covered),
    )


@dataclass(frozen=True)
class LaunchEnd:
    """One of the two events of a launch (the call or the device work): its trace row, name, and place on the timeline.

    Times are as in `Event`.
    """

    row: int
    name: str
    lane: str
    depth: int
    start_ns: int
    dur_ns: int


@dataclass(frozen=True)
class Launch:
    """A call of the host, and an event of a device that it launched."""

    call: LaunchEnd
    work: LaunchEnd

    @property
    def wait_ns(self) -> int:
        """The ns from the start of the call to the start of the work: the launch itself, and the wait in the stream."""
        return self.work.start_ns - self.call.start_ns


@dataclass(frozen=True)
class Launches:
    """The launches that an event of a trace takes part in, the first `_MOST_LAUNCHES` of them; `count` is of all."""

    launches: list[Launch]
    count: int


_MOST_LAUNCHES = 50


def launches_of(artefact: Artefact, row: int, options: store.Options | None = None) -> Launches:
    """Return the launch of the device work in a trace row, or all launches inside the host event in this row.

    The launches are in order of the start of the work. The result is empty if the trace does not link calls with work,
    or has no such row.
    """
    trace = open_trace(artefact.path, options)
    if not 0 <= row < len(trace.columns["start"]):
        return Launches([], 0)
    if row in trace.work:
        work = np.array([row])
        calls = launching_rows(trace, trace.columns["correlation"][work])
    else:
        work, calls = launched_rows(trace, row)
    work, calls = work[calls != NONE], calls[calls != NONE]
    pairs = zip(_ends_in(trace, calls[:_MOST_LAUNCHES]), _ends_in(trace, work[:_MOST_LAUNCHES]), strict=True)
    return Launches([Launch(call, one) for call, one in pairs], len(work))


def _ends_in(trace: Trace, rows: Integers) -> list[LaunchEnd]:
    c, titles = trace.columns, lane_titles(trace.lanes)
    columns = (c[name][rows].tolist() for name in ("name", "lane", "depth", "start", "end"))
    return [
        LaunchEnd(row, trace.names[name], titles[lane], depth, start - trace.origin, end - start)
        for row, name, lane, depth, start, end in zip(rows.tolist(), *columns, strict=True)
    ]
