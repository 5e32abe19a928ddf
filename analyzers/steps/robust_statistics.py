"""Compute statistics that single outliers hardly change: medians, and the spread of values around their median."""

import numpy as np

from analyzers.columns import Floats

MAD_TO_STD = 1.4826
"""The factor from the median absolute deviation to the standard deviation of normal noise: 1 / Phi^-1(3/4)."""


def robust_deviation(values: Floats) -> float:
    """Return the standard deviation of the values, estimated from their median absolute deviation (MAD)."""
    return MAD_TO_STD * float(np.median(np.abs(values - np.median(values))))


def column_medians(table: Floats) -> Floats:
    """Return the median of each column, ignoring NaN; NaN for a column of NaNs."""
    counts = (~np.isnan(table)).sum(axis=0)
    medians = np.full(table.shape[1], np.nan)
    # np.nanmedian is far slower. Partitioning puts NaN behind all numbers, so columns with equally many share a middle.
    for count in np.unique(counts[counts > 0]).tolist():
        middle, same = [(count - 1) // 2, count // 2], counts == count
        medians[same] = np.partition(table[:, same], middle, axis=0)[middle].sum(axis=0) / 2
    return medians
