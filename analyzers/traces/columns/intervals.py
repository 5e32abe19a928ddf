"""Compute with unions of intervals `[start, end)` in integer nanoseconds, in which overlapping time counts once."""

from dataclasses import dataclass

import numpy as np

from analyzers.columns import Column, Integers, Mask


@dataclass(frozen=True)
class TimeBreakdown:
    """How the time of a device divides into kinds of work, in ns; overlapping events of one kind count once.

    `span` is the time from the first start to the last end. `busy` is the time in which anything runs. `kernels` is the
    time in which something computes or communicates. Exposed communication has no overlapping computing; exposed memory
    is copies without overlapping kernels. The parts add up: compute + exposed communication + exposed memory + idle =
    span, and overlapped + exposed communication = communication.
    """

    span: int
    busy: int
    compute: int
    communication: int
    memory: int
    kernels: int

    @property
    def idle(self) -> int:
        return self.span - self.busy

    @property
    def exposed_communication(self) -> int:
        return self.kernels - self.compute

    @property
    def overlapped(self) -> int:
        return self.compute + self.communication - self.kernels

    @property
    def exposed_memory(self) -> int:
        return self.busy - self.kernels


TIMES_BELOW = 1 << 62
COMPUTE, COMMUNICATION, MEMORY = range(3)
KIND_NAMES = ("compute", "communication", "memory")


def merge(start: Column, end: Column) -> tuple[Integers, Integers]:
    """Return the starts and ends of disjoint intervals, ascending, that cover the same time as the given intervals.

    Intervals that touch are joined and empty ones are dropped: [0, 5), [3, 8), [8, 9), [20, 20) become [0, 9).
    """
    lasting = end > start
    if not lasting.all():
        start, end = start[lasting], end[lasting]
    if not len(start):
        return start, end
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    # An interval begins a new one of the union if all before it have ended.
    latest_end = np.maximum.accumulate(end)
    first = np.flatnonzero(np.append(True, start[1:] > latest_end[:-1]))
    return start[first], latest_end[np.append(first[1:], len(start)) - 1]


def union_length(start: Column, end: Column) -> int:
    low, high = merge(start, end)
    return int((high - low).sum())


def union_lengths(start: Column, end: Column, group: Column, count: int) -> Integers:
    """Return, for each group, the length in ns of the union of its intervals.

    `group` has the number of each interval's group, from 0 to `count` - 1. Example: [0, 5) and [3, 8) of group 0 and
    [3, 8) of group 2 give [8, 0, 5].
    """
    if not len(start):
        return np.zeros(count, np.int64)
    if count == 1:
        return np.array([union_length(start, end)], np.int64)
    low = int(start.min())
    stretch = int(end.max()) - low + 2
    if stretch * count >= TIMES_BELOW:
        return np.array([union_length(start[group == i], end[group == i]) for i in range(count)], np.int64)
    # Each group gets a stretch of time of its own, so that the groups are merged as one.
    shift = group * np.int64(stretch) - low
    starts, ends = merge(start + shift, end + shift)
    before = np.append(0, np.cumsum(ends - starts))
    return np.diff(before[np.searchsorted(starts, np.arange(count + 1) * np.int64(stretch))])


def break_down(start: Column, end: Column, kind: Column, group: Column, count: int) -> list[TimeBreakdown]:
    """Return, for each group of events, how the time from its first start to its last end divides among their kinds.

    `kind` has COMPUTE, COMMUNICATION or MEMORY for each event, and `group` the number of its group, from 0 to
    `count` - 1.
    """

    def unions(mask: Mask) -> list[int]:
        rows = slice(None) if mask.all() else np.flatnonzero(mask)
        return list(union_lengths(start[rows], end[rows], group[rows], count).tolist())

    copies = np.asarray(kind == MEMORY)
    busy = unions(np.ones(len(start), bool))
    parts = {
        "span": spans(start, end, group, count).tolist(),
        "busy": busy,
        "compute": unions(np.asarray(kind == COMPUTE)),
        "communication": unions(np.asarray(kind == COMMUNICATION)),
        "memory": unions(copies),
        "kernels": unions(~copies) if copies.any() else busy,
    }
    return [TimeBreakdown(**{name: lengths[i] for name, lengths in parts.items()}) for i in range(count)]


def spans(start: Column, end: Column, group: Column, count: int) -> Integers:
    """Return, for each group, the time from its first start to its last end in ns; 0 for a group without intervals."""
    if count == 1 and len(start):
        return np.array([int(end.max()) - int(start.min())], np.int64)
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, group, start)
    np.maximum.at(last, group, end)
    return np.where(np.bincount(group, minlength=count) > 0, last - first, 0)


class CoveredTime:
    """A union of time intervals; its methods compute how much of it lies before a moment, or between two moments."""

    def __init__(self, start: Column, end: Column) -> None:
        self.start, self.end = merge(start, end)
        self.before = np.concatenate([[0], np.cumsum(self.end - self.start)])

    @property
    def total(self) -> int:
        return int(self.before[-1])

    def until(self, at: Column) -> Integers:
        """Return how many ns of the union lie before each moment in `at`."""
        begun = np.searchsorted(self.start, at, side="right")
        last = np.maximum(begun - 1, 0)
        if not len(self.start):
            return np.zeros(len(at), np.int64)
        # Of the interval around the moment the part behind it does not count.
        remaining = np.where(begun > 0, np.clip(self.end[last] - at, 0, None), 0)
        return self.before[begun] - remaining

    def between(self, low: Column, high: Column) -> Integers:
        """Return how many ns of the union lie between `low[i]` and `high[i]`, for each i."""
        return self.until(high) - self.until(low)
