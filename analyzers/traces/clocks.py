"""How far the clocks of the ranks are apart, told by the collectives alone, with an error bar.

A symmetric collective ends on all ranks at nearly the same moment, which gives an estimate; and on none before the
last has come, which gives hard bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from analyzers.traces.collectives import SYMMETRIC
from analyzers.traces.matching import Met, Recording
from analyzers.traces.table import Column


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's clock minus that of the first rank: `offset_ns` lies between `low_ns` and `high_ns`.

    `same_host`: both ranks say that they ran on one host, so the offset is 0, and `estimate_ns` tests the method.
    The bounds are null, and the offset 0, where the two share no chain of collectives.
    """

    rank: int
    offset_ns: int = 0
    estimate_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    collectives: int = 0
    same_host: bool = False

    @property
    def agrees(self) -> bool:
        """Whether there are bounds, and something between them."""
        return self.low_ns is not None and self.high_ns is not None and self.low_ns <= self.high_ns


@dataclass(frozen=True)
class Pair:
    """Ends and starts of the symmetric collectives of two ranks."""

    start: Column
    end: Column
    other_start: Column
    other_end: Column

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the most that the other clock can be ahead."""
        return int((self.other_start - self.end).max()), int((self.other_end - self.start).min())

    @property
    def estimate(self) -> int:
        low, high = self.bounds
        middle = int(np.median(self.other_end - self.end))
        return min(max(middle, low), high) if low <= high else middle


def clocks(met: Met) -> list[Clock]:
    """One a rank, relative to the first; ranks that share no collective with it are reached over others."""
    found = {0: Clock(rank=met.ranks[0], estimate_ns=0, low_ns=0, high_ns=0, same_host=True)}
    start, end, symmetric = met.column("start"), met.column("end"), is_symmetric(met)
    pending = [0]
    while pending:
        at = pending.pop(0)
        for other in range(len(met.ranks)):
            if other not in found and (pair := shared(met, (start, end, symmetric), at, other)):
                found[other] = chained(met.recordings, found[at], (at, other), pair)
                pending.append(other)
    return [found.get(i) or Clock(rank=rank) for i, rank in enumerate(met.ranks)]


def is_symmetric(met: Met) -> Column:
    """A flag for each row: does its collective end everywhere together?"""
    names = [SYMMETRIC.search(met.told(int(row), "name")) is not None for row in met.first]
    return np.array(names, bool)[met.which]


def shared(met: Met, columns: tuple[Column, Column, Column], a: int, b: int) -> Pair | None:
    """The collectives that both took part in; None where there are none."""
    start, end, symmetric = columns
    mine, theirs = (np.flatnonzero((met.rank == rank) & symmetric) for rank in (a, b))
    _, i, j = np.intersect1d(met.which[mine], met.which[theirs], assume_unique=True, return_indices=True)
    if not len(i):
        return None
    mine, theirs = mine[i], theirs[j]
    return Pair(start[mine], end[mine], start[theirs], end[theirs])


def chained(recordings: Sequence[Recording], before: Clock, places: tuple[int, int], pair: Pair) -> Clock:
    """The clock of a rank that shares collectives with one whose clock is known."""
    one, other = (recordings[place] for place in places)
    host = one.trace.header.get("host")
    same = before.same_host and host is not None and host == other.trace.header.get("host")
    low, high = pair.bounds
    estimate = before.offset_ns + pair.estimate
    return Clock(
        rank=other.rank or 0,
        offset_ns=0 if same else estimate,
        estimate_ns=estimate,
        low_ns=(before.low_ns or 0) + low,
        high_ns=(before.high_ns or 0) + high,
        collectives=len(pair.end),
        same_host=same,
    )
