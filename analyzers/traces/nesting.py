"""Which event runs inside which: lanes (a thread of the host, a stream of a device), depths and parents."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from analyzers.traces.table import Column, fitted

NONE = -1


def nest(lane: Column, start: Column, end: Column) -> tuple[Column, Column]:
    """(depth, parent) of each event: how many events of its lane run when it begins, and the row of the innermost.

    Where events of a lane overlap without enclosing each other, as kernels may, an event whose innermost has ended
    meanwhile has no parent. An empty event counts as 1 ns long.
    """
    end = np.maximum(end, start + 1)
    order = np.lexsort((-end, start, lane)).astype(np.int32)
    depth, parent = np.zeros(len(order), np.int32), np.full(len(order), NONE, np.int32)
    first = np.flatnonzero(np.diff(lane[order], prepend=NONE))
    for low, high in pairwise([*first, len(order)]):
        rows = order[low:high]
        ended = np.searchsorted(np.sort(end[rows]), start[rows], side="right")
        depth[rows] = np.arange(high - low) - ended
    depth = fitted(depth)  # 16 bits sort by radix
    place = np.argsort(depth[order], kind="stable").astype(np.int32)
    for outer, inner in levels(depth[order][place], place):
        parent[order[inner]] = order[outer[np.searchsorted(outer, inner) - 1]]
    return depth, np.where((parent >= 0) & (end[parent] > start), parent, NONE)


def levels(depth: Column, place: Column) -> Iterator[tuple[Column, Column]]:
    """The places of each depth and of the next one, both ascending; `depth` is sorted, `place` goes with it."""
    bounds = np.searchsorted(depth, np.arange(depth.max(initial=0) + 2))
    return pairwise([place[low:high] for low, high in pairwise(bounds)])


def innermost(chosen: Column, parent: Column) -> Column:
    """For each event the row of the innermost chosen one around it, itself included; NONE where there is none."""
    nowhere = len(chosen)
    above = np.where(chosen, np.arange(nowhere, dtype=np.int32), np.where(parent < 0, np.int32(nowhere), parent))
    above = np.append(above, np.int32(nowhere))
    # Each round doubles how many parents are passed; those that are chosen, and the end, lead to themselves.
    while ((further := above[above]) != above).any():
        above = further
    return np.where(above[:-1] == nowhere, np.int32(NONE), above[:-1])


def outermost(group: Column, start: Column, end: Column) -> Column:
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


def summed_up(values: Column, depth: Column, parent: Column) -> Column:
    """For each event the sum of the values of itself and of all events inside it."""
    found: Column = values.astype(np.int64)
    order = np.argsort(depth, kind="stable")
    for _, rows in reversed(list(levels(depth[order], order))):
        inside = rows[parent[rows] >= 0]
        np.add.at(found, parent[inside], found[inside])
    return found


def own_time(parent: Column, start: Column, end: Column) -> Column:
    """Each event's length less that of the events directly inside it, in ns."""
    own: Column = end - start
    inside = np.flatnonzero(parent >= 0)
    above = parent[inside]
    np.subtract.at(own, above, np.minimum(end[inside], end[above]) - start[inside])
    np.maximum(own, 0, out=own)
    return own
