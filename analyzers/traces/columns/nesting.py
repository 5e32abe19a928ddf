"""Which event runs inside which: lanes (a thread of the host, a stream of a device), depths and parents."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from analyzers.columns import Column
from analyzers.traces.reading.distinct import rows_by_value
from analyzers.traces.reading.event_table import downcast

NONE = -1


class NestedEvents(NamedTuple):
    """Events as `nest` takes and answers them."""

    lane: Column
    start: Column
    end: Column
    parent: Column


def nest(lane: Column, start: Column, end: Column) -> tuple[Column, Column]:
    """(depth, parent) of each event: how many events are around it, and the row of the innermost.

    Around it is what runs in its lane when it begins. An empty event counts as 1 ns long.
    """
    end = np.maximum(end, start + 1)
    depth, parent = np.zeros(len(lane), np.int32), np.full(len(lane), NONE, np.int32)
    parts = [in_start_order(rows.astype(np.int32), start, end) for _, rows in rows_by_value(lane)]
    for rows in parts:
        depth[rows] = np.arange(len(rows)) - count_until(np.sort(end[rows], kind="stable"), start[rows])
    order = np.concatenate([*parts, np.zeros(0, np.int32)])
    depth = downcast(depth)  # 16 bits sort by radix
    place = np.argsort(depth[order], kind="stable").astype(np.int32)
    for outer, inner in rows_by_depth(depth[order][place], place):
        parent[order[inner]] = order[outer[np.searchsorted(outer, inner) - 1]]
    parent = np.where((parent >= 0) & (end[parent] > start), parent, np.int32(NONE))
    astray = (depth > 0) & (parent == NONE)
    return reparent_outliving(parent, start, end, order, astray) if astray.any() else (depth, parent)


def in_start_order(rows: Column, start: Column, end: Column) -> Column:
    """Rows in the order in which they begin; of those that begin at once the longest first."""
    rows = rows[np.argsort(start[rows], kind="stable")]  # which takes little where they nearly are in order
    at_once = np.diff(start[rows]) == 0
    places = np.flatnonzero(np.append(at_once, False) | np.append(False, at_once))
    same = rows[places]
    rows[places] = same[np.lexsort((-end[same], start[same]))]
    return rows


def count_until(moments: Column, at: Column) -> Column:
    """How many of the ascending moments lie at or before each of others that ascend, too.

    Merging two ascending columns is what a stable sort does with them; looking each up takes several times as long.
    """
    order = np.argsort(np.concatenate([moments, at]), kind="stable")
    return np.flatnonzero(order >= len(moments)) - np.arange(len(at))


def reparent_outliving(
    parent: Column, start: Column, end: Column, order: Column, astray: Column
) -> tuple[Column, Column]:
    """(depth, parent) where some events run inside one that began deeper than they do.

    That is so where stacks are recorded: an annotation begins inside the call that opens it, and outlives this call.
    The annotation then is what is around the others, and around itself is what lasts as long.
    """
    for place in np.flatnonzero(astray[order]).tolist():
        row, around = order[place], order[place - 1]
        while around != NONE and end[around] <= start[row]:
            around = parent[around]
        parent[row] = around
        while around != NONE and parent[around] != NONE and end[parent[around]] < end[around]:
            parent[around] = parent[parent[around]]
    return downcast(depths_of(parent)), parent


def depths_of(parent: Column) -> Column:
    """How many events are around each; each round passes twice as many of them."""
    above = np.append(np.where(parent == NONE, len(parent), parent), len(parent))
    count = np.append(parent != NONE, False).astype(np.int32)
    while (above < len(parent)).any():
        count, above = count + count[above], above[above]
    return count[:-1]


def rows_by_depth(depth: Column, place: Column) -> Iterator[tuple[Column, Column]]:
    """The places of each depth and of the next one, both ascending; `depth` is sorted, `place` goes with it."""
    bounds = np.searchsorted(depth, np.arange(depth.max(initial=0) + 2))
    return pairwise([place[low:high] for low, high in pairwise(bounds)])


def innermost_selected(chosen: Column, parent: Column) -> Column:
    """For each event the row of the innermost chosen one around it, itself included; NONE where there is none."""
    nowhere = len(chosen)
    above = np.where(chosen, np.arange(nowhere, dtype=np.int32), np.where(parent < 0, np.int32(nowhere), parent))
    above = np.append(above, np.int32(nowhere))
    # Each round doubles how many parents are passed; those that are chosen, and the end, lead to themselves.
    while ((further := above[above]) != above).any():
        above = further
    return np.where(above[:-1] == nowhere, np.int32(NONE), above[:-1])


def innermost_at(events: NestedEvents, lane: Column, at: Column) -> Column:
    """The row of the innermost event of its lane that runs at each moment, NONE where none does."""
    found = np.full(len(at), NONE)
    end = np.maximum(events.end, events.start + 1)
    for one, asked in rows_by_value(lane):
        rows = np.flatnonzero(events.lane == one)
        rows = rows[np.lexsort((-end[rows], events.start[rows]))]
        in_start_order = np.searchsorted(events.start[rows], at[asked], side="right")
        found[asked] = np.append(rows, NONE)[in_start_order - 1]  # before the first it is the last, which is NONE
    # What began last has perhaps ended; what is around it has perhaps not.
    while (over := (found != NONE) & (np.append(end, 0)[found] <= at)).any():
        found[over] = events.parent[found[over]]
    return found


def is_outermost(group: Column, start: Column, end: Column) -> Column:
    """Which events lie in no other one of their group; `group` counts from 0, its events nest or are apart."""
    order = np.lexsort((-end, start, group))
    # Each group gets a stretch of time of its own, so that one running maximum serves for all.
    reach = end[order] - start.min(initial=0) + 1
    stretch = min(int(reach.max(initial=0)) + 1, (1 << 62) // (int(group.max(initial=0)) + 1))
    shifted = group[order] * np.int64(stretch)
    reach = np.maximum.accumulate(reach + shifted)
    begins = start[order] - start.min(initial=0) + 1 + shifted
    found = np.ones(len(order), bool)
    found[order[1:]] = (begins[1:] >= reach[:-1]) | (np.diff(group[order]) > 0)
    return found


def inclusive_sums(rows: Column, values: Column, parent: Column) -> Column:
    """For each event the sum of the values that belong to its row or to that of an event inside it."""
    found = np.zeros(len(parent), np.int64)
    while len(rows):
        np.add.at(found, rows, values)
        above = parent[rows]
        inside = above != NONE
        rows, values = above[inside], values[inside]
    return found


def self_times(parent: Column, start: Column, end: Column) -> Column:
    """Each event's length less that of the events directly inside it, in ns."""
    own: Column = end - start
    inside = np.flatnonzero(parent >= 0)
    above = parent[inside]
    np.subtract.at(own, above, np.minimum(end[inside], end[above]) - start[inside])
    np.maximum(own, 0, out=own)
    return own
