"""Estimate whether one clock runs faster than another, by a robust line through their differences over time.

The differences come from collectives that end on both ranks at nearly the same time. Each such collective gives one
point.
"""

from typing import NamedTuple

import numpy as np

from analyzers.columns import Integers

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
