"""How far the clocks of the ranks are apart, told by the collectives alone, with an error bar.

A symmetric collective ends on all ranks at nearly the same moment, which gives an estimate; and on none before the
last has come, which gives hard bounds. Over a long recording clocks drift too, so that a line takes the place of the
one number where the ends prove it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.traces.across.clock_drift import Drift, drift, scatter
from analyzers.traces.across.matching import MatchedCollectives
from analyzers.traces.answers.collectives import SYMMETRIC
from analyzers.traces.loading import Recording


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's clock minus that of the first rank: `offset_ns` lies between `low_ns` and `high_ns`.

    Where it runs fast by `drift_ppm`, known to `drift_error_ppm`, all of these are of the moment when it shows `at_ns`
    (Unix). `residual_ns`: how far the ends of collectives scatter around what is told here, in the median.
    `same_host`: both ranks say that they ran on one host, so offset and drift are 0, and `estimate_ns` tests the
    method. The bounds are null, and the offset 0, where the two share no chain of collectives.
    """

    rank: int
    offset_ns: int = 0
    estimate_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    collectives: int = 0
    same_host: bool = False
    drift_ppm: float = 0.0
    drift_error_ppm: float = 0.0
    residual_ns: int | None = None
    at_ns: int = 0

    @property
    def agrees(self) -> bool:
        """Whether there are bounds, and something between them."""
        return self.low_ns is not None and self.high_ns is not None and self.low_ns <= self.high_ns

    def ahead(self, at: Column) -> Column:
        """By how many ns this clock is ahead of the first rank's when it shows each of these moments."""
        return self.offset_ns + moved(at - self.at_ns, self.drift_ppm)

    def shows(self, at: Column) -> Column:
        """What this clock shows at these moments of the first rank's, the other way round."""
        steady = at + self.offset_ns
        return steady + moved(steady - self.at_ns, self.drift_ppm / (1 - self.drift_ppm * 1e-6))


@dataclass(frozen=True)
class Pair:
    """Starts and ends of the symmetric collectives of two ranks; the first one's on a clock that is known.

    `steady`: nothing can drift, as both read one clock.
    """

    start: Column
    end: Column
    other_start: Column
    other_end: Column
    steady: bool = False

    @property
    def middle(self) -> int:
        """Half-way through the collectives, by the other clock."""
        return int(self.other_end.min() + (self.other_end.max() - self.other_end.min()) // 2)

    @cached_property
    def drift(self) -> Drift:
        return Drift() if self.steady else drift(self.other_end, self.other_end - self.end)

    @property
    def residual(self) -> int:
        return scatter(self.other_end, self.other_end - self.end, self.drift.ppm)

    def straight(self, at: Column) -> Column:
        """Moments of the other clock as it would show them if it ran like the first one."""
        return at - moved(at - self.middle, self.drift.ppm)

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The least and the most that the other clock can be ahead."""
        low, high = self.straight(self.other_start) - self.end, self.straight(self.other_end) - self.start
        return int(low.max()), int(high.min())

    @property
    def estimate(self) -> int:
        low, high = self.bounds
        middle = int(np.median(self.straight(self.other_end) - self.end))
        return min(max(middle, low), high) if low <= high else middle


def moved(passed: Column, ppm: float) -> Column:
    """What a clock that runs fast by `ppm` gains while so many ns pass."""
    found: Column = np.rint(passed * (ppm * 1e-6)).astype(np.int64)
    return found


def clocks(met: MatchedCollectives) -> list[Clock]:
    """One a rank, relative to the first; ranks that share no collective with it are reached over others."""
    found = {0: Clock(rank=met.ranks[0], estimate_ns=0, low_ns=0, high_ns=0, same_host=True)}
    start, end, symmetric = met.column("start"), met.column("end"), is_symmetric(met)
    pending = [0]
    while pending:
        at = pending.pop(0)
        for other in range(len(met.ranks)):
            if other not in found and (pair := shared(met, (start, end, symmetric), (at, other), found[at])):
                found[other] = chained(met.recordings, found[at], (at, other), pair)
                pending.append(other)
    return [found.get(i) or Clock(rank=rank) for i, rank in enumerate(met.ranks)]


def is_symmetric(met: MatchedCollectives) -> Column:
    """A flag for each row: does its collective end everywhere together?"""
    names = [SYMMETRIC.search(met.told(int(row), "name")) is not None for row in met.first]
    return np.array(names, bool)[met.which]


def shared(
    met: MatchedCollectives, columns: tuple[Column, Column, Column], places: tuple[int, int], known: Clock
) -> Pair | None:
    """The collectives that both took part in, the first one's by the first rank's clock; None where there are none."""
    start, end, symmetric = columns
    mine, theirs = (np.flatnonzero((met.rank == rank) & symmetric) for rank in places)
    _, i, j = np.intersect1d(met.which[mine], met.which[theirs], assume_unique=True, return_indices=True)
    if not len(i):
        return None
    mine, theirs = mine[i], theirs[j]
    begun, ended = (column[mine] - known.ahead(column[mine]) for column in (start, end))
    return Pair(begun, ended, start[theirs], end[theirs])


def chained(recordings: Sequence[Recording], before: Clock, places: tuple[int, int], pair: Pair) -> Clock:
    """The clock of a rank that shares collectives with one whose clock is known."""
    one, other = (recordings[place] for place in places)
    host = one.trace.header.get("host")
    same = before.same_host and host is not None and host == other.trace.header.get("host")
    pair = replace(pair, steady=same)
    low, high = pair.bounds
    return Clock(
        rank=other.rank or 0,
        offset_ns=0 if same else pair.estimate,
        estimate_ns=pair.estimate,
        low_ns=low + (before.low_ns or 0) - before.offset_ns,
        high_ns=high + (before.high_ns or 0) - before.offset_ns,
        collectives=len(pair.end),
        same_host=same,
        drift_ppm=round(pair.drift.ppm, 6),
        drift_error_ppm=round(pair.drift.error_ppm, 6),
        residual_ns=pair.residual,
        at_ns=pair.middle,
    )
