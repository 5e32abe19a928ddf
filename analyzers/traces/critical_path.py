"""Find the critical path through the threads of a host, which run operators or, on threads of their own, collectives.

The path is followed backwards in time from the end. While a thread runs an operator it waits for nothing else, so the
path stays on this thread. While a thread runs no operator, it may have waited for an event of another thread. If such
an event ended in this time, the path continues with it:

    train     |-- forward --|                                              |-- optimizer --|
    backward                |---- backward ----|
    gloo                                       |------ all_reduce ------|

Backwards from its end this path is: optimizer; all_reduce; the operator of the backward thread that issued the
all_reduce; and, from the start of the backward, forward. A collective waits for the previous collective on its thread,
or for the call that issued it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.traces.columns import COMMUNICATION, KIND_NAMES, NONE, names_in_phases, nest
from analyzers.traces.launches import waiting_calls
from analyzers.traces.model import CriticalPart
from analyzers.traces.reading.trace import ANNOTATIONS, HOST_LANE, LAUNCHES, OPS, PROFILER_STEP, Trace

if TYPE_CHECKING:
    import pandas as pd


_QUEUED_NS = 10_000
"""A collective that begins within this time after another one on its thread ended is taken to have waited for it."""
_WAITED_NS = 50_000
"""The shortest time without an operator that counts as waiting; a shorter one is a pause between two operators."""
_ISSUING_CALL = re.compile(r"^_?c10d\w*::(?!wait)")
_BUSY_PHASES = ("data", "gc", "checkpoint", "log", "profiler")
"""The phases in which a host is busy although it runs no operator."""


class PathPiece(NamedTuple):
    """A piece of the critical path, from `start` to `end` in ns of the trace's clock.

    `row` is the trace row of the event, NONE for a pause. `kind` is the kind of work (compute, communication, memory),
    or the reason of the pause: `dependency` (other work had to end first), `launch latency` (from the launching call to
    the start), `host` (the host did other things) or `unexplained`.
    """

    start: int
    end: int
    kind: str
    row: int = NONE


class HostPosition(NamedTuple):
    """The current position of the backwards search for the critical path: a time (ns of the trace), and a thread.

    `thread` is the index of a thread in `HostPath.threads`. If `collective` is not NONE, the path is not on this thread
    but in the collective with this index in `HostPath.collectives`.
    """

    at: int
    thread: int
    collective: int = NONE


class HostThread:
    """The operators and annotations of one host thread, in order of their start; arrays have an entry for each of them.

    `busy` is a mask of the events that keep the thread busy: during them the thread cannot wait for another thread.
    """

    def __init__(self, trace: Trace, rows: Column, busy: Column) -> None:
        start, end = trace.columns["start"][rows], trace.columns["end"][rows]
        order = np.lexsort((-end, start))
        self.rows, self.start, self.end, self.busy = rows[order], start[order], end[order], busy[order]
        # The parents in the trace may be events of other kinds, so those among these events are found anew.
        _, self.parent = nest(np.zeros(len(order), np.int8), self.start, self.end)
        self.begun = np.sort(self.start[self.busy])
        last = np.lexsort((-self.start[self.busy], self.end[self.busy]))
        self.busy_starts, self.busy_ends = self.start[self.busy][last], self.end[self.busy][last]

    def innermost(self, at: int) -> tuple[int, int | None]:
        """Return the innermost event that runs just before the time `at` (ns), and since when it is the innermost.

        The event is an index on this thread, NONE if none runs. The second value is in ns, None if nothing ran before
        `at`.
        """
        index, since = int(np.searchsorted(self.start, at)) - 1, None
        while index != NONE and self.end[index] < at:
            ended = int(self.end[index])
            since, index = ended if since is None else max(since, ended), int(self.parent[index])
        if index != NONE and since is None:
            since = int(self.start[index])
        return index, since

    def is_busy(self, at: int) -> bool:
        """Return whether an event that keeps the thread busy runs just before the time `at` (ns)."""
        # Counted, as events that cross are not all among the parents of the innermost one.
        return bool(np.searchsorted(self.begun, at) > np.searchsorted(self.busy_ends, at))

    def last_busy(self, at: int) -> tuple[int, int] | None:
        """Return (start, end) of the last event that kept the thread busy and ended at or before `at` (ns)."""
        index = int(np.searchsorted(self.busy_ends, at, side="right")) - 1
        return (int(self.busy_starts[index]), int(self.busy_ends[index])) if index >= 0 else None


@dataclass(frozen=True)
class HostPath:
    """The search for the critical path through a host's threads, from `end` back to `start` (ns of the trace's clock).

    If the host itself does the work, `account` is its number in the trace's column `account`. If a device does the
    work, `account` is None, and every operator and launching call of the host counts as busy.
    """

    trace: Trace
    account: int | None
    start: int
    end: int

    @cached_property
    def keeps_busy(self) -> Mask:
        """A mask of the trace's events that keep the host busy: computing operators, and phases like data loading."""
        c = self.trace.columns
        if self.account is None:
            return self.trace.category_matches(OPS) | self.trace.category_matches(LAUNCHES)
        busy: Mask = names_in_phases(self.trace, _BUSY_PHASES).take(c["name"]) & self.trace.category_matches(
            ANNOTATIONS
        )
        busy |= (c["account"] == self.account) & (c["kind"] != COMMUNICATION)
        return busy

    @cached_property
    def collectives(self) -> Integers:
        """The trace rows of the host's collectives with a duration above zero, in order of their end."""
        c = self.trace.columns
        of_account = (c["account"] == self.account) & (self.account is not None)
        rows = np.flatnonzero(of_account & (c["kind"] == COMMUNICATION) & (c["end"] > c["start"]))
        return rows[np.argsort(c["end"][rows], kind="stable")]

    @cached_property
    def ends(self) -> Column:
        return self.trace.columns["end"][self.collectives]

    @cached_property
    def lanes(self) -> Integers:
        """The lane numbers of the host's threads that run no collectives.

        The thread of the training loop comes first, then the others, the busiest first.
        """
        c = self.trace.columns
        on_host = self.trace.lane_is(HOST_LANE).take(c["lane"])
        eligible = on_host & ~np.isin(c["lane"], np.unique(c["lane"][self.collectives]))
        busy_ns = np.bincount(c["lane"], np.where(eligible & self.keeps_busy, c["end"] - c["start"], 0))
        marked = np.unique(c["lane"][self.trace.name_matches(PROFILER_STEP)])
        busy_ns[marked] += busy_ns.sum() + 1  # the thread of the training loop, however busy another one is
        return np.argsort(-busy_ns, kind="stable")[: int((busy_ns > 0).sum())]

    @cached_property
    def threads(self) -> list[HostThread]:
        """The threads of `lanes`, with their events between `start` and `end`."""
        c = self.trace.columns
        on_threads = (
            (self.trace.category_matches(ANNOTATIONS) | self.trace.category_matches(LAUNCHES))
            & ~self.trace.name_matches(PROFILER_STEP)
            & (c["end"] > c["start"])
        )
        on_threads &= (c["start"] < self.end) & (c["end"] > self.start)
        rows_of_lanes = [np.flatnonzero(on_threads & (c["lane"] == lane)) for lane in self.lanes.tolist()]
        return [HostThread(self.trace, rows, self.keeps_busy[rows]) for rows in rows_of_lanes]

    @cached_property
    def issuing(self) -> Column:
        """For each of `collectives`, the trace row of the call that issued it; NONE if no call comes before it.

        If there are as many calls as collectives, they are paired in their order. Otherwise a collective gets the last
        call before it.
        """
        c = self.trace.columns
        calls = np.flatnonzero(self.trace.name_matches(_ISSUING_CALL) & np.isin(c["lane"], self.lanes))
        calls = calls[np.argsort(c["start"][calls], kind="stable")]
        begun = c["start"][self.collectives]
        latest = np.append(calls, NONE)[np.searchsorted(c["start"][calls], begun, side="right") - 1]
        if len(calls) != len(begun):
            return latest
        # gloo runs collectives in the order of their calls, so the n-th belongs to the n-th call.
        paired = np.empty_like(calls)
        paired[np.argsort(begun, kind="stable")] = calls
        return np.where(c["start"][paired] <= begun, paired, latest)

    def pieces(self) -> Iterator[PathPiece]:
        return self.between(self.start, self.end)

    def between(self, start: int, end: int, lane: int | None = None) -> Iterator[PathPiece]:
        """Yield the pieces of the path from `end` back to `start`; the search begins on the thread of lane `lane`.

        If there is no such thread, or `lane` is None, the search begins on the thread of the training loop.
        """
        position = HostPosition(end, self.thread_index(lane))
        while position.at > start and self.threads:
            step = self.through_collective if position.collective != NONE else self.along_thread
            position, pieces = step(position, start)
            for piece in pieces:
                if piece.end > max(piece.start, start):
                    yield piece._replace(start=max(piece.start, start))
        if position.at > start:
            yield PathPiece(start, position.at, "host")

    def thread_index(self, lane: int | None) -> int:
        return self.lanes.tolist().index(lane) if lane in self.lanes.tolist() else 0

    def along_thread(self, position: HostPosition, start: int) -> tuple[HostPosition, list[PathPiece]]:
        """Follow the path backwards on the thread of `position`, through one event or through one pause of the thread.

        Return the new position, and the pieces of the path in between, the latest first. If the thread waited for
        another thread or for a collective, the new position is there. `start` is the time (ns) at which the whole path
        begins.
        """
        thread = self.threads[position.thread]
        if thread.is_busy(position.at):
            piece = self.piece_before(thread, position.at, start)
            return HostPosition(piece.start, position.thread), [piece]
        before = thread.last_busy(position.at)
        idle_since = max(before[1], start) if before else start
        awaited = self.awaited(position, idle_since)
        awaited = awaited if awaited and awaited.at > start else None
        until = awaited.at if awaited else idle_since
        pieces, at = list[PathPiece](), position.at
        while at > until:
            pieces.append(self.piece_before(thread, at, until))
            at = pieces[-1].start
        return awaited or HostPosition(until, position.thread), pieces

    def piece_before(self, thread: HostThread, at: int, until: int) -> PathPiece:
        """Return the piece of the path on `thread` that ends at the time `at` (ns of the trace's clock).

        The piece is the innermost event that runs just before `at`, or a pause of kind `host` if none runs. It begins
        where this event became the innermost one, but not before `until`.
        """
        index, since = thread.innermost(at)
        begun = until if since is None else max(since, until)
        if index == NONE:
            return PathPiece(begun, at, "host")
        row = int(thread.rows[index])
        kind = int(self.trace.columns["kind"][row])
        return PathPiece(begun, at, KIND_NAMES[kind] if kind >= 0 else "host", row)

    def awaited(self, position: HostPosition, idle_since: int) -> HostPosition | None:
        """Return the position where the path continues if the thread of `position` waited for an event, else None.

        The position is the end of the awaited event. The thread is idle since `idle_since` (ns). There are two kinds of
        candidates: a collective, or an operator of another thread, that ended more than 50 µs after `idle_since`; and
        an operator of another thread that began after `idle_since`, as when one thread hands over to another for a
        short time. The candidate with the latest end is taken.
        """
        ends = []
        last_collective = int(np.searchsorted(self.ends, position.at, side="right")) - 1
        if last_collective >= 0 and self.ends[last_collective] > idle_since + _WAITED_NS:
            ends.append(HostPosition(int(self.ends[last_collective]), position.thread, last_collective))
        for number, thread in enumerate(self.threads):
            last = thread.last_busy(position.at) if number != position.thread else None
            if last and (last[1] > idle_since + _WAITED_NS or last[0] >= idle_since):
                ends.append(HostPosition(last[1], number))
        return max(ends, key=lambda end: (end.at, end.collective == NONE), default=None)

    def through_collective(self, position: HostPosition, _start: int) -> tuple[HostPosition, list[PathPiece]]:
        """Follow the path backwards through the collective of `position`, to the event that it waited for.

        The awaited event is the previous collective on the same thread, or the call that issued the collective. Return
        the end of this event as a position, and the pieces of the path in between, the latest first.
        """
        c, row = self.trace.columns, int(self.collectives[position.collective])
        begun = max(int(c["start"][row]), self.start)
        pieces = [PathPiece(begun, position.at, KIND_NAMES[COMMUNICATION], row)]
        call = int(self.issuing[position.collective])
        issued = min(max(int(c["end"][call]), self.start), begun) if call != NONE else begun
        before = self.queued_behind(row, begun)
        if before != NONE and issued <= self.ends[before]:
            ended = max(int(self.ends[before]), self.start)
            queued = PathPiece(ended, begun, "dependency")
            return HostPosition(ended, position.thread, before), [*pieces, queued]
        lane = int(c["lane"][call]) if call != NONE else None
        latency = PathPiece(issued, begun, "launch latency")
        return HostPosition(issued, self.thread_index(lane)), [*pieces, latency]

    def queued_behind(self, row: int, begun: int) -> int:
        """Return the index in `collectives` of the collective that another one waited for on the same thread, or NONE.

        The waiting collective is in trace row `row` and began at the time `begun` (ns of the trace). The awaited one
        ended at most `_QUEUED_NS` before `begun`.
        """
        c = self.trace.columns
        for index in range(int(np.searchsorted(self.ends, begun, side="right")) - 1, NONE, -1):
            if begun - self.ends[index] > _QUEUED_NS:
                break
            if c["lane"][self.collectives[index]] == c["lane"][row]:
                return index
        return NONE


# Find the critical path of one rank: the chain of work and waiting that determines the duration of the recording.
#
# The path is followed from the end to the start. On the device, an event waited either for another event that ended
# just before, or for the call that launched it; the path continues there. On the host, the path runs back to the last
# call that waited for the device, and from there to the device event that this call waited for. Every instant belongs
# to exactly one piece, so the durations of the pieces add up to the duration of the recording. If the host itself
# does the work, only `host_path` is used.

_HANDOVER_NS = 10_000
"""A launched kernel that starts within this time in ns after other work ended is taken to have waited for it."""


class Position(NamedTuple):
    """The current position of the backwards search for the critical path: a time (ns of the trace), on device or host.

    On a device, `work_index` is the index in `DevicePath.work` of the event that ends then. On the host `work_index` is
    NONE and `lane` is the number of the thread's lane. The path may only continue with work whose index is less than
    `below`; without this limit, events of zero duration could lead in a circle.
    """

    at: int
    work_index: int
    below: int
    lane: int | None = None


@dataclass(frozen=True)
class DevicePath:
    """The search for the critical path through a device's work, from `end` back to `start` (ns of the trace's clock).

    `account` is the number of the device in the trace's column `account`.
    """

    trace: Trace
    account: int
    start: int
    end: int

    @cached_property
    def work(self) -> Integers:
        c = self.trace.columns
        rows = np.flatnonzero((c["account"] == self.account) & (c["start"] < self.end) & (c["end"] > self.start))
        return rows[np.argsort(c["end"][rows], kind="stable")]

    @cached_property
    def ends(self) -> Column:
        return self.trace.columns["end"][self.work]

    @cached_property
    def waits(self) -> tuple[Column, Column]:
        """The host's calls that wait for the device, in order of their end: their trace rows and ends (ns)."""
        rows = waiting_calls(self.trace)
        end = self.trace.columns["end"][rows]
        order = np.argsort(end, kind="stable")
        return rows[order], end[order]

    @cached_property
    def host(self) -> HostPath:
        """The search through the host's threads, for the parts of the path that are on the host."""
        return HostPath(self.trace, None, self.start, self.end)

    def last_ended(self, at: int, below: int) -> int:
        """Return the index in `work` of the last event that ended at or before the time `at`, or NONE.

        Only events with an index less than `below` count.
        """
        return min(int(np.searchsorted(self.ends, at, side="right")), below) - 1

    def pieces(self) -> Iterator[PathPiece]:
        last = self.last_ended(self.end, len(self.work))
        position = Position(self.end, last, len(self.work))
        while position.at > self.start:
            lane = position.lane
            position, pieces = (self.on_host if position.work_index == NONE else self.on_device)(position)
            for piece in (piece for piece in pieces if piece.end > piece.start):
                yield from self.host.between(piece.start, piece.end, lane) if piece.kind == "host" else [piece]

    def on_device(self, position: Position) -> tuple[Position, list[PathPiece]]:
        """Follow the path backwards through one event of the device, to the event or the call that it waited for.

        Return the end of the awaited event or call as a position, and the pieces of the path in between, the latest
        first. These are the pause between the event's end and the given position, the event itself, and its waiting
        time before its start.
        """
        c, row = self.trace.columns, int(self.work[position.work_index])
        end = min(int(c["end"][row]), position.at)
        start = min(max(int(c["start"][row]), self.start), end)
        pieces = [PathPiece(end, position.at, "host"), PathPiece(start, end, KIND_NAMES[int(c["kind"][row])], row)]
        before = self.last_ended(start, position.work_index)
        ended = max(int(self.ends[before]), self.start) if before != NONE else self.start
        launch = int(c["launch"][row])
        # A call may return after its kernel has begun; then the path enters the call at the kernel's start.
        called = min(int(c["end"][launch]), start) if launch != NONE else NONE
        if called == NONE or (called <= ended and start - ended <= _HANDOVER_NS):
            kind = "unexplained" if launch == NONE else "dependency"
            return Position(ended, before, position.work_index), [*pieces, PathPiece(ended, start, kind)]
        called = max(called, self.start)
        latency = PathPiece(called, start, "launch latency")
        return Position(called, NONE, position.work_index, int(c["lane"][launch])), [*pieces, latency]

    def on_host(self, position: Position) -> tuple[Position, list[PathPiece]]:
        """Follow the path backwards through the host's time, to the end of the last call that waited for the device.

        Return two things: the end of the device event that this call waited for, as a position, and the host's time in
        between as one piece. If the call waited for no recorded event, the position is the start of the call on the
        host.
        """
        rows, ends = self.waits
        wait = int(np.searchsorted(ends, position.at, side="right")) - 1
        if wait < 0 or ends[wait] <= self.start:
            return Position(self.start, NONE, 0), [PathPiece(self.start, position.at, "host")]
        row, until = int(rows[wait]), int(ends[wait])
        began = max(int(self.trace.columns["start"][row]), self.start)
        before = self.last_ended(until, position.below)
        if before != NONE and self.ends[before] > began:
            return Position(until, before, position.below), [PathPiece(until, position.at, "host")]
        # The call waited for nothing that the trace has; at least 1 ns is passed, so that the walk ends.
        back = min(began, position.at - 1)
        lane = int(self.trace.columns["lane"][row])
        return Position(back, NONE, position.below, lane), [PathPiece(back, position.at, "host")]


def critical_path(trace: Trace, account: int = 0, window: tuple[int, int] | None = None) -> "pd.DataFrame":
    """Return the critical path of a device or host as a table with a row per piece, in order of time.

    `account` is the index of the device or host in the trace; `window` is (start, end) in ns from the first event
    (default: everything). Columns: start_ns (from the first event), dur_ns, kind (see `host_path.PathPiece`), name
    (empty for a pause) and row (the trace row of the event, or -1). The durations add up to the duration of the window.
    """
    import pandas as pd  # a quarter of a second that readers of traces can do without

    c = trace.columns
    last = int(np.max(c["end"][c["account"] == account], initial=trace.origin))
    start, end = (trace.origin + edge for edge in window) if window else (trace.origin, last)
    on_host = trace.columns.meta["accounts"][account]["device"] is None
    pieces = sorted((HostPath if on_host else DevicePath)(trace, account, start, end).pieces())
    return pd.DataFrame(
        {
            "start_ns": np.array([piece.start - trace.origin for piece in pieces], np.int64),
            "dur_ns": np.array([piece.end - piece.start for piece in pieces], np.int64),
            "kind": [piece.kind for piece in pieces],
            "name": [trace.names[c["name"][piece.row]] if piece.row != NONE else "" for piece in pieces],
            "row": np.array([piece.row for piece in pieces], np.int64),
        }
    )


def path_sums(path: "pd.DataFrame", rank: int | None, device: int | None, step: int | None) -> list[CriticalPart]:
    """Return the pieces of a critical path summed by kind and name, the largest sum first."""
    sums = path.groupby(["kind", "name"], sort=False)["dur_ns"].agg(["sum", "count"]).reset_index()
    return [
        CriticalPart(
            rank=rank, device=device, step=step, kind=kind, name=name, count=count, path_ns=ns, saved_ns=ns - ns // 2
        )
        for kind, name, ns, count in sums.sort_values("sum", ascending=False, kind="stable").itertuples(index=False)
    ]
