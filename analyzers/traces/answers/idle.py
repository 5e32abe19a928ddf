"""Find out why a device does not compute: gaps between its events, and communication that its work waits for.

Communication is *exposed* while nothing computes at the same time.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.traces.answers.launches import waiting_calls
from analyzers.traces.columns.intervals import COMMUNICATION, COMPUTE, merge
from analyzers.traces.columns.work import HOST_PHASES, Work, phase_intervals

Intervals = tuple[Column, Column]
"""(starts, ends) of disjoint intervals in ascending order, in ns."""
# On an idle stream a kernel begins some µs after its launching call returned; a longer delay needs another reason.
# HolisticTraceAnalysis draws the same line at 30.
LATENCY_NS = 30_000


@dataclass(frozen=True)
class Idle:
    """The idle time of a device or host by cause, in ns.

    `host`: the host had not launched the next kernel yet. `dependency`: the next kernel was already launched, but
    waited for other work. `launch`: the usual latency of a launch. `unexplained`: the rest.
    """

    host: int = 0
    dependency: int = 0
    launch: int = 0
    unexplained: int = 0


def idle(work: Work) -> Idle:
    """Return the idle time of a device or host by cause; the cause of a gap follows from the launch of the next kernel.

    Example: nothing runs from 100 to 150 µs. The kernel after the gap was launched by a call that returned at 110 µs:
    10 µs count for the host, 30 µs for launch latency, and the last 10 µs are unexplained. If the call had returned
    before 100 µs, all 50 µs would be a dependency: the kernel had been launched, and waited for something else.
    """
    if not len(work.rows):
        return Idle()
    busy_start, busy_end = merge(work.start, work.end)
    begin, end = busy_end[:-1], busy_start[1:]
    next_event = _event_at(work, end)
    linked = work.linked[next_event]
    launched = np.clip(np.where(linked, work.launch_end[next_event], begin), begin, end)
    queued = linked & (work.launch_end[next_event] <= begin)
    rest = end - launched
    latency = np.where(linked & ~queued, np.minimum(rest, LATENCY_NS), 0)
    return Idle(
        host=int((launched - begin).sum()),
        dependency=int(rest[queued].sum()),
        launch=int(latency.sum()),
        unexplained=int((rest - latency)[~queued].sum()),
    )


def _event_at(work: Work, at: Column) -> Integers:
    """Return, for each time in `at` (ns), the index in `work` of an event that begins at this time.

    If several events begin then, one with a known launch is preferred.
    """
    order = np.lexsort((~work.linked, work.start))
    index: Integers = order[np.searchsorted(work.start[order], at)]
    return index


def exposed(work: Work) -> Intervals:
    """Return the intervals (starts, ends) in which communication runs and nothing computes."""
    return subtract(intervals_of_kind(work, COMMUNICATION), intervals_of_kind(work, COMPUTE))


def intervals_of_kind(work: Work, kind: int) -> Intervals:
    return merge(work.start[work.kind == kind], work.end[work.kind == kind])


def subtract(intervals: Intervals, others: Intervals) -> Intervals:
    return combine(intervals, others, lambda inside, inside_other: inside & ~inside_other)


def intersect(intervals: Intervals, others: Intervals) -> Intervals:
    return combine(intervals, others, lambda inside, inside_other: inside & inside_other)


def combine(intervals: Intervals, others: Intervals, keep: Callable[[Mask, Mask], Mask]) -> Intervals:
    """Cut time at each start and end of the intervals, and return the pieces that the function `keep` selects.

    `keep` gets two masks with an entry per piece: whether the piece is inside `intervals`, and whether it is inside
    `others`. Neighbouring pieces are joined.
    """
    edges = np.concatenate([*intervals, *others])
    order = np.argsort(edges, kind="stable")  # merges the four ascending columns; another sort takes 20 times as long
    moments = edges.take(order)
    begin, end = moments[:-1], moments[1:]
    # Nothing changes between two edges, so the state behind an edge, and all others at its time, speaks for the piece.
    inside, inside_other = (
        np.cumsum(np.repeat(np.array(change, np.int8), [*map(len, (*intervals, *others))]).take(order), dtype=np.int32)[
            :-1
        ]
        > 0
        for change in ((1, -1, 0, 0), (0, 0, 1, -1))
    )
    kept = keep(inside, inside_other)
    return merge(begin[kept], end[kept])


def union(intervals: Intervals, others: Intervals) -> Intervals:
    return merge(np.concatenate([intervals[0], others[0]]), np.concatenate([intervals[1], others[1]]))


def blocking(work: Work) -> Intervals:
    """Return the intervals of exposed communication (without overlapping computing) that delayed other work.

    Communication delays a computing kernel if the kernel was launched before the communication ended, and begins when
    it ends. Communication also delays a host that waits in a synchronising call. If the host itself does the work, all
    exposed communication counts, except during the host's own phases (data loading, garbage collection ...).
    """
    bare = exposed(work)
    if work.device is None:
        return subtract(bare, merge(*phase_intervals(work.trace, HOST_PHASES)))
    rows, c = waiting_calls(work.trace), work.trace.columns
    return union(_kernel_waits(work, bare), intersect(bare, merge(c["start"][rows], c["end"][rows])))


def standing_still(work: Work, blocked: Intervals) -> Intervals:
    """Return the intervals in which a rank does no work because it waits for communication to end.

    They consist of two parts. First, the intervals `blocked` (the result of `blocking`), in which the trace shows the
    waiting. Second, on a device, exposed communication during which the host launched no computing kernel, because the
    host then probably waited, too; the host's own phases, such as data loading, are left out of this part.
    """
    start, end = exposed(work)
    if work.device is None:
        return blocked
    launched = np.sort(work.launch_start[work.linked & (work.kind == COMPUTE)], kind="stable")
    quiet = np.searchsorted(launched, start) == np.searchsorted(launched, end)
    host_phases = merge(*phase_intervals(work.trace, HOST_PHASES))
    return union(blocked, subtract((start[quiet], end[quiet]), host_phases))


def _kernel_waits(work: Work, bare: Intervals) -> Intervals:
    """Return the intervals of exposed communication (`bare`) during which a computing kernel waited for its end.

    The waiting kernel was launched before the communication ended, and began at most 30 µs after the end. Example:
    communication is exposed from 2 to 12 µs. The kernel that begins at 12 µs was launched at 5 µs, so it waited from 5
    to 12 µs.
    """
    start, end = bare
    order = np.lexsort((work.launch_end, work.start))
    order = order[((work.kind == COMPUTE) & work.linked)[order]]
    if not len(order):
        return end[:0], end[:0]
    index = np.searchsorted(work.start[order], end)
    next_kernel = order[np.minimum(index, len(order) - 1)]
    soon = (index < len(order)) & (work.start[next_kernel] - end <= LATENCY_NS)
    ready = np.clip(work.launch_end[next_kernel], start, end)
    return ready[soon], end[soon]
