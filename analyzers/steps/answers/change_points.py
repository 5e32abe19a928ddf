"""Where the level of a series changes: exact segmentation of its ranks.

Values are replaced by their ranks, so neither outliers nor the shape of the noise matter, and its variance is known.
Over all ways to cut the series into segments, the sum of squared distances from the segments' means plus a penalty for
each cut is smallest for the one returned (optimal partitioning, Jackson et al. 2005). In units of the ranks' variance a
cut without cause gains what the largest of many chi-squared variables of one degree does, about 2 log n; PENALTY leaves
room for the search over both ends of a segment: over thousands of series of noise less than one in a thousand is cut.
Neighbouring steps that resemble each other count for fewer steps.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from analyzers.steps.reading.log_lines import Array

PENALTY = 4.0
SHORTEST = 5
"""Steps of a segment."""
LONGEST_SERIES = 2000
"""Longer ones are cut between blocks of steps, of which the median counts."""


@dataclass(frozen=True)
class Segment:
    """A stretch of constant level: positions `begin` to `end` (without), and the median in it."""

    begin: int
    end: int
    level: float


def segments(values: Array) -> list[Segment]:
    """The stretches of constant level, in order; one if there is no change."""
    block = -(-len(values) // LONGEST_SERIES)
    whole = len(values) // block * block
    medians = np.median(values[:whole].reshape(-1, block), axis=1) if block > 1 else values
    cuts = [cut * block for cut in cuts_of(standard_ranks(medians), penalty(medians))]
    bounds = [0, *cuts, len(values)]
    return [Segment(a, b, float(np.median(values[a:b]))) for a, b in pairwise(bounds) if b > a]


def penalty(values: Array) -> float:
    """What a cut costs, more where neighbours resemble each other."""
    alike = resemblance(values)
    return float(PENALTY * np.log(max(len(values), 2)) * (1 + alike) / (1 - alike))


def resemblance(values: Array) -> float:
    """Correlation of neighbours, from differences over one and two steps, which a few changes of level do not touch."""
    if len(values) < 3 * SHORTEST:
        return 0.0
    near, far = (float(np.median(np.abs(values[lag:] - values[:-lag]))) for lag in (1, 2))
    return float(np.clip((far / near) ** 2 - 1, 0.0, 0.8)) if near > 0 else 0.0


def standard_ranks(values: Array) -> Array:
    """Ranks of mean 0 and variance 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    spread = ranks.std()
    return (ranks - ranks.mean()) / spread if spread else np.zeros(len(values))


def cuts_of(values: Array, price: float) -> list[int]:
    """The positions of the cuts of the cheapest segmentation."""
    count = len(values)
    sums, squares = (np.concatenate([[0.0], np.cumsum(v)]) for v in (values, values * values))
    cost = np.full(count + 1, np.inf)
    cost[0], last = -price, np.zeros(count + 1, dtype=int)
    for end in range(SHORTEST, count + 1):
        begin = np.arange(end - SHORTEST + 1)
        inner = squares[end] - squares[begin] - (sums[end] - sums[begin]) ** 2 / (end - begin)
        total = cost[begin] + inner + price
        last[end] = int(total.argmin())
        cost[end] = total[last[end]]
    cuts, end = [], count
    while end > 0 and (end := int(last[end])) > 0:
        cuts.append(end)
    return cuts[::-1]
