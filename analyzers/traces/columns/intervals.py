"""Unions of intervals `[start, end)` in integer nanoseconds: overlaps count once."""

from dataclasses import dataclass

import numpy as np

from analyzers.columns import Column


@dataclass(frozen=True)
class TimeBreakdown:
    """How a span of device time divides; all in nanoseconds, all unions.

    compute + exposed communication + exposed memory + idle = span;
    overlapped + exposed communication = communication.
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


COMPUTE, COMMUNICATION, MEMORY = range(3)
KIND_NAMES = ("compute", "communication", "memory")


def merge(start: Column, end: Column) -> tuple[Column, Column]:
    """Disjoint ascending intervals that cover the same time; touching ones join, empty ones go."""
    lasting = end > start
    start, end = start[lasting], end[lasting]
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.append(True, start[1:] > reach[:-1]))
    return start[first], reach[np.append(first[1:], len(start)) - 1]


def union_length(start: Column, end: Column) -> int:
    """The length of the union."""
    low, high = merge(start, end)
    return int((high - low).sum())


def break_down(start: Column, end: Column, kind: Column) -> TimeBreakdown:
    """Divide the time of events of the three kinds; zero where there are none."""

    def union(mask: Column) -> int:
        return union_length(start[mask], end[mask])

    busy, copies = union_length(start, end), kind == MEMORY
    return TimeBreakdown(
        span=int(end.max() - start.min()) if len(start) else 0,
        busy=busy,
        compute=union(kind == COMPUTE),
        communication=union(kind == COMMUNICATION),
        memory=union(copies),
        kernels=union(~copies) if copies.any() else busy,
    )


class CoveredTime:
    """How much of the time up to an instant a union of intervals covers."""

    def __init__(self, start: Column, end: Column) -> None:
        """The intervals may overlap and be in any order."""
        self.start, self.end = merge(start, end)
        self.before = np.concatenate([[0], np.cumsum(self.end - self.start)])

    def until(self, at: Column) -> Column:
        """The covered length before each instant, in ns."""
        place = np.searchsorted(self.start, at, side="right")
        last = np.maximum(place - 1, 0)
        if not len(self.start):
            return np.zeros(len(at), np.int64)
        running = np.where(place > 0, np.clip(self.end[last] - at, 0, None), 0)
        return self.before[place] - running

    def between(self, low: Column, high: Column) -> Column:
        """The covered length from each instant to the other."""
        return self.until(high) - self.until(low)
