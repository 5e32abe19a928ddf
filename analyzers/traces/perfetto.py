"""Write the memory of devices as counters of the Chrome trace format; Perfetto draws each counter as a track."""

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, cast

import msgspec
import numpy as np

from analyzers import store
from analyzers.columns import Column, Integers
from analyzers.files import replacing
from analyzers.run import Artefact
from analyzers.traces.allocations import Allocator, allocators
from analyzers.traces.common_clock import AlignedRecordings, Window, load_aligned
from analyzers.traces.critical_path import critical_path
from analyzers.traces.rank_waits import CollectiveWait
from analyzers.traces.reading.trace import DEVICE_LANE, HOST_LANE, Trace
from analyzers.words import rank_names

_POINTS_AT_MOST = 20_000
"""The most points that are written for a device; if there are more, the highest in each time interval are kept."""


def _memory_counters(
    trace: Trace,
    pid_of: Callable[[int | None], int],
    to_common_clock: Callable[[Column], Integers],
    window: tuple[int, int] | None,
) -> Iterator[dict[str, object]]:
    """Yield counter events with the allocated and reserved bytes of each device over time.

    `pid_of` is a function that returns the process id of a device (None: the host) in the exported file.
    `to_common_clock` converts times of the trace to the common clock of all ranks. `window` is (start, end) in ns of
    that clock (None: everything).
    """
    for allocator in allocators(trace):
        at, allocated, reserved = points(allocator, trace.origin)
        at = to_common_clock(at)
        first, last = window or (int(at[0]), int(at[-1]) + 1)
        # A counter holds until its next event, so the last one before the window counts, too.
        inside = slice(max(0, int(np.searchsorted(at, first, side="right")) - 1), int(np.searchsorted(at, last)))
        times = np.maximum(at[inside], first).tolist()
        name, pid = f"memory of {allocator.name}", pid_of(None if allocator.on_host else allocator.number)
        for ns, in_use, kept in zip(times, allocated[inside].tolist(), reserved[inside].tolist(), strict=True):
            values = {"allocated": in_use} | ({"reserved": kept} if reserved.any() else {})
            yield {"ph": "C", "name": name, "pid": pid, "ts": ns / 1000, "args": values}


def points(allocator: Allocator, origin: int) -> tuple[Column, Column, Column]:
    """Return the points of a device's memory curve: times (ns of the trace), allocated bytes and reserved bytes.

    The first point, at `origin` (the start of the trace, ns), has the bytes allocated before the first event. With too
    many events for one point each, the points are the maxima in equal intervals of time.
    """
    if len(allocator.at) > _POINTS_AT_MOST:
        edges = np.linspace(allocator.at[0], allocator.at[-1] + 1, _POINTS_AT_MOST + 1).astype(np.int64)
        return edges[:-1], *allocator.most_between(edges)
    begin = min(origin, int(allocator.at[0]))
    return (
        np.append(begin, allocator.at),
        np.append(allocator.before, allocator.allocated),
        np.append(allocator.reserved[0], allocator.reserved),
    )


# Write the traces of many ranks, on a common clock, and the findings on them into one file of the Chrome trace
# format.
#
# Perfetto and chrome://tracing open the file. They draw *processes*, each with *tracks* below it. Each rank gets a
# process for its host and one for each of its devices. A further process shows the findings: the collectives in which
# ranks waited, for which rank they waited, and the critical path of the first rank's last step. The memory of devices
# is in counters.
#
# Events of one track must be nested or not overlap, else Perfetto drops them. An event that would partly overlap
# another one is written to a further track of the same name.

_EVENTS_AT_MOST = 1_000_000
"""The most events, over all ranks, that Perfetto can open in a browser; if there are more, the longest are kept."""
_FINDINGS_PID = 0
_PIDS_PER_RANK = 1000
_TRACKS_PER_FILE = 1 << 20
"""The distance between the numbers of the tracks of one lane.

Lane n has the track n, then n plus this number, n plus twice this number, and so on.
"""
_PATH_TID = _TRACKS_PER_FILE
_ENCODER = msgspec.json.Encoder()
Event = dict[str, object]


class Times(NamedTuple):
    """The start and the end of each event of a trace, in ns of the common clock."""

    start: Integers
    end: Integers


class Point(NamedTuple):
    """One end of an arrow in the export: a track (`pid`, `tid`), and the time `at` in ns of the common clock."""

    pid: int
    tid: int
    at: int


def export(
    artefacts: Sequence[Artefact],
    target: Path,
    options: store.Options | None = None,
    window: Window | None = None,
    limit: int = _EVENTS_AT_MOST,
) -> int:
    """Write the traces of all ranks into one file that Perfetto opens, and return the number of events written.

    Args:
        artefacts: The trace files, all of one step of the run.
        target: The file to write, gzipped if its name ends in .gz; an existing file is replaced when the new one is
            complete.
        options: Limits of the readers.
        window: (start, end) in ns of the common clock; None exports everything.
        limit: The most events of traces to write, divided evenly among the files; if a file has more, its shortest are
            left out. What the export adds (names, findings, memory) does not count.

    Raises:
        InputError: No trace can be read.
    """
    aligned = load_aligned(tuple(artefacts), options or store.Options())
    written = 0
    with replacing(target) as file, compressed(file) if target.suffix == ".gz" else nullcontext(file) as content:
        content.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(_all_events(aligned, window, limit)):
            content.write((b",\n" if number else b"") + _ENCODER.encode(event))
            written = number + 1
        content.write(b"\n]}\n")
    return written


def compressed(file: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile("", "wb", 6, file))


def _all_events(aligned: AlignedRecordings, window: Window | None, limit: int) -> Iterator[Event]:
    """Yield all events of the export: first the findings, then the events of each rank.

    Each rank gets at most `limit` events: the longest.
    """
    files = list(dict.fromkeys(recording.artefact.path for recording in aligned.recordings))
    yield from _process_names(_FINDINGS_PID, "findings", -1)
    yield from _waiting_events(aligned, aligned.comparison.longest_waits if aligned.comparison else [])
    for number, path in enumerate(files, 1):
        # A file with several devices has several recordings of the same trace; any of them has its clock.
        index = next(i for i, recording in enumerate(aligned.recordings) if recording.artefact.path == path)
        trace, rank = aligned.recordings[index].trace, aligned.recordings[index].rank
        to_common_clock = partial(aligned.to_common_clock, index)
        times = Times(*(to_common_clock(np.asarray(trace.columns[edge])) for edge in ("start", "end")))
        name = path.name if rank is None else f"rank {rank}"
        rows = _rows_to_write(trace, times, window, limit // len(files))
        if number == 1:
            yield from _critical_path_events(aligned, index, name)
        yield from _trace_events(trace, _processes_of_lanes(trace, number * _PIDS_PER_RANK, name), times, rows)
        yield from _memory_counters(trace, partial(_pid_of, number * _PIDS_PER_RANK), to_common_clock, window)


def _process_names(pid: int, name: str, order: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": order}}


def _track_name(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _processes_of_lanes(trace: Trace, base: int, name: str) -> dict[int, tuple[int, str]]:
    """Return {lane number: (process id in the export, name of the process)} for the lanes of a host and its devices.

    `base` is the process id of the rank's host, `name` the rank's name.
    """
    processes = {}
    for number, lane in enumerate(trace.lanes):
        if lane["kind"] == HOST_LANE:
            processes[number] = _pid_of(base, None), f"{name}, host"
        elif lane["kind"] == DEVICE_LANE:
            processes[number] = _pid_of(base, lane["pid"]), f"{name}, device {lane['pid']}"
    return processes


def _pid_of(base: int, device: int | None) -> int:
    return base if device is None else base + 1 + device % (_PIDS_PER_RANK - 1)


def _rows_to_write(trace: Trace, times: Times, window: Window | None, limit: int) -> Integers:
    """Return the trace rows of the `limit` longest events that are at least partly in the window, in order of time.

    `window` is (start, end) in ns of the common clock, None for everything.
    """
    start, end = times
    wanted = trace.lane_is(HOST_LANE, DEVICE_LANE).take(trace.columns["lane"])
    if window:
        wanted &= (start < window[1]) & (end > window[0])
    rows = np.flatnonzero(wanted)
    rows = rows[np.argsort(start[rows] - end[rows], kind="stable")[:limit]]
    return rows[np.lexsort((-end[rows], start[rows]))]


def _trace_events(trace: Trace, processes: dict[int, tuple[int, str]], times: Times, rows: Integers) -> Iterator[Event]:
    """Yield the names of processes and tracks, the events, and an arrow from each launch to its kernel.

    `rows` are the trace rows of the events, `times` the start and end of all events of the trace, and `processes` is
    the result of `_processes_of_lanes`.
    """
    c = trace.columns
    tracks = dict(zip(rows.tolist(), _tracks_of(c["lane"][rows], times, rows), strict=True))
    for pid, name in sorted(set(processes.values())):
        yield from _process_names(pid, name, pid)
    for tid in sorted(set(tracks.values()) | set(processes)):
        lane = tid % _TRACKS_PER_FILE
        yield _track_name(processes[lane][0], tid, trace.lanes[lane]["name"])
    for row, tid in tracks.items():
        pid, start, end = processes[tid % _TRACKS_PER_FILE][0], int(times.start[row]), int(times.end[row])
        yield span(trace, row, (pid, tid), (start, end))
        launch = int(c["launch"][row])
        if launch in tracks and launch != row:
            source = Point(processes[tracks[launch] % _TRACKS_PER_FILE][0], tracks[launch], int(times.start[launch]))
            yield from arrow("launch", pid * (1 << 32) + row, source, Point(pid, tid, start))


def _tracks_of(lanes: Column, times: Times, rows: Integers) -> list[int]:
    """Return, for each event in `rows`, the number of its track in the export.

    The number is that of the event's lane (thread or stream). An event that would partly overlap another event on this
    track gets a further track. `rows` are trace rows in order of time, `lanes` has the lane number of each of them.
    """
    ends: dict[int, list[int]] = {}
    tracks = []
    for lane, row in zip(lanes.tolist(), rows.tolist(), strict=True):
        start, end, tid = int(times.start[row]), int(times.end[row]), lane
        while not _nests(ends.setdefault(tid, []), start, end):
            tid += _TRACKS_PER_FILE
        ends[tid].append(end)
        tracks.append(tid)
    return tracks


def _nests(running: list[int], start: int, end: int) -> bool:
    """Return whether an event lies inside all events that still run at its start, so that it fits on the same track."""
    while running and running[-1] <= start:
        running.pop()
    return not running or end <= running[-1]


def span(trace: Trace, row: int, track: tuple[int, int], bounds: tuple[int, int]) -> Event:
    """Return an event of a trace in the Chrome trace format; `track` is (pid, tid), `bounds` (start, end) in ns."""
    c = trace.columns
    event: Event = {
        "ph": "X",
        "name": trace.names[c["name"][row]],
        "cat": trace.names[c["cat"][row]],
        "pid": track[0],
        "tid": track[1],
        "ts": bounds[0] / 1000,
        "dur": (bounds[1] - bounds[0]) / 1000,
    }
    if c["correlation"][row] >= 0:
        event["args"] = {"correlation": int(c["correlation"][row])}
    return event


def arrow(name: str, number: int, source: Point, target: Point) -> Iterator[Event]:
    """Yield the two events that draw an arrow from `source` to `target`; `number` identifies the arrow in the file."""
    for phase, (pid, tid, at) in (("s", source), ("f", target)):
        # "e" binds the head to the event around the moment; by default it would go to the next one that begins.
        binding = {"bp": "e"} if phase == "f" else {}
        yield {"ph": phase, "id": number, "name": name, "cat": name, "pid": pid, "tid": tid, "ts": at / 1000} | binding


def _waiting_events(aligned: AlignedRecordings, waits: Iterable[CollectiveWait]) -> Iterator[Event]:
    """Yield an event for each collective in `waits`, from its first arrival to the end of its longest wait.

    Overlapping events are written to several tracks, each of which begins with its name.
    """
    ends: dict[int, list[int]] = {}
    for wait in sorted((wait for wait in waits if wait.wait_ns), key=lambda w: (w.start_ns, -w.longest_wait_ns)):
        start, tid = wait.start_ns - aligned.origin, 0
        while not _nests(ends.setdefault(tid, []), start, start + wait.longest_wait_ns):
            tid += 1
        if not ends[tid]:
            yield _track_name(_FINDINGS_PID, tid, "waiting in collectives")
        ends[tid].append(start + wait.longest_wait_ns)
        number = "" if wait.sequence is None else f" #{wait.sequence}"
        name = f"{rank_names([wait.last_rank])} is late in {wait.name}{number}"
        yield _finding_event(tid, name, (start, wait.longest_wait_ns), msgspec.to_builtins(wait))


def _critical_path_events(aligned: AlignedRecordings, index: int, name: str) -> Iterator[Event]:
    """Yield the pieces of the critical path of the last step of a recording as events; nothing if no steps are marked.

    `index` is the index of the recording, `name` the name of its rank.
    """
    recording = aligned.recordings[index]
    trace = recording.trace
    if not trace.steps:
        return
    step, start, end = trace.steps[-1]
    path = critical_path(trace, recording.number, (start - trace.origin, end - trace.origin))
    starts = aligned.to_common_clock(index, path["start_ns"].to_numpy() + trace.origin)
    yield _track_name(_FINDINGS_PID, _PATH_TID, f"critical path of step {step}, {name}")
    for at, piece in zip(starts.tolist(), path.itertuples(index=False), strict=True):
        label = str(piece.name or piece.kind)
        yield _finding_event(_PATH_TID, label, (at, int(str(piece.dur_ns))), {"kind": piece.kind})


def _finding_event(tid: int, name: str, stretch: tuple[int, int], args: Mapping[str, object]) -> Event:
    """Return an event in the export's process of findings, on track `tid`.

    `stretch` is (start, duration) of the event in ns of the common clock; `args` are shown when a user selects the
    event.
    """
    where = {"ph": "X", "name": name, "cat": "finding", "pid": _FINDINGS_PID, "tid": tid}
    return where | {"ts": stretch[0] / 1000, "dur": stretch[1] / 1000, "args": args}
