"""Whether one clock runs faster than another, by a robust line through how far it is ahead at different moments."""

from typing import NamedTuple

import numpy as np

from analyzers.columns import Column

POINTS_AT_LEAST, POINTS_AT_MOST = 20, 128
SURE = 3.0
"""Standard deviations of Kendall's statistic that the interval of the slope spans on each side."""
PPM_AT_MOST = 1000.0
"""Crystals are off by tens of ppm and NTP slews by 500 at most: what is faster is no drift but a wrong match."""


class Drift(NamedTuple):
    """Parts per million by which a clock runs fast, and how far the truth may be from that."""

    ppm: float = 0.0
    error_ppm: float = 0.0


def drift(at: Column, ahead: Column) -> Drift:
    """The drift in `ahead` (ns by which a clock is ahead when it shows `at`); zero unless the points prove one.

    They do if both halves of the time show it alike, which a jump does not, and if it moves the clock further than
    single points scatter.
    """
    at, ahead = thinned(at, ahead)
    if len(at) < POINTS_AT_LEAST:
        return Drift()
    half = len(at) // 2
    low, high = interval(at, ahead)
    ppm = (low + high) / 2
    halves = [interval(at[part], ahead[part]) for part in (slice(half), slice(half, None))]
    alike = low * high > 0 and all(first <= high and low <= last and first * last > 0 for first, last in halves)
    moved = abs(ppm) * 1e-6 * int(at[-1] - at[0])
    if not alike or abs(ppm) > PPM_AT_MOST or moved <= scatter(at, ahead, ppm):
        return Drift()
    return Drift(ppm, (high - low) / 2)


def thinned(at: Column, ahead: Column) -> tuple[Column, Column]:
    """The points in order of time; of many the medians of as many runs of neighbours as are worth comparing."""
    order = np.argsort(at, kind="stable")
    at, ahead = at[order], ahead[order]
    if len(at) <= POINTS_AT_MOST:
        return at, ahead
    runs = np.array_split(np.arange(len(at)), POINTS_AT_MOST)
    at, ahead = (np.array([int(np.median(values[run])) for run in runs]) for values in (at, ahead))
    return at, ahead


def interval(at: Column, ahead: Column) -> tuple[float, float]:
    """Bounds of the slope, in ppm, by ranks of the slopes between all pairs of points (Theil, Sen)."""
    first, second = np.triu_indices(len(at), 1)
    apart = at[second] - at[first]
    slopes = np.sort((ahead[second] - ahead[first])[apart > 0] / apart[apart > 0])
    if not len(slopes):
        return 0.0, 0.0
    n = len(at)
    reach = SURE * np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low, high = ((len(slopes) + sign * reach) / 2 for sign in (-1, 1))
    places = np.clip([round(low), round(high) - 1], 0, len(slopes) - 1)
    return float(slopes[places[0]] * 1e6), float(slopes[places[1]] * 1e6)


def scatter(at: Column, ahead: Column, ppm: float = 0.0) -> int:
    """The median distance, in ns, of the points from their line."""
    rest = ahead - ppm * 1e-6 * (at - at[0])
    return round(float(np.median(np.abs(rest - np.median(rest)))))
