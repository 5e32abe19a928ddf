"""Find where the level of a series changes, by exact segmentation of its ranks, which is robust against outliers.

A *rank* here is the position of a value in sorted order. A *cut* is an index at which the level changes.

1. Values are replaced by their ranks, scaled to mean 0 and variance 1. Then neither outliers nor the shape of the
   noise matter, and the variance is known.
2. Of all ways to cut the series into segments, the cheapest one is returned. The cost is the sum of squared distances
   from the segments' means, plus a penalty for each cut. "Optimal partitioning" finds it exactly in O(n^2) (Jackson et
   al., An algorithm for optimal partitioning of data on an interval, IEEE Signal Processing Letters 12, 2005).
3. The penalty: in units of the variance, a cut without any cause still lowers the cost by about 2 log n (the largest
   of n chi-squared variables of one degree of freedom). The penalty is PENALTY log n with PENALTY = 4, because both
   ends of a segment are searched. Of thousands of series of pure noise, less than one in a thousand is cut.
4. If steps resemble their neighbours (autocorrelation r), they carry less information than independent ones. So the
   penalty grows by (1 + r) / (1 - r), the variance inflation of an AR(1) process.

Example: `[1.0, 1.1, 0.9] * 5 + [2.0, 2.1, 1.9] * 5` with an outlier of 9.0 at index 3. As a rank the outlier is only
the largest of 30 values. The cut at 15 lowers the sum of squares from 30.0 by 17.3, which is more than the penalty of 4
log 30 = 13.6. No other cut does so: `segments` returns the levels 1.0 (0 to 15) and 2.0 (15 to 30). With only 10 + 10
such values the cut saves 9.8 and costs 12.0: so few values prove no change.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from analyzers.columns import Floats

_PENALTY = 4.0
SHORTEST = 5
"""The smallest number of values in a segment between two changes."""
LONGEST_SERIES = 2000
"""The length above which a series is replaced by the medians of blocks of its values.

It is then cut only between blocks. The cost of the search grows with the square of the length.
"""


@dataclass(frozen=True)
class Segment:
    """A part of a series with a constant level: the values `begin` to `end` (exclusive), and their median `level`."""

    begin: int
    end: int
    level: float


def segments(values: Floats) -> list[Segment]:
    """Return the segments of constant level in a series, in order; a single segment if the level never changes."""
    block = -(-len(values) // LONGEST_SERIES)
    # Values after the last whole block belong to the last segment.
    whole = len(values) // block * block
    # Medians, so that a block with an outlier is no outlier.
    medians = np.median(values[:whole].reshape(-1, block), axis=1) if block > 1 else values
    cuts = [cut * block for cut in cheapest_cuts(standard_ranks(medians), penalty(medians))]
    bounds = [0, *cuts, len(values)]
    return [Segment(a, b, float(np.median(values[a:b]))) for a, b in pairwise(bounds) if b > a]


def penalty(values: Floats) -> float:
    """Return the penalty for each cut in a segmentation; it is so high that noise alone is not cut.

    For n values it is PENALTY log n, times (1 + r) / (1 - r), where r is the correlation of neighbouring values.
    """
    correlation = _neighbour_correlation(values)
    return float(_PENALTY * np.log(max(len(values), 2)) * (1 + correlation) / (1 - correlation))


def _neighbour_correlation(values: Floats) -> float:
    """Return the correlation of neighbouring values, limited to 0 to 0.8; 0 for a series too short to estimate it.

    The estimate uses two variances: of the differences between values one step apart, 2 s^2 (1 - r), and two steps
    apart, 2 s^2 (1 - r^2). Their ratio is 1 + r. Unlike the usual estimate, a few changes of level do not increase this
    one.
    """
    if len(values) < 3 * SHORTEST:
        return 0.0
    lag1, lag2 = (float(np.median(np.abs(values[lag:] - values[:-lag]))) for lag in (1, 2))
    return float(np.clip((lag2 / lag1) ** 2 - 1, 0.0, 0.8)) if lag1 > 0 else 0.0


def standard_ranks(values: Floats) -> Floats:
    """Return each value's rank in sorted order, scaled to mean 0 and variance 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    spread = ranks.std()
    return (ranks - ranks.mean()) / spread if spread else np.zeros(len(values))


def cheapest_cuts(values: Floats, cut_cost: float) -> list[int]:
    """Return the indices at which new segments begin in the segmentation of lowest cost; each cut costs `cut_cost`.

    In the code, `cost[end]` is the lowest cost for the first `end` values. It is the minimum over `begin` of three
    terms: `cost[begin]`, the squared distances within `begin..end` (from cumulative sums), and `cut_cost`.
    """
    count = len(values)
    sums, squares = (np.concatenate([[0.0], np.cumsum(v)]) for v in (values, values * values))
    cost = np.full(count + 1, np.inf)
    cost[0], last_cut = -cut_cost, np.zeros(count + 1, dtype=int)  # the first segment needs no cut
    for end in range(SHORTEST, count + 1):
        begin = np.arange(end - SHORTEST + 1)
        distances = squares[end] - squares[begin] - (sums[end] - sums[begin]) ** 2 / (end - begin)
        total = cost[begin] + distances + cut_cost
        last_cut[end] = int(total.argmin())
        cost[end] = total[last_cut[end]]
    # Walk back from the end: each best last cut is the end of the best segmentation before it.
    cuts, end = [], count
    while end > 0 and (end := int(last_cut[end])) > 0:
        cuts.append(end)
    return cuts[::-1]
