"""Statistics that single values out of line do not move."""

import numpy as np

from analyzers.steps.lines import Array

NORMAL = 1.4826
"""Median absolute deviation -> standard deviation, where values are normal."""


def deviation(values: Array) -> float:
    """The standard deviation that the median distance from the median stands for."""
    return NORMAL * float(np.median(np.abs(values - np.median(values))))
