"""The work that a trace accounts for: kernels and copies of each device, or on a CPU the operators and collectives."""

import re
from dataclasses import dataclass

import numpy as np

from analyzers.traces.intervals import COMMUNICATION as COMMUNICATING
from analyzers.traces.intervals import COMPUTE, MEMORY, merge
from analyzers.traces.model import ANNOTATIONS, COMMUNICATION, COPIES, LAUNCHES, OPS, Trace
from analyzers.traces.table import Column

# gloo runs a collective, the wait for others included, inside such an annotation on a thread of its own.
HOST_COLLECTIVE = re.compile(r"^(gloo|mpi|ucc):")
# Issuing a collective or waiting for one is not computing.
HOST_COMMUNICATION = re.compile(r"^(_?c10d|_?c10d_functional|gloo|mpi|ucc|nccl)::?|^record_param_comms")
NO_STEP = -1


@dataclass(frozen=True)
class Work:
    """The events of one account: rows of the trace, the kind of each, and the instant each was launched.

    `launch_start` and `launch_end` are those of the launching call, -1 where the file has none; a host event launches
    itself. `own` is the time not spent in events that it calls, which differs from its length only on a host.
    """

    trace: Trace
    device: int | None
    rows: Column
    kind: Column
    launch_start: Column
    launch_end: Column
    linked: Column
    own: Column

    @property
    def start(self) -> Column:
        return self.trace.columns["start"][self.rows]

    @property
    def end(self) -> Column:
        return self.trace.columns["end"][self.rows]

    def step(self) -> Column:
        """The position in `trace.steps` of the step that contains each event's launch, or NO_STEP."""
        if not self.trace.steps:
            return np.full(len(self.rows), NO_STEP)
        bounds = np.array([mark[1:] for mark in self.trace.steps], np.int64)
        place = np.searchsorted(bounds[:, 0], self.launch_start, side="right") - 1
        inside = self.linked & (place >= 0) & (self.launch_start < bounds[place, 1])
        return np.where(inside, place, NO_STEP)


def works(trace: Trace) -> list[Work]:
    """An account for each device that worked; the host's where none did."""
    if not len(trace.work):
        return [host_work(trace)]
    return [device_work(trace, int(device)) for device in np.unique(trace.devices)]


def device_work(trace: Trace, device: int) -> Work:
    c = trace.columns
    rows = trace.work[trace.devices == device]
    launch = launches(trace, c["correlation"][rows])
    linked = launch >= 0
    communicates = trace.named(COMMUNICATION)[c["name"][rows]] | np.isin(rows, c["collective_row"])
    copies = trace.of_cat(COPIES)[rows]
    return Work(
        trace=trace,
        device=device,
        rows=rows,
        kind=np.select([copies, communicates], [MEMORY, COMMUNICATING], COMPUTE),
        launch_start=np.where(linked, c["start"][launch], -1),
        launch_end=np.where(linked, c["end"][launch], -1),
        linked=linked,
        own=c["end"][rows] - c["start"][rows],
    )


def launches(trace: Trace, correlation: Column) -> Column:
    """The row of the call that launched each correlation, -1 where the file has none."""
    calls = np.flatnonzero(trace.of_cat(LAUNCHES) & (trace.columns["correlation"] >= 0))
    if not len(calls):
        return np.full(len(correlation), -1)
    calls = calls[np.argsort(trace.columns["correlation"][calls], kind="stable")]
    known = trace.columns["correlation"][calls]
    place = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
    return np.where(known[place] == correlation, calls[place], -1)


def host_work(trace: Trace) -> Work:
    """Operators outside the collectives' own threads, and the collectives that ran there."""
    c = trace.columns
    collective = trace.named(HOST_COLLECTIVE)[c["name"]] & trace.of_cat(ANNOTATIONS)
    busy_threads = np.unique(c["tid"][collective])
    communicates = trace.named(HOST_COMMUNICATION)[c["name"]]
    steps = np.isin(c["name"], [i for i, name in enumerate(trace.names) if name.startswith("ProfilerStep")])
    ops = trace.of_cat(OPS) & ~communicates & ~steps & ~np.isin(c["tid"], busy_threads)
    rows = np.flatnonzero(ops | collective)
    start, end = c["start"][rows], c["end"][rows]
    return Work(
        trace=trace,
        device=None,
        rows=rows,
        kind=np.where(collective[rows], COMMUNICATING, COMPUTE),
        launch_start=start,
        launch_end=end,
        linked=np.ones(len(rows), bool),
        own=own_time(c["pid"][rows], c["tid"][rows], start, end),
    )


def own_time(pid: Column, tid: Column, start: Column, end: Column) -> Column:
    """Each event's length less that of the events directly inside it on the same thread."""
    order = np.lexsort((-end, start, tid, pid))
    own = (end - start).tolist()
    open_events: list[tuple[int, int]] = []  # (row, end) from the outermost in
    thread = None
    columns = (order.tolist(), pid[order].tolist(), tid[order].tolist(), start[order].tolist(), end[order].tolist())
    for row, process, lane, begins, ends in zip(*columns, strict=True):
        if thread != (process, lane):
            thread, open_events = (process, lane), []
        while open_events and open_events[-1][1] <= begins:
            open_events.pop()
        if open_events:
            outer, outer_end = open_events[-1]
            own[outer] -= min(ends, outer_end) - begins
        open_events.append((row, ends))
    return np.maximum(np.array(own, np.int64), 0)


def idle_parts(work: Work) -> tuple[int, int]:
    """The gaps between events, as (host, queue): until the next one's launch call returned, and after."""
    if not len(work.rows):
        return 0, 0
    low, high = merge(work.start, work.end)
    begins, ends = high[:-1], low[1:]
    order = np.lexsort((~work.linked, work.start))
    following = order[np.searchsorted(work.start[order], ends)]
    launched = np.where(work.linked[following], work.launch_end[following], begins)
    host = int((np.clip(launched, begins, ends) - begins).sum())
    return host, int((ends - begins).sum()) - host
