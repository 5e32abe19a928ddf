"""Compute confidence intervals for the change between two series, by block bootstrap and by permutation test.

Neighbouring steps resemble each other, so drawing single steps as if they were independent would be wrong. Instead,
blocks of about n^(1/3) neighbours are drawn (moving block bootstrap; Künsch, Annals of Statistics 17, 1989). A fixed
seed makes two runs of the program give the same interval.

With fewer than STEPS_PLENTY steps a bootstrap underestimates the uncertainty. The interval then holds all relative
changes that a permutation test does not reject (Fisher; "test inversion").
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from analyzers.columns import Floats, Integers
from analyzers.steps.answers.change_points import LONGEST_SERIES

STEPS_PLENTY = 20
"""The number of steps from which on the bootstrap is accurate enough."""
_DRAWS, SEED = 2000, 17
BOUNDS_PERCENT = (2.5, 97.5)
"""The percentiles between which 95 % of the draws lie."""
REJECTED = 0.05
_HALVINGS = 20
"""The number of times that an interval is halved to find a boundary; a millionth of the interval remains."""
_TINY = 1e-9


class Statistic(Protocol):
    """A function that reduces a series to a number, such as `np.median`; with `axis=1`, each row of a table."""

    def __call__(self, values: Floats, /, *, axis: int | None = None) -> Any: ...


def change_bounds(x: Floats, y: Floats, statistic: Statistic) -> Floats:
    """Return the 95 % interval (low, high) of a statistic's relative change from `x` to `y`, by block bootstrap."""
    rng = np.random.default_rng(SEED)
    # Each run is drawn by itself: their steps have nothing to do with each other.
    after = statistic(block_resamples(y, rng), axis=1)
    before = statistic(block_resamples(x, rng), axis=1)
    bounds: Floats = np.percentile(after / np.maximum(before, _TINY) - 1, BOUNDS_PERCENT)
    return bounds


def permutation_bounds(x: Floats, y: Floats, statistic: Statistic) -> Floats:
    """Return the interval (low, high) of relative changes that turn `x` into a series that does not differ from `y`.

    For a change c, `x` times 1 + c is compared with `y` by a permutation test. All values are split at random into two
    series, many times. The two series differ if fewer than 5 % of these splits have as large a difference of
    `statistic` (such as the median).

    Example: x = 10 ms and y = 15 ms on average, both with much noise. Scaled by 1.5, x equals y (p value 1); scaled by
    1.2 or 1.8 it differs more than 95 % of random splits do. The interval is then +20 % to +80 %.
    """
    order = np.random.default_rng(SEED).permuted(np.tile(np.arange(len(x) + len(y)), (_DRAWS, 1)), axis=1)

    def is_rejected(change: float) -> bool:
        return _split_chance(x * (1 + change), y, statistic, order) < REJECTED

    # Scaled by this, x equals y, so it is inside; -1 (nothing left) and twice the ratio are outside.
    change = float(statistic(y) / statistic(x)) - 1
    return np.array([_boundary(is_rejected, change, -1.0), _boundary(is_rejected, change, 2 * change + 2)])


def _boundary(is_rejected: Callable[[float], bool], inside: float, outside: float) -> float:
    """Return, by bisection, the relative change at which the permutation test begins to reject.

    `is_rejected` is a function that says whether the test rejects a change. The result lies between `inside`, which is
    not rejected, and `outside`, which is rejected.
    """
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if is_rejected(middle) else (middle, outside)
    return inside


def _split_chance(x: Floats, y: Floats, statistic: Statistic, order: Integers) -> float:
    """Return the p value: the share of random splits of all steps into two runs that differ as much as `x` and `y` do.

    The compared number is `statistic`, such as the median. `order` has a random order of all steps in each row; it is
    the same for every call, so that bisection converges.
    """
    dealt = np.concatenate([x, y])[order]
    difference = statistic(dealt[:, len(x) :], axis=1) - statistic(dealt[:, : len(x)], axis=1)
    observed = abs(float(statistic(y) - statistic(x)))
    # With a little room: rounding must not make an equal difference smaller.
    return float((np.abs(difference) >= observed * (1 - _TINY)).mean())


def block_resamples(values: Floats, rng: np.random.Generator) -> Floats:
    """Return bootstrap resamples of a series of n values, as float64[DRAWS, n].

    Each row is made of random blocks of neighbouring values; a block that reaches the end continues at the beginning.
    """
    count = len(values)
    block = max(1, round(count ** (1 / 3)))
    # Wrapping around gives the first and last steps the same chance as the others.
    begins = rng.integers(count, size=(_DRAWS, -(-count // block)))
    indices = (begins[:, :, None] + np.arange(block)) % count
    return values[indices.reshape(_DRAWS, -1)[:, :count]]


def thinned(values: Floats) -> Floats:
    """Return every n-th value of a series, with n such that at most LONGEST_SERIES values remain.

    Without this, 2000 resamples of 100 000 steps would fill the memory.
    """
    every = -(-len(values) // LONGEST_SERIES) if len(values) else 1
    return values[::every]
