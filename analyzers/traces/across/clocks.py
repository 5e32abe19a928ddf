"""Estimate how far the clocks of the ranks are apart, from the collectives alone, with bounds of the error.

A symmetric collective (all_reduce, all_gather ...) ends on all ranks at nearly the same moment: this gives an estimate.
No rank leaves such a collective before the last rank has arrived: this gives exact bounds. Over a long recording clocks
also drift. If the ends prove a drift, the offset is a line over time and not a single number.

Example: rank 0 is in an all_reduce from 100 to 130 µs, rank 1 from 1110 to 1129 µs of its own clock. The ends show that
rank 1's clock is 1129 - 130 = 999 µs ahead. The offset is at most 1129 - 100 = 1029 µs, else rank 1 would have left
before rank 0 arrived. It is at least 1110 - 130 = 980 µs, else rank 0 would have left before rank 1 arrived. Every
further collective narrows the bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.traces.across.matching import MatchedCollectives
from analyzers.traces.answers.collectives import SYMMETRIC
from analyzers.traces.loading import Recording

_POINTS_AT_LEAST, _POINTS_AT_MOST = 20, 128
# Standard deviations of Kendall's statistic that the interval of the slope spans on each side (99.7 %).
_STANDARD_DEVIATIONS = 3.0
# Crystals are off by tens of ppm and NTP slews by 500 ppm at most: more than this is a wrong match, not a drift.
_PPM_AT_MOST = 1000.0


class Drift(NamedTuple):
    """A clock's drift in parts per million (positive: the clock runs fast), and the largest likely error of the drift.

    `ppm` 1 means that the clock gains 1 µs per second.
    """

    ppm: float = 0.0
    error_ppm: float = 0.0


def drift(at: Integers, ahead: Integers) -> Drift:
    """Return how much faster a clock runs than a reference clock, given how far it was ahead at several times.

    At the time `at[i]` (ns, shown by the clock) the clock was `ahead[i]` ns ahead of the reference. The drift is zero
    unless these points prove one: both halves of the recording must show the same slope (after a jump of the clock one
    half shows none), and over the whole recording the slope must change the difference by more than the scatter of
    single points.

    Example: a clock that is 1.0 ms ahead at first, 1.2 ms after 10 s and 1.4 ms after 20 s gains 0.2 ms in 10 s: the
    drift is 20 ppm. In 20 s the difference changes by 0.4 ms. If single points were more than 0.4 ms off this line, the
    result would be no drift.
    """
    at, ahead = thinned(at, ahead)
    if len(at) < _POINTS_AT_LEAST:
        return Drift()
    half = len(at) // 2
    low, high = _slope_interval(at, ahead)
    ppm = (low + high) / 2
    halves = [_slope_interval(at[part], ahead[part]) for part in (slice(half), slice(half, None))]
    # Each interval excludes 0, and both halves overlap the whole: a jump gives one of the halves no slope at all.
    consistent = low * high > 0 and all(first <= high and low <= last and first * last > 0 for first, last in halves)
    gain = abs(ppm) * 1e-6 * int(at[-1] - at[0])
    if not consistent or abs(ppm) > _PPM_AT_MOST or gain <= scatter(at, ahead, ppm):
        return Drift()
    return Drift(ppm, (high - low) / 2)


def thinned(at: Integers, ahead: Integers) -> tuple[Integers, Integers]:
    """Return at most POINTS_AT_MOST points (`at`, `ahead`) in order of time.

    In a point, `ahead` is by how many ns a clock was ahead when it showed the time `at` (ns). If there are too many
    points, neighbours are grouped, and the medians of a group replace its points.
    """
    order = np.argsort(at, kind="stable")
    at, ahead = at[order], ahead[order]
    if len(at) <= _POINTS_AT_MOST:
        return at, ahead
    # All pairs are compared, so the cost grows with the square of the number of points.
    runs = np.array_split(np.arange(len(at)), _POINTS_AT_MOST)
    at, ahead = (np.array([int(np.median(values[run])) for run in runs]) for values in (at, ahead))
    return at, ahead


def _slope_interval(at: Integers, ahead: Integers) -> tuple[float, float]:
    """Return the lower and upper bound of the slope of the points (`at`, `ahead`), in ppm.

    The slopes between all pairs of points are sorted. Their median is the Theil-Sen estimate of the slope. The bounds
    are two other slopes of the sorted list, equally many positions below and above the median (Sen, 1968). The number
    of positions follows from Kendall's statistic: for n points without a trend its variance is n (n - 1) (2 n + 5) /
    18. Both bounds are 0 if all points have the same time.
    """
    first, second = np.triu_indices(len(at), 1)
    passed = at[second] - at[first]
    slopes = np.sort((ahead[second] - ahead[first])[passed > 0] / passed[passed > 0])
    if not len(slopes):
        return 0.0, 0.0
    n = len(at)
    reach = _STANDARD_DEVIATIONS * np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low, high = ((len(slopes) + sign * reach) / 2 for sign in (-1, 1))
    bounds = np.clip([round(low), round(high) - 1], 0, len(slopes) - 1)
    return float(slopes[bounds[0]] * 1e6), float(slopes[bounds[1]] * 1e6)


def scatter(at: Integers, ahead: Integers, ppm: float = 0.0) -> int:
    """Return the median distance of the points (`at`, `ahead`) from a line with the slope `ppm`, in ns.

    In a point, `ahead` is by how many ns a clock was ahead when it showed the time `at` (ns). The line is placed so
    that half of the points lie above it.
    """
    rest = ahead - ppm * 1e-6 * (at - at[0])
    return round(float(np.median(np.abs(rest - np.median(rest)))))


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """The offset of one rank's clock: by how many ns it is ahead of the clock of the first rank.

    The offset is `offset_ns`, and lies between `low_ns` and `high_ns`. It is the offset when the rank's clock shows
    `at_ns` (Unix time in ns); after that it grows by `drift_ppm` parts per million, with a likely error of at most
    `drift_error_ppm`. It was computed from the ends of `collectives` shared collectives; `residual_ns` is the median
    distance of the ends from this line.

    If `same_host` is true, both ranks read the clock of one host, and offset and drift are 0. `estimate_ns` is then, as
    a check, the offset that the collectives alone would give. If no chain of shared collectives connects the two ranks,
    the bounds are None and the offset is 0.
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
        """Whether the bounds of the offset are known, and the lower one is not above the upper one."""
        return self.low_ns is not None and self.high_ns is not None and self.low_ns <= self.high_ns

    def ahead(self, at: Column) -> Integers:
        """Return by how many ns this clock is ahead of the first rank's when it shows the times `at` (Unix ns)."""
        return self.offset_ns + _clock_gain(at - self.at_ns, self.drift_ppm)

    def shows(self, at: Column) -> Integers:
        """Return the times that this clock shows (Unix ns) when the first rank's clock shows the times `at` (Unix ns).

        This is the inverse of subtracting `ahead`: for each result t, `t - ahead(t)` is `at`.
        """
        steady = at + self.offset_ns
        return steady + _clock_gain(steady - self.at_ns, self.drift_ppm / (1 - self.drift_ppm * 1e-6))


@dataclass(frozen=True)
class SharedCollectives:
    """The start and end times (ns) of the symmetric collectives that two ranks both recorded.

    The clock of the second rank is being measured: `other_start` and `other_end` are times of this clock. `start` and
    `end` are the times on the first of the two ranks, already converted to the clock of the job's first rank. `steady`
    means that both ranks read the same clock, so that it cannot drift.
    """

    start: Integers
    end: Integers
    other_start: Integers
    other_end: Integers
    steady: bool = False

    @property
    def middle(self) -> int:
        return int(self.other_end.min() + (self.other_end.max() - self.other_end.min()) // 2)

    @cached_property
    def drift(self) -> Drift:
        return Drift() if self.steady else drift(self.other_end, self.other_end - self.end)

    @property
    def residual(self) -> int:
        return scatter(self.other_end, self.other_end - self.end, self.drift.ppm)

    def without_drift(self, at: Integers) -> Integers:
        """Return times of the measured clock (ns), corrected for its drift.

        The result is what the clock would show if it ran as fast as the first rank's clock. At `middle` nothing
        changes.
        """
        return at - _clock_gain(at - self.middle, self.drift.ppm)

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest possible offset of the measured clock, in ns ahead of the first rank's clock.

        The bounds follow from the fact that no rank leaves a collective before the last rank arrives.
        """
        low = self.without_drift(self.other_start) - self.end
        high = self.without_drift(self.other_end) - self.start
        return int(low.max()), int(high.min())

    @property
    def estimate(self) -> int:
        """The estimated offset of the measured clock, in ns ahead of the first rank's clock.

        It is the median difference between the ends of the collectives in the two clocks, limited to `bounds`.
        """
        low, high = self.bounds
        middle = int(np.median(self.without_drift(self.other_end) - self.end))
        return min(max(middle, low), high) if low <= high else middle


def _clock_gain(passed: Column, ppm: float) -> Integers:
    gain: Integers = np.rint(passed * (ppm * 1e-6)).astype(np.int64)
    return gain


def clocks(matched: MatchedCollectives) -> list[Clock]:
    """Return a `Clock` for each rank, which says by how much its clock is ahead of the first rank's.

    A rank that shares no collective with the first rank is compared with it through other ranks.
    """
    known = {0: Clock(rank=matched.ranks[0], estimate_ns=0, low_ns=0, high_ns=0, same_host=True)}
    start, end, symmetric = matched.column("start"), matched.column("end"), _is_symmetric(matched)
    # Breadth first, so that each rank is reached over as few others as possible: the bounds of a chain add up.
    pending = [0]
    while pending:
        near = pending.pop(0)
        for far in _met_by(matched, near):
            if far in known:
                continue
            shared = _shared_collectives(matched, (start, end, symmetric), (near, far), known[near])
            if shared:
                known[far] = _clock_of(matched.recordings, known[near], (near, far), shared)
                pending.append(far)
    return [known.get(i) or Clock(rank=rank) for i, rank in enumerate(matched.ranks)]


def _met_by(matched: MatchedCollectives, near: int) -> list[int]:
    """Return the indices of the ranks that share a collective with the rank of index `near`, in ascending order."""
    met = np.zeros(matched.count, bool)
    met[matched.collective[matched.rows_by_rank[near]]] = True
    first, size = matched.first_row[met], matched.size[met]
    rows = np.repeat(first - np.cumsum(size) + size, size) + np.arange(size.sum())
    indices: list[int] = np.unique(matched.rank_index[rows]).tolist()
    return indices


def _is_symmetric(matched: MatchedCollectives) -> Mask:
    """Return a mask of the rows of `matched` whose collective ends on all ranks at nearly the same time.

    This is so for an all_reduce, but not for a broadcast.
    """
    names = [SYMMETRIC.search(matched.text(int(row), "name")) is not None for row in matched.first_row]
    return np.array(names, bool)[matched.collective]


def _shared_collectives(
    matched: MatchedCollectives, columns: tuple[Integers, Integers, Mask], indices: tuple[int, int], clock: Clock
) -> SharedCollectives | None:
    """Return the symmetric collectives that two ranks both took part in; None if there are none.

    `columns` has, for each row of `matched`, the start and the end of the collective on that rank, and whether it
    `_is_symmetric`. `indices` are the indices of the two ranks in `matched.ranks`; `clock` belongs to the first of
    these two ranks.
    """
    start, end, symmetric = columns
    mine, theirs = (rows[symmetric[rows]] for rows in (matched.rows_by_rank[index] for index in indices))
    _, i, j = np.intersect1d(
        matched.collective[mine], matched.collective[theirs], assume_unique=True, return_indices=True
    )
    if not len(i):
        return None
    mine, theirs = mine[i], theirs[j]
    starts, ends = (column[mine] - clock.ahead(column[mine]) for column in (start, end))
    return SharedCollectives(starts, ends, start[theirs], end[theirs])


def _clock_of(
    recordings: Sequence[Recording], near_clock: Clock, indices: tuple[int, int], shared: SharedCollectives
) -> Clock:
    """Return the `Clock` of the second of two ranks, computed from the collectives that both took part in (`shared`).

    `indices` are the indices of the two ranks in `recordings`. `near_clock` is the clock of the first of the two, known
    already: its bounds are added to those between the two ranks.
    """
    near, far = (recordings[index] for index in indices)
    host = near.trace.header.get("host")
    same_host = near_clock.same_host and host is not None and host == far.trace.header.get("host")
    shared = replace(shared, steady=same_host)
    low, high = shared.bounds
    return Clock(
        rank=far.rank or 0,
        offset_ns=0 if same_host else shared.estimate,
        estimate_ns=shared.estimate,
        # What is not known of the nearer clock is not known of this one either.
        low_ns=low + (near_clock.low_ns or 0) - near_clock.offset_ns,
        high_ns=high + (near_clock.high_ns or 0) - near_clock.offset_ns,
        collectives=len(shared.end),
        same_host=same_host,
        drift_ppm=round(shared.drift.ppm, 6),
        drift_error_ppm=round(shared.drift.error_ppm, 6),
        residual_ns=shared.residual,
        at_ns=shared.middle,
    )
