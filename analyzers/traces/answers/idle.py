"""Why nothing runs: gaps between the events of an account, and communication that holds up what is already launched."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from analyzers.columns import Column
from analyzers.traces.answers.launches import waiting_calls
from analyzers.traces.columns.intervals import COMMUNICATION, COMPUTE, merge
from analyzers.traces.columns.phases import HOST_PHASES, phase_intervals
from analyzers.traces.columns.work import Work

Intervals = tuple[Column, Column]
LATENCY_NS = 30_000
"""A kernel begins some us after its launching call, on an idle stream; more needs a reason."""


@dataclass(frozen=True)
class Idle:
    """The gaps of an account by cause, in ns; see `answers.RankTrace`."""

    host: int = 0
    dependency: int = 0
    launch: int = 0
    unexplained: int = 0


def idle(work: Work) -> Idle:
    """Divide each gap by when the event behind it was launched."""
    if not len(work.rows):
        return Idle()
    low, high = merge(work.start, work.end)
    begin, end = high[:-1], low[1:]
    behind = following(work, end)
    linked = work.linked[behind]
    launched = np.clip(np.where(linked, work.launch_end[behind], begin), begin, end)
    queued = linked & (work.launch_end[behind] <= begin)
    rest = end - launched
    latency = np.where(linked & ~queued, np.minimum(rest, LATENCY_NS), 0)
    return Idle(
        host=int((launched - begin).sum()),
        dependency=int(rest[queued].sum()),
        launch=int(latency.sum()),
        unexplained=int((rest - latency)[~queued].sum()),
    )


def following(work: Work, at: Column) -> Column:
    """The position of the event that begins at each of these moments; of several one whose launch is known."""
    order = np.lexsort((~work.linked, work.start))
    return order[np.searchsorted(work.start[order], at)]


def exposed(work: Work) -> Intervals:
    """Disjoint intervals in which communication runs and no computing."""
    return without(of_kind(work, COMMUNICATION), of_kind(work, COMPUTE))


def of_kind(work: Work, kind: int) -> Intervals:
    """The disjoint intervals in which work of one kind runs."""
    return merge(work.start[work.kind == kind], work.end[work.kind == kind])


def without(one: Intervals, other: Intervals) -> Intervals:
    """What is left of disjoint intervals outside others that are disjoint too."""
    return pieces(one, other, lambda inside, beside: inside & ~beside)


def common(one: Intervals, other: Intervals) -> Intervals:
    """What lies in two sets of disjoint intervals."""
    return pieces(one, other, lambda inside, beside: inside & beside)


def pieces(one: Intervals, other: Intervals, keep: Callable[[Column, Column], Column]) -> Intervals:
    """The stretches chosen by whether they lie in each of two sets of disjoint intervals."""
    edges = np.sort(np.concatenate([*one, *other]))
    begin = edges[:-1]  # nothing changes between two edges, so the first instant of each piece speaks for it
    chosen = keep(within(begin, one), within(begin, other))
    return merge(begin[chosen], edges[1:][chosen])


def within(at: Column, intervals: Intervals) -> Column:
    """Which instants lie in one of the disjoint ascending intervals."""
    start, end = intervals
    if not len(start):
        return np.zeros(len(at), bool)
    place = np.searchsorted(start, at, side="right") - 1
    inside: Column = (place >= 0) & (at < end[place])
    return inside


def blocking(work: Work) -> Intervals:
    """Disjoint intervals of exposed communication that something waited for: a computing kernel that was launched
    already and began at its end, or the host in a call that synchronises.

    The operators of a host wait for nothing else, so there it is all of it but for the phases of the host's own.
    """
    bare = exposed(work)
    if work.device is None:
        return without(bare, merge(*phase_intervals(work.trace, HOST_PHASES)))
    rows, c = waiting_calls(work.trace), work.trace.columns
    return union(held_up(work, bare), common(bare, merge(c["start"][rows], c["end"][rows])))


def standing(work: Work) -> Intervals:
    """The intervals of `blocking`, and the exposed communication during which the host launched nothing, but for its
    phases: whether it waited for the end is then not told, but likely.
    """
    start, end = exposed(work)
    if work.device is None:
        return blocking(work)
    launched = np.sort(work.launch_start[work.linked & (work.kind == COMPUTE)])
    idle = np.searchsorted(launched, start) == np.searchsorted(launched, end)
    return union(blocking(work), without((start[idle], end[idle]), merge(*phase_intervals(work.trace, HOST_PHASES))))


def union(one: Intervals, other: Intervals) -> Intervals:
    return merge(np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]]))


def held_up(work: Work, bare: Intervals) -> Intervals:
    """The exposed communication behind which a kernel begins that had been launched before its end."""
    start, end = bare
    order = np.lexsort((work.launch_end, work.start))
    order = order[((work.kind == COMPUTE) & work.linked)[order]]
    if not len(order):
        return end[:0], end[:0]
    place = np.searchsorted(work.start[order], end)
    behind = order[np.minimum(place, len(order) - 1)]
    soon = (place < len(order)) & (work.start[behind] - end <= LATENCY_NS)
    ready = np.clip(work.launch_end[behind], start, end)
    return ready[soon], end[soon]
