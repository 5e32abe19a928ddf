"""Find out which event runs inside which: depths and parents within each lane (a thread of the host, or a stream).

A trace records no call tree, only starts and ends. In one lane events nest as calls do, so the parent of an event is,
among the events still running when it begins, the one that began last:

    outer   [0, 100)                depth 0, no parent
    first     [10, 40)              depth 1, parent outer
    inner        [20, 30)           depth 2, parent first
    second          [50, 90)        depth 1, parent outer

The depth of an event is the number of events that began before it, minus the number that ended before it. Before
`second` three events have begun and two have ended, so its depth is 1. Both numbers are found by sorting, so no loop
over events is needed. The parent of an event is then the last event before it whose depth is less by one.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from analyzers.columns import Column, Integers, Mask, narrowed
from analyzers.traces.reading.distinct import rows_by_value

NONE = -1
"""The value that stands for "no event" in arrays of rows or indices."""


class NestedEvents(NamedTuple):
    """The columns of events: lane (thread or stream), start and end in ns, and the row of each event's parent."""

    lane: Column
    start: Column
    end: Column
    parent: Column


def nest(lane: Column, start: Column, end: Column) -> tuple[Column, Column]:
    """Return, for each event, its depth (the number of events that enclose it) and the row of the innermost of them.

    The row is NONE for an event that no other event encloses. Each event has a lane (thread or stream), a start and an
    end in ns. An event encloses the events of its lane that begin while it runs. An event without a duration counts as
    1 ns long.
    """
    end = np.maximum(end, start + 1)
    depth, parent = np.zeros(len(lane), np.int32), np.full(len(lane), NONE, np.int32)
    lanes = [_in_start_order(rows.astype(np.int32), start, end) for _, rows in rows_by_value(lane)]
    for rows in lanes:
        depth[rows] = np.arange(len(rows)) - _count_until(np.sort(end[rows], kind="stable"), start[rows])
    order = np.concatenate([*lanes, np.zeros(0, np.int32)])
    depth = narrowed(depth)  # 16 bits sort by radix
    index = np.argsort(depth[order], kind="stable").astype(np.int32)
    for outer, inner in _pairs_of_depths(depth[order][index], index):
        parent[order[inner]] = order[outer[np.searchsorted(outer, inner) - 1]]
    # The last event of the lower depth may have ended, or belong to the lane before: then this is no parent.
    parent = np.where((parent >= 0) & (end[parent] > start), parent, np.int32(NONE))
    misplaced = (depth > 0) & (parent == NONE)
    return _reparent(parent, start, end, order, misplaced) if misplaced.any() else (depth, parent)


def _in_start_order(rows: Column, start: Column, end: Column) -> Column:
    """Return `rows` in order of their start; if several events start at the same time, the longest comes first."""
    rows = rows[np.argsort(start[rows], kind="stable")]  # fast where they nearly are in order, as in most files
    at_once = np.diff(start[rows]) == 0
    ties = np.flatnonzero(np.append(at_once, False) | np.append(False, at_once))
    tied = rows[ties]
    rows[ties] = tied[np.lexsort((-end[tied], start[tied]))]
    return rows


def _count_until(moments: Column, at: Column) -> Integers:
    """Return, for each time in `at`, how many of `moments` are at or before it; both columns must be ascending.

    The two columns are merged by a stable sort, which is several times as fast as a search for each time.
    """
    order = np.argsort(np.concatenate([moments, at]), kind="stable")
    return np.flatnonzero(order >= len(moments)) - np.arange(len(at))


def _reparent(parent: Column, start: Column, end: Column, order: Column, misplaced: Mask) -> tuple[Column, Column]:
    """Return depth and parent of each event, corrected where events cross instead of enclosing each other.

    `misplaced` is a mask of the events for which `nest` found no parent, and `order` has all events by lane and start.
    Events cross if Python stacks are recorded: an annotation begins inside the call that opens it, and ends after this
    call has ended. Such an annotation becomes the parent of the events that begin while it runs. It is no longer a
    child of the calls that end before it does.
    """
    # Single numbers of a memoryview are those of Python, and several times as fast as those of NumPy.
    above, starts, ends = parent.data, np.ascontiguousarray(start).data, end.data
    at = np.flatnonzero(misplaced[order])
    for row, before in zip(order[at].tolist(), order[at - 1].tolist(), strict=True):
        around = before
        while around != NONE and ends[around] <= starts[row]:
            around = above[around]
        above[row] = around
        while around != NONE and above[around] != NONE and ends[above[around]] < ends[around]:
            above[around] = above[above[around]]
    return narrowed(_depths_of(parent)), parent


def _depths_of(parent: Column) -> Column:
    """Return how many events enclose each event; `parent` has the row of the event directly around each event.

    All events climb to their parents at once, and each round doubles how far they climb: a depth of 1000 takes 10
    rounds.
    """
    above = np.append(np.where(parent == NONE, len(parent), parent), len(parent))
    count = np.append(parent != NONE, False).astype(np.int32)
    while (above < len(parent)).any():
        count, above = count + count[above], above[above]
    return count[:-1]


def _pairs_of_depths(depth: Column, index: Column) -> Iterator[tuple[Column, Column]]:
    """Yield (items of `index` at depth d, items of `index` at depth d + 1), for each depth d but the last.

    `depth` has the nesting depth of the event at each item of `index`, in ascending order.
    """
    bounds = np.searchsorted(depth, np.arange(depth.max(initial=0) + 2))
    return pairwise([index[low:high] for low, high in pairwise(bounds)])


def innermost_selected(selected: Mask, parent: Column) -> Column:
    """Return, for each event, the row of the innermost selected event around it, or NONE.

    A selected event gets its own row. If outer encloses middle, middle encloses inner, and only outer is selected,
    all three get the row of outer.
    """
    nowhere = len(selected)
    above = np.where(selected, np.arange(nowhere, dtype=np.int32), np.where(parent < 0, np.int32(nowhere), parent))
    above = np.append(above, np.int32(nowhere))
    # Each round doubles how many parents are passed; those that are selected, and the end, lead to themselves.
    higher = above.take(above)
    climbing = np.flatnonzero(higher != above)
    above = higher
    while len(climbing):
        before = above.take(climbing)
        higher = above.take(before)
        above[climbing] = higher
        climbing = climbing[higher != before]
    return np.where(above[:-1] == nowhere, np.int32(NONE), above[:-1])


def innermost_at(events: NestedEvents, lane: Column, at: Column) -> Integers:
    """Return, for each time in `at` (ns), the row of the innermost event that runs at this time in its lane, or NONE.

    `lane` has the number of the lane for each of these times.
    """
    innermost = np.full(len(at), NONE)
    end = np.maximum(events.end, events.start + 1)
    for number, queries in rows_by_value(lane):
        rows = np.flatnonzero(events.lane == number)
        rows = rows[np.lexsort((-end[rows], events.start[rows]))]
        begun = np.searchsorted(events.start[rows], at[queries], side="right")
        innermost[queries] = np.append(rows, NONE)[begun - 1]  # before the first it is the last, which is NONE
    # What began last may have ended; what is around it may not.
    while (ended := (innermost != NONE) & (np.append(end, 0)[innermost] <= at)).any():
        innermost[ended] = events.parent[innermost[ended]]
    return innermost


def is_outermost(group: Column, start: Column, end: Column) -> Mask:
    """Return a mask of the events that are inside no other event of their group.

    `group` has the number of each event's group, from 0; two events of a group are nested or do not overlap.
    """
    order = _in_start_order(np.arange(len(start)), start, end)
    order = order[np.argsort(narrowed(group)[order], kind="stable")]  # a radix sort if the numbers fit into 16 bits
    # Each group gets a stretch of time of its own, so that one running maximum serves for all.
    latest_end = end[order] - start.min(initial=0) + 1
    stretch = min(int(latest_end.max(initial=0)) + 1, (1 << 62) // (int(group.max(initial=0)) + 1))
    shift = group[order] * np.int64(stretch)
    latest_end = np.maximum.accumulate(latest_end + shift)
    begins = start[order] - start.min(initial=0) + 1 + shift
    outermost = np.ones(len(order), bool)
    outermost[order[1:]] = (begins[1:] >= latest_end[:-1]) | (np.diff(group[order]) > 0)
    return outermost


def inclusive_sums(rows: Column, values: Column, parent: Column) -> Integers:
    """Return, for each event, the sum of the values of the event itself and of all events inside it.

    `rows` has, for each item of `values`, the row of the event that it belongs to; `parent` has the row of the event
    directly around each event.
    """
    sums = np.zeros(len(parent), np.int64)
    while len(rows):
        np.add.at(sums, rows, values)
        above = parent[rows]
        inside = above != NONE
        rows, values = above[inside], values[inside]
    return sums


def self_times(parent: Column, start: Column, end: Column) -> Integers:
    """Return the duration of each event without the events directly inside it, in ns.

    `parent` has the row of the event directly around each event, or NONE; `start` and `end` are in ns.
    """
    own: Integers = end - start
    inside = np.flatnonzero(parent >= 0)
    above = parent[inside]
    # Of an event that outlives its parent only the time inside the parent is taken from that.
    np.subtract.at(own, above, np.minimum(end[inside], end[above]) - start[inside])
    np.maximum(own, 0, out=own)
    return own
