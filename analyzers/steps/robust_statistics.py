"""Statistics that single values out of line do not move."""

import numpy as np

from analyzers.steps.reading.log_lines import Array

NORMAL = 1.4826
"""Median absolute deviation -> standard deviation, where values are normal."""


def deviation(values: Array) -> float:
    """The standard deviation that the median distance from the median stands for."""
    return NORMAL * float(np.median(np.abs(values - np.median(values))))


def middles(table: Array) -> Array:
    """The median of each column, of what is not NaN in it; NaN of nothing."""
    counts = (~np.isnan(table)).sum(axis=0)
    found = np.full(table.shape[1], np.nan)
    for count in np.unique(counts[counts > 0]).tolist():  # NaN is sorted behind all, so each count has its own middle
        places, same = [(count - 1) // 2, count // 2], counts == count
        found[same] = np.partition(table[:, same], places, axis=0)[places].sum(axis=0) / 2
    return found
