"""The critical path of one rank: the chain of work and waiting that the recorded time consists of, end to start.

Every instant belongs to exactly one piece, so the pieces add up to the window. From an event of the device the path
goes on at whatever held it up until it began: another event that ended just then, or the call that launched it. On the
host it runs back to the last call that waited for the device, and from there over to what that call waited for. Where
the host itself does the work, `critical_host` tells it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from analyzers.columns import Column
from analyzers.traces.answers.launches import waiting_calls
from analyzers.traces.columns.intervals import KIND_NAMES
from analyzers.traces.columns.nesting import NONE
from analyzers.traces.critical.host_path import HostPath, Piece
from analyzers.traces.model import Trace

if TYPE_CHECKING:
    import pandas as pd

JUST_NS = 10_000
"""Work that ended so shortly before a kernel began may have held it up, if the kernel had been launched by then."""


class State(NamedTuple):
    """Where the walk is: a moment, and the place in the work of an event that ends there, or NONE on the host (`lane`).

    Only work before the place `below` comes into question any more, so the walk ends.
    """

    at: int
    place: int
    below: int
    lane: int | None = None


@dataclass(frozen=True)
class Path:
    """A walk through the work of an account from `end` back to `start`, in ns of the trace."""

    trace: Trace
    account: int
    start: int
    end: int

    @cached_property
    def work(self) -> Column:
        """Rows of the account's work, in order of their end."""
        c = self.trace.columns
        rows = np.flatnonzero((c["account"] == self.account) & (c["start"] < self.end) & (c["end"] > self.start))
        return rows[np.argsort(c["end"][rows], kind="stable")]

    @cached_property
    def ends(self) -> Column:
        return self.trace.columns["end"][self.work]

    @cached_property
    def waits(self) -> tuple[Column, Column]:
        """(row, end) of the calls that wait for the device, in order of their end."""
        rows = waiting_calls(self.trace)
        end = self.trace.columns["end"][rows]
        order = np.argsort(end, kind="stable")
        return rows[order], end[order]

    @cached_property
    def host(self) -> HostPath:
        return HostPath(self.trace, None, self.start, self.end)

    def last_ended(self, at: int, below: int) -> int:
        """The place of the work that ended last until a moment; NONE before all."""
        return min(int(np.searchsorted(self.ends, at, side="right")), below) - 1

    def pieces(self) -> Iterator[Piece]:
        """From the end to the start, without gaps."""
        last = self.last_ended(self.end, len(self.work))
        state = State(self.end, last, len(self.work))
        while state.at > self.start:
            lane = state.lane
            state, found = (self.on_host if state.place == NONE else self.on_device)(state)
            for piece in (one for one in found if one.end > one.start):
                yield from self.host.between(piece.start, piece.end, lane) if piece.kind == "host" else [piece]

    def on_device(self, state: State) -> tuple[State, list[Piece]]:
        """An event, the pause behind it, and what held it up before it began."""
        c, row = self.trace.columns, int(self.work[state.place])
        end = min(int(c["end"][row]), state.at)
        start = min(max(int(c["start"][row]), self.start), end)
        found = [Piece(end, state.at, "host"), Piece(start, end, KIND_NAMES[int(c["kind"][row])], row)]
        before = self.last_ended(start, state.place)
        ended = max(int(self.ends[before]), self.start) if before != NONE else self.start
        launch = int(c["launch"][row])
        called = min(int(c["end"][launch]), start) if launch != NONE else NONE
        if called == NONE or (called <= ended and start - ended <= JUST_NS):
            kind = "unexplained" if launch == NONE else "dependency"
            return State(ended, before, state.place), [*found, Piece(ended, start, kind)]
        called = max(called, self.start)
        return State(called, NONE, state.place, int(c["lane"][launch])), [
            *found,
            Piece(called, start, "launch latency"),
        ]

    def on_host(self, state: State) -> tuple[State, list[Piece]]:
        """The host's time back to the last call that waited for the device, and what that waited for."""
        rows, ends = self.waits
        place = int(np.searchsorted(ends, state.at, side="right")) - 1
        if place < 0 or ends[place] <= self.start:
            return State(self.start, NONE, 0), [Piece(self.start, state.at, "host")]
        row, until = int(rows[place]), int(ends[place])
        began = max(int(self.trace.columns["start"][row]), self.start)
        before = self.last_ended(until, state.below)
        if before != NONE and self.ends[before] > began:
            return State(until, before, state.below), [Piece(until, state.at, "host")]
        back = min(began, state.at - 1)
        return State(back, NONE, state.below, int(self.trace.columns["lane"][row])), [Piece(back, state.at, "host")]


def critical_path(trace: Trace, account: int = 0, window: tuple[int, int] | None = None) -> "pd.DataFrame":
    """The path through a window (all by default; ns from the first event), in order of time: start_ns, dur_ns, kind,
    name, row. The durations add up to the window's.
    """
    import pandas as pd  # a quarter of a second that readers of traces can do without

    c = trace.columns
    last = int(np.max(c["end"][c["account"] == account], initial=trace.origin))
    start, end = (trace.origin + edge for edge in window) if window else (trace.origin, last)
    on_host = trace.columns.meta["accounts"][account]["device"] is None
    pieces = sorted((HostPath if on_host else Path)(trace, account, start, end).pieces())
    return pd.DataFrame(
        {
            "start_ns": np.array([piece.start - trace.origin for piece in pieces], np.int64),
            "dur_ns": np.array([piece.end - piece.start for piece in pieces], np.int64),
            "kind": [piece.kind for piece in pieces],
            "name": [trace.names[c["name"][piece.row]] if piece.row != NONE else "" for piece in pieces],
            "row": np.array([piece.row for piece in pieces], np.int64),
        }
    )


def held(path: "pd.DataFrame") -> list[dict[str, Any]]:
    """What the path consists of, by kind and name, the longest first: the fields of `answers.Held` but whose it is."""
    sums = path.groupby(["kind", "name"], sort=False)["dur_ns"].agg(["sum", "count"]).reset_index()
    return [
        {"kind": kind, "name": name, "count": count, "path_ns": spent, "saved_ns": spent - spent // 2}
        for kind, name, spent, count in sums.sort_values("sum", ascending=False, kind="stable").itertuples(index=False)
    ]


def if_faster(path: "pd.DataFrame", name: str, factor: float) -> int:
    """At most by how many ns the window would be shorter if everything of this name took 1 / `factor` of its time."""
    on_path = int(path.loc[path["name"] == name, "dur_ns"].sum())
    return round(on_path * (1 - 1 / factor))


def in_columns(path: "pd.DataFrame", column_ns: int) -> "pd.DataFrame":
    """A path, ready to draw: neighbours that are narrower than a column, and begin in the same one, are put together.

    Each is named after its longest piece; `count` tells how many it has.
    """
    wide = path["dur_ns"] >= column_ns
    begins = wide | wide.shift(fill_value=True) | (path["start_ns"] // max(1, column_ns)).diff().ne(0)
    parts = path.groupby(begins.cumsum())["dur_ns"]
    longest = path.loc[parts.idxmax()]
    starts = path["start_ns"][begins].to_numpy()
    found = longest.assign(start_ns=starts, dur_ns=parts.sum().to_numpy(), count=parts.count().to_numpy())
    return found.reset_index(drop=True)
