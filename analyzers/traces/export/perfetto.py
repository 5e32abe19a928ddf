"""One file of the Chrome trace format with the traces of many ranks on a common clock, and our findings in it.

Perfetto and chrome://tracing open it. Each rank is a process for its host and one for each device; a process of its own
holds what was found: the collectives in which ranks waited, and for whom, and the critical path of the first rank's
last step. What devices held is in counters. Events of one track have to enclose each other or lie apart, else Perfetto
drops them: what does not goes to a further track of the same name.
"""

import gzip
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from analyzers import store
from analyzers.columns import Column
from analyzers.run import Artefact
from analyzers.traces.across.common_clock import AlignedRecordings, Window, load_aligned
from analyzers.traces.across.rank_waits import CollectiveWait
from analyzers.traces.critical.path import critical_path
from analyzers.traces.export.memory_counters import memory_counters
from analyzers.traces.model import DEVICE_LANE, HOST_LANE, Trace
from analyzers.words import rank_names

EVENTS_AT_MOST = 1_000_000
"""Over all ranks: what Perfetto still opens in a browser. The longest events of each rank stay."""
FINDINGS_PID = 0
PIDS_A_RANK = 1000
TRACKS = 1 << 20
"""Lanes of a file at most; a track's number beyond tells that it is a further one of the same lane."""
PATH_TID = TRACKS
ENCODER = msgspec.json.Encoder()
Event = dict[str, Any]


class Times(NamedTuple):
    """The beginning and the end of each event of a trace, in ns of the common clock."""

    start: Column
    end: Column


def export(
    artefacts: Sequence[Artefact],
    target: Path,
    options: store.Options | None = None,
    window: Window | None = None,
    limit: int = EVENTS_AT_MOST,
) -> int:
    """Write `target` (gzipped if its name ends in .gz); `window` is of the common clock. Returns the number of events.

    Raises:
        InputError: No trace can be read.
    """
    all_of = load_aligned(tuple(artefacts), options or store.Options())
    written = 0
    with gzip.open(target, "wb", 6) if target.suffix == ".gz" else target.open("wb") as file:
        file.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(events(all_of, window, limit)):
            file.write((b",\n" if number else b"") + ENCODER.encode(event))
            written = number + 1
        file.write(b"\n]}\n")
    return written


def events(all_of: AlignedRecordings, window: Window | None, limit: int) -> Iterator[Event]:
    """First what was found, then rank by rank."""
    files = list(dict.fromkeys(one.artefact.path for one in all_of.recordings))
    yield from named(FINDINGS_PID, "findings", -1)
    yield from waiting(all_of, all_of.comparison.longest_waits if all_of.comparison else [])
    for number, path in enumerate(files, 1):
        place = next(i for i, one in enumerate(all_of.recordings) if one.artefact.path == path)
        trace, rank = all_of.recordings[place].trace, all_of.recordings[place].rank
        bounds = (all_of.to_common_clock(place, np.asarray(trace.columns[edge])) for edge in ("start", "end"))
        name = path.name if rank is None else f"rank {rank}"
        times = Times(*bounds)
        rows = rows_of(trace, times, window, limit // len(files))
        if number == 1:
            yield from path_of(all_of, place, name)
        processes = pids(trace, number * PIDS_A_RANK, name)
        yield from of_trace(trace, processes, times, rows)
        of_device = partial(pid_of, number * PIDS_A_RANK)
        yield from memory_counters(trace, of_device, partial(all_of.to_common_clock, place), window)


def named(pid: int, name: str, order: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": order}}


def track(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def pids(trace: Trace, base: int, name: str) -> dict[int, tuple[int, str]]:
    """(process number, its name) of each lane: the host's first, then one a device."""
    found = {}
    for lane, one in enumerate(trace.columns.meta["lanes"]):
        if one["kind"] == HOST_LANE:
            found[lane] = pid_of(base, None), f"{name}, host"
        elif one["kind"] == DEVICE_LANE:
            found[lane] = pid_of(base, one["pid"]), f"{name}, device {one['pid']}"
    return found


def pid_of(base: int, device: int | None) -> int:
    """The process that stands for a device of a rank; None: for its host."""
    return base if device is None else base + 1 + device % (PIDS_A_RANK - 1)


def rows_of(trace: Trace, times: Times, window: Window | None, limit: int) -> Column:
    """The rows to write: of those in the window the longest, in order of time."""
    c, (start, end) = trace.columns, times
    kinds = np.array([one["kind"] for one in c.meta["lanes"]] or [HOST_LANE])[c["lane"]]
    chosen = (kinds == HOST_LANE) | (kinds == DEVICE_LANE)
    if window:
        chosen &= (start < window[1]) & (end > window[0])
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(start[rows] - end[rows], kind="stable")[:limit]]
    return rows[np.lexsort((-end[rows], start[rows]))]


def of_trace(trace: Trace, processes: dict[int, tuple[int, str]], times: Times, rows: Column) -> Iterator[Event]:
    """The names of processes and tracks, the events, and an arrow from each launch to its kernel."""
    c, lanes = trace.columns, trace.columns.meta["lanes"]
    tracks = dict(zip(rows.tolist(), tracks_of(c["lane"][rows], times, rows), strict=True))
    for pid, name in sorted(set(processes.values())):
        yield from named(pid, name, pid)
    for tid in sorted(set(tracks.values()) | set(processes)):
        lane = tid % TRACKS
        yield track(processes[lane][0], tid, lanes[lane]["name"])
    for row, tid in tracks.items():
        pid, start, end = processes[tid % TRACKS][0], int(times.start[row]), int(times.end[row])
        yield span(trace, row, (pid, tid), (start, end))
        launch = int(c["launch"][row])
        if launch in tracks and launch != row:
            source = processes[tracks[launch] % TRACKS][0], tracks[launch]
            flow = pid * (1 << 32) + row
            yield from arrow("launch", flow, (*source, int(times.start[launch])), (pid, tid, start))


def tracks_of(lanes: Column, times: Times, rows: Column) -> list[int]:
    """The track of each row, which are in order of time: its lane's, or `TRACKS` more where that would not nest."""
    ends: dict[int, list[int]] = {}
    found = []
    for lane, row in zip(lanes.tolist(), rows.tolist(), strict=True):
        start, end, tid = int(times.start[row]), int(times.end[row]), lane
        while not fits(ends.setdefault(tid, []), start, end):
            tid += TRACKS
        ends[tid].append(end)
        found.append(tid)
    return found


def fits(running: list[int], start: int, end: int) -> bool:
    """Whether an event nests into those whose ends these are, the innermost last; those that are over are dropped."""
    while running and running[-1] <= start:
        running.pop()
    return not running or end <= running[-1]


def span(trace: Trace, row: int, place: tuple[int, int], bounds: tuple[int, int]) -> Event:
    c = trace.columns
    event = {
        "ph": "X",
        "name": trace.names[c["name"][row]],
        "cat": trace.names[c["cat"][row]],
        "pid": place[0],
        "tid": place[1],
        "ts": bounds[0] / 1000,
        "dur": (bounds[1] - bounds[0]) / 1000,
    }
    if c["correlation"][row] >= 0:
        event["args"] = {"correlation": int(c["correlation"][row])}
    return event


def arrow(name: str, number: int, source: tuple[int, int, int], target: tuple[int, int, int]) -> Iterator[Event]:
    """From one (pid, tid, ns) to another."""
    for phase, (pid, tid, at) in (("s", source), ("f", target)):
        bound = {"bp": "e"} if phase == "f" else {}
        yield {"ph": phase, "id": number, "name": name, "cat": name, "pid": pid, "tid": tid, "ts": at / 1000} | bound


def waiting(all_of: AlignedRecordings, meetings: Iterable[CollectiveWait]) -> Iterator[Event]:
    """The collectives with most waiting, each from the first arrival to the end of the wait."""
    ends: dict[int, list[int]] = {}
    for met in sorted((one for one in meetings if one.wait_ns), key=lambda one: (one.start_ns, -one.longest_wait_ns)):
        start, tid = met.start_ns - all_of.origin, 0
        while not fits(ends.setdefault(tid, []), start, start + met.longest_wait_ns):
            tid += 1
        if not ends[tid]:
            yield track(FINDINGS_PID, tid, "waiting in collectives")
        ends[tid].append(start + met.longest_wait_ns)
        number = "" if met.sequence is None else f" #{met.sequence}"
        name = f"{rank_names([met.last_rank])} is late in {met.name}{number}"
        yield found(tid, name, (start, met.longest_wait_ns), msgspec.to_builtins(met))


def path_of(all_of: AlignedRecordings, place: int, name: str) -> Iterator[Event]:
    """The critical path of a rank's last step, piece by piece."""
    one = all_of.recordings[place]
    if not one.trace.steps:
        return
    number, *bounds = one.trace.steps[-1]
    path = critical_path(one.trace, one.number, (bounds[0] - one.trace.origin, bounds[1] - one.trace.origin))
    starts = all_of.to_common_clock(place, path["start_ns"].to_numpy() + one.trace.origin)
    yield track(FINDINGS_PID, PATH_TID, f"critical path of step {number}, {name}")
    for start, piece in zip(starts.tolist(), path.itertuples(index=False), strict=True):
        yield found(PATH_TID, str(piece.name or piece.kind), (start, int(str(piece.dur_ns))), {"kind": piece.kind})


def found(tid: int, name: str, stretch: tuple[int, int], told: dict[str, Any]) -> Event:
    """A finding that lasts from its beginning for so many ns."""
    at = {"ph": "X", "name": name, "cat": "finding", "pid": FINDINGS_PID, "tid": tid}
    return at | {"ts": stretch[0] / 1000, "dur": stretch[1] / 1000, "args": told}
