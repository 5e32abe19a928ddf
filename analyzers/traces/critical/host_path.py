"""The critical path where the host itself does the work: operators of all its threads, and collectives on their own.

Going back from the end, a thread that runs an operator was held up by nothing else. Where it runs none, and something
that it may have waited for ended meanwhile, the path goes over to that: a collective, from which it goes on at the call
that issued it, or an operator of another thread, as the one that runs the backward.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from analyzers.columns import Column
from analyzers.traces.columns.intervals import COMMUNICATION, KIND_NAMES
from analyzers.traces.columns.nesting import NONE, nest
from analyzers.traces.columns.phases import names_in_phases
from analyzers.traces.model import ANNOTATIONS, HOST_LANE, LAUNCHES, OPS, PROFILER_STEP, Trace

JUST_NS = 10_000
"""A collective that begins so shortly behind another one of its thread has queued for it."""
WAITED_NS = 50_000
"""A thread that runs no operator for less than this is on its way to the next one; waiting takes longer."""
ISSUES = re.compile(r"^_?c10d\w*::(?!wait)")
OWN = ("data", "gc", "checkpoint", "log", "profiler")
"""Phases in which a host is busy with something else than waiting for others."""


class Piece(NamedTuple):
    """A stretch of the path; `kind` is that of the work, else `dependency`, `launch latency`, `unexplained` or `host`.

    `row` is the event of the trace, NONE for what is none.
    """

    start: int
    end: int
    kind: str
    row: int = NONE


class State(NamedTuple):
    """Where the walk is: a moment, and on which thread, or in which collective."""

    at: int
    thread: int
    collective: int = NONE


class Thread:
    """The operators and annotations of one thread, in order of their beginning; `busy` ones are no waiting."""

    def __init__(self, trace: Trace, rows: Column, busy: Column) -> None:
        start, end = trace.columns["start"][rows], trace.columns["end"][rows]
        order = np.lexsort((-end, start))
        self.rows, self.start, self.end, self.busy = rows[order], start[order], end[order], busy[order]
        _, self.parent = nest(np.zeros(len(order), np.int8), self.start, self.end)
        self.begun = np.sort(self.start[self.busy])
        last = np.lexsort((-self.start[self.busy], self.end[self.busy]))
        self.busy_starts, self.busy_ends = self.start[self.busy][last], self.end[self.busy][last]

    def innermost(self, at: int) -> tuple[int, int | None]:
        """(place of the innermost event that runs just before a moment, or NONE; since when; None: since ever)."""
        place, since = int(np.searchsorted(self.start, at)) - 1, None
        while place != NONE and self.end[place] < at:
            ended = int(self.end[place])
            since, place = ended if since is None else max(since, ended), int(self.parent[place])
        if place != NONE and since is None:
            since = int(self.start[place])
        return place, since

    def works(self, at: int) -> bool:
        """Whether something busy runs just before a moment."""
        # Counted, as events that cross are not all among the parents of the innermost one.
        return bool(np.searchsorted(self.begun, at) > np.searchsorted(self.busy_ends, at))

    def last_busy(self, at: int) -> tuple[int, int] | None:
        """When the busy event that ended last until a moment began and ended."""
        place = int(np.searchsorted(self.busy_ends, at, side="right")) - 1
        return (int(self.busy_starts[place]), int(self.busy_ends[place])) if place >= 0 else None


@dataclass(frozen=True)
class HostPath:
    """A walk through the threads of a host from `end` back to `start`, in ns of the trace.

    Without an account whatever runs on the host is its work: it only launches what a device does.
    """

    trace: Trace
    account: int | None
    start: int
    end: int

    @cached_property
    def working(self) -> Column:
        """A flag for each event: is it an operator that computes, or a phase of the host's own?"""
        c = self.trace.columns
        if self.account is None:
            return self.trace.category_matches(OPS) | self.trace.category_matches(LAUNCHES)
        found: Column = names_in_phases(self.trace, OWN)[c["name"]] & self.trace.category_matches(ANNOTATIONS)
        found |= (c["account"] == self.account) & (c["kind"] != COMMUNICATION)
        return found

    @cached_property
    def collectives(self) -> Column:
        """Rows of the collectives that last, in order of their end."""
        c = self.trace.columns
        mine = (c["account"] == self.account) & (self.account is not None)
        rows = np.flatnonzero(mine & (c["kind"] == COMMUNICATION) & (c["end"] > c["start"]))
        return rows[np.argsort(c["end"][rows], kind="stable")]

    @cached_property
    def ends(self) -> Column:
        return self.trace.columns["end"][self.collectives]

    @cached_property
    def lanes(self) -> Column:
        """Those of the host's threads on which no collective runs; the busiest one first."""
        c = self.trace.columns
        on_host = np.array([one["kind"] == HOST_LANE for one in c.meta["lanes"]] or [False])
        chosen = on_host[c["lane"]] & ~np.isin(c["lane"], np.unique(c["lane"][self.collectives]))
        spent = np.bincount(c["lane"], np.where(chosen & self.working, c["end"] - c["start"], 0))
        marked = np.unique(c["lane"][self.trace.name_matches(PROFILER_STEP)])
        spent[marked] += spent.sum() + 1  # the thread of the training loop, whatever another one does
        return np.argsort(-spent, kind="stable")[: int((spent > 0).sum())]

    @cached_property
    def threads(self) -> list[Thread]:
        c = self.trace.columns
        told = (
            (self.trace.category_matches(ANNOTATIONS) | self.trace.category_matches(LAUNCHES))
            & ~self.trace.name_matches(PROFILER_STEP)
            & (c["end"] > c["start"])
        )
        told &= (c["start"] < self.end) & (c["end"] > self.start)
        chosen = [np.flatnonzero(told & (c["lane"] == lane)) for lane in self.lanes.tolist()]
        return [Thread(self.trace, rows, self.working[rows]) for rows in chosen]

    @cached_property
    def issuing(self) -> Column:
        """Of each collective the row of the call that issued it, NONE where there is none before it."""
        c = self.trace.columns
        calls = np.flatnonzero(self.trace.name_matches(ISSUES) & np.isin(c["lane"], self.lanes))
        calls = calls[np.argsort(c["start"][calls], kind="stable")]
        begun = c["start"][self.collectives]
        latest = np.append(calls, NONE)[np.searchsorted(c["start"][calls], begun, side="right") - 1]
        if len(calls) != len(begun):
            return latest
        paired = np.empty_like(calls)
        paired[np.argsort(begun, kind="stable")] = calls
        return np.where(c["start"][paired] <= begun, paired, latest)

    def pieces(self) -> Iterator[Piece]:
        """From the end to the start, without gaps."""
        return self.between(self.start, self.end)

    def between(self, start: int, end: int, lane: int | None = None) -> Iterator[Piece]:
        """The same from a moment back to another one, beginning on the thread of a lane."""
        state = State(end, self.number(lane))
        while state.at > start and self.threads:
            state, found = self.in_collective(state) if state.collective != NONE else self.on_thread(state, start)
            for piece in found:
                if piece.end > max(piece.start, start):
                    yield piece._replace(start=max(piece.start, start))
        if state.at > start:
            yield Piece(start, state.at, "host")

    def number(self, lane: int | None) -> int:
        """The place of a lane's thread; that of the busiest one where it has none."""
        return self.lanes.tolist().index(lane) if lane in self.lanes.tolist() else 0

    def on_thread(self, state: State, start: int) -> tuple[State, list[Piece]]:
        """What the thread runs, or what it waits for."""
        thread = self.threads[state.thread]
        if thread.works(state.at):
            piece = self.stretch(thread, state.at, start)
            return State(piece.start, state.thread), [piece]
        before = thread.last_busy(state.at)
        since = max(before[1], start) if before else start
        other = self.ended(state, since)
        other = other if other and other.at > start else None
        until = other.at if other else since
        found, at = [], state.at
        while at > until:
            found.append(self.stretch(thread, at, until))
            at = found[-1].start
        return other or State(until, state.thread), found

    def stretch(self, thread: Thread, at: int, until: int) -> Piece:
        """What a thread is in until a moment, as far back as it is just that."""
        place, since = thread.innermost(at)
        begun = until if since is None else max(since, until)
        if place == NONE:
            return Piece(begun, at, "host")
        row = int(thread.rows[place])
        kind = int(self.trace.columns["kind"][row])
        return Piece(begun, at, KIND_NAMES[kind] if kind >= 0 else "host", row)

    def ended(self, state: State, since: int) -> State | None:
        """What else ended last while the state's thread ran nothing, if it may have waited for that.

        It was idle for long before; or another thread began too, as when one hands over to the other for a moment.
        """
        found = []
        place = int(np.searchsorted(self.ends, state.at, side="right")) - 1
        if place >= 0 and self.ends[place] > since + WAITED_NS:
            found.append(State(int(self.ends[place]), state.thread, place))
        for number, thread in enumerate(self.threads):
            last = thread.last_busy(state.at) if number != state.thread else None
            if last and (last[1] > since + WAITED_NS or last[0] >= since):
                found.append(State(last[1], number))
        return max(found, key=lambda one: (one.at, one.collective == NONE), default=None)

    def in_collective(self, state: State) -> tuple[State, list[Piece]]:
        """A collective, and what it was held up by: one before it on its thread, or the call that issued it."""
        c, row = self.trace.columns, int(self.collectives[state.collective])
        begun = max(int(c["start"][row]), self.start)
        found = [Piece(begun, state.at, KIND_NAMES[COMMUNICATION], row)]
        call = int(self.issuing[state.collective])
        issued = min(max(int(c["end"][call]), self.start), begun) if call != NONE else begun
        before = self.queued_behind(row, begun)
        if before != NONE and issued <= self.ends[before]:
            ended = max(int(self.ends[before]), self.start)
            return State(ended, state.thread, before), [*found, Piece(ended, begun, "dependency")]
        lane = int(c["lane"][call]) if call != NONE else None
        return State(issued, self.number(lane)), [*found, Piece(issued, begun, "launch latency")]

    def queued_behind(self, row: int, begun: int) -> int:
        """The place of the collective of the same thread that ended just before; NONE where none did."""
        c = self.trace.columns
        for place in range(int(np.searchsorted(self.ends, begun, side="right")) - 1, NONE, -1):
            if begun - self.ends[place] > JUST_NS:
                break
            if c["lane"][self.collectives[place]] == c["lane"][row]:
                return place
        return NONE
