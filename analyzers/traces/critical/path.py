"""Find the critical path of one rank: the chain of work and waiting that determines the duration of the recording.

The path is followed from the end to the start. On the device, an event waited either for another event that ended just
before, or for the call that launched it; the path continues there. On the host, the path runs back to the last call
that waited for the device, and from there to the device event that this call waited for. Every instant belongs to
exactly one piece, so the durations of the pieces add up to the duration of the recording. If the host itself does the
work, only `host_path` is used.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from analyzers.columns import Column, Integers
from analyzers.traces.answers.launches import waiting_calls
from analyzers.traces.columns.intervals import KIND_NAMES
from analyzers.traces.columns.nesting import NONE
from analyzers.traces.critical.host_path import HostPath, PathPiece
from analyzers.traces.reading.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

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
        """The trace rows of the device's events between `start` and `end`, in the order in which these events ended."""
        c = self.trace.columns
        rows = np.flatnonzero((c["account"] == self.account) & (c["start"] < self.end) & (c["end"] > self.start))
        return rows[np.argsort(c["end"][rows], kind="stable")]

    @cached_property
    def ends(self) -> Column:
        """The end of each event of `work`, in ns of the trace's clock."""
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
        """Yield the pieces of the critical path from the end to the start, without gaps."""
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


@dataclass(frozen=True)
class PathSum:
    """The sum of all pieces of a critical path with the same kind and name.

    `saved_ns` is by how much the path becomes shorter if these pieces take half their time.
    """

    kind: str
    name: str
    count: int
    path_ns: int
    saved_ns: int


def path_sums(path: "pd.DataFrame") -> list[PathSum]:
    """Return the pieces of a critical path summed by kind and name, the largest sum first."""
    sums = path.groupby(["kind", "name"], sort=False)["dur_ns"].agg(["sum", "count"]).reset_index()
    return [
        PathSum(kind, name, count, spent, spent - spent // 2)
        for kind, name, spent, count in sums.sort_values("sum", ascending=False, kind="stable").itertuples(index=False)
    ]


def savings_ns(path: "pd.DataFrame", name: str, factor: float) -> int:
    """Return an upper limit for the ns saved in a step if all pieces of its critical path called `name` were faster.

    These pieces would run `factor` times as fast.
    """
    on_path = int(path.loc[path["name"] == name, "dur_ns"].sum())
    return round(on_path * (1 - 1 / factor))
