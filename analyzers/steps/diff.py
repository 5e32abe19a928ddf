"""Compare the losses, the measures and the phases of the steps of two runs."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec
import numpy as np

from analyzers.columns import Column, Floats, Integers, Mask
from analyzers.steps.losses import mean_by_step
from analyzers.steps.step_times import LONGEST_SERIES
from analyzers.steps.table import Steps
from analyzers.words import IN_NO_PHASE

_DIVERGED = 1e-2
"""Losses have diverged if they differ by more than this share of the first run's loss."""


class LossParity(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of the losses of two runs in the steps that both have.

    `steps` is the number of these steps, and `identical` says whether all losses are exactly equal. `largest` is the
    largest absolute difference. `differs_from` is the first step with a different loss. `diverges_from` (`apart_from`
    in JSON) is the step from which on all losses differ by more than 1 %. The two are None if there is no such step.
    """

    steps: int
    identical: bool
    largest: float
    differs_from: int | None
    diverges_from: int | None = msgspec.field(name="apart_from")


def loss_parity(a: Steps, b: Steps) -> LossParity | None:
    """Return a `LossParity` that compares the losses of two runs step by step; None if they have no step in common."""
    x, y = (mean_by_step(steps, "loss") for steps in (a, b))
    common = x.index.intersection(y.index)
    if not len(common):
        return None
    before, after = x[common].to_numpy(), y[common].to_numpy()
    difference = np.abs(after - before)
    differing = np.flatnonzero(difference > 0)
    return LossParity(
        steps=len(common),
        identical=not len(differing),
        largest=float(difference.max()),
        differs_from=int(common[differing[0]]) if len(differing) else None,
        diverges_from=diverges_from(np.asarray(common), difference > _DIVERGED * np.abs(before)),
    )


def diverges_from(steps: Column, diverged: Mask) -> int | None:
    """Return the step from which on the losses stay diverged; None if they agree at the last step.

    `diverged` says, for each of the ascending `steps`, whether the losses differ by more than the tolerance.
    """
    if not diverged[-1]:
        return None
    # Single steps may agree by chance; only what stays diverged counts.
    close = np.flatnonzero(~diverged)
    return int(steps[close[-1] + 1 if len(close) else 0])


class PhaseChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of the mean duration of one phase of a step (`what`) from run `a` to run `b`, in seconds per step.

    The changes of all phases add up to the change of the mean step. Only steps that did nothing besides training count.
    """

    what: str
    a_s: float
    b_s: float
    change_s: float


def phase_changes(a: Steps, b: Steps) -> list[PhaseChange]:
    """Return a `PhaseChange` for each phase, the largest change first; the time outside of phases comes last.

    The list is empty if one of the runs has no step that did nothing besides training.
    """
    before, after = _mean_phases(a), _mean_phases(b)
    if not before or not after:
        return []
    changes = [
        PhaseChange(what=name, a_s=x, b_s=y, change_s=y - x)
        for name in before | after
        for x, y in [(before.get(name, 0.0), after.get(name, 0.0))]
    ]
    return sorted(changes, key=lambda phase: (phase.what == IN_NO_PHASE, -abs(phase.change_s)))


def _mean_phases(steps: Steps) -> dict[str, float]:
    """Return the mean seconds of each phase over all ranks, and of the time outside of phases.

    Only steps that did nothing besides training count; the result is empty if there are none.
    """
    rows = steps.plain.to_numpy()
    if not rows.any():
        return {}
    # Means, not medians: only they add up to the mean step.
    phases = {name: float(steps.phases.at(name, rows).mean()) for name in steps.phases}
    return {**phases, IN_NO_PHASE: float(steps.table["dur_s"].to_numpy()[rows].mean()) - sum(phases.values())}


# Compute confidence intervals for the change between two series, by block bootstrap and by permutation test.
#
# Neighbouring steps resemble each other, so drawing single steps as if they were independent would be wrong. Instead,
# blocks of about n^(1/3) neighbours are drawn (moving block bootstrap; Künsch, Annals of Statistics 17, 1989). A
# fixed seed makes two runs of the program give the same interval.
#
# With fewer than STEPS_PLENTY steps a bootstrap underestimates the uncertainty. The interval then holds all relative
# changes that a permutation test does not reject (Fisher; "test inversion").

_STEPS_PLENTY = 20
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


def _change_bounds(x: Floats, y: Floats, statistic: Statistic) -> Floats:
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


STEPS_AT_LEAST = 5
"""The number of steps that a verdict needs: steps that did nothing but train, or for the loss, steps with a loss."""
_LOSS_FROM = 0.75
"""The share of the steps that both runs have after which losses are compared; earlier losses do not count."""


class Measure(StrEnum):
    """A measure by which two runs are compared.

    `step_time`, `step_time_mean` and `step_time_p95` are the median, the mean and the 95th percentile of the step
    times. `processor_time` is the median processor time of a step, `memory` the peak memory, and `loss` the mean loss
    of the last common steps.
    """

    STEP_TIME = "step_time"
    STEP_TIME_MEAN = "step_time_mean"
    STEP_TIME_P95 = "step_time_p95"
    PROCESSOR_TIME = "processor_time"
    MEMORY = "memory"
    LOSS = "loss"


ALLOWED_CHANGES: Mapping[str, float] = {
    Measure.STEP_TIME: 0.05,
    Measure.STEP_TIME_MEAN: 0.05,
    Measure.MEMORY: 0.05,
    Measure.LOSS: 0.02,
}
"""{measure: relative increase that is allowed by default}; other measures may increase by any amount.

An increase is a regression if the lower end of its confidence interval is above the allowed one.
"""


class MeasureChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of a measure from run `a` to run `b`.

    `a` and `b` are the values of the measure in the two runs: seconds for times, bytes for `memory`, and a mean loss
    for `loss`. `change` is relative to `a` (0.1: 10 % more), and lies between `low` and `high` with 95 % confidence.
    `samples` is the number of steps behind it, taken from the run with fewer steps. `is_sufficient` (`enough` in JSON)
    says whether these are enough steps for a verdict.
    """

    measure: Measure
    a: float
    b: float
    change: float
    low: float
    high: float
    samples: int
    is_sufficient: bool = msgspec.field(name="enough")

    @property
    def is_exact(self) -> bool:
        """Whether the values are exact, such as the peak in a snapshot, rather than estimated from steps."""
        return self.low == self.high


def measure_changes(a: Steps, b: Steps) -> list[MeasureChange]:
    step_s, processor_s = (plain_times(a), plain_times(b)), (_processor_times(a), _processor_times(b))
    changes = [
        _time_change(Measure.STEP_TIME, step_s, np.median),
        _time_change(Measure.STEP_TIME_MEAN, step_s, np.mean),
        _time_change(Measure.STEP_TIME_P95, step_s, _percentile_95),
        _time_change(Measure.PROCESSOR_TIME, processor_s, np.median),
        _memory_change(a, b),
        _loss_change(a, b),
    ]
    return [change for change in changes if change]


def plain_times(steps: Steps) -> Floats:
    """Return the duration in seconds of each step that did nothing besides training (median over ranks)."""
    return steps.grid(steps.table["dur_s"], steps.plain).dropna(how="all").median(axis=1).to_numpy()


def _processor_times(steps: Steps) -> Floats:
    """Return the processor seconds of each step that only trained (median over ranks); empty if not recorded.

    Other jobs on the machine hardly influence processor time.
    """
    if not steps.cpu:
        return np.array([])
    return steps.grid(steps.cpu.total(steps.cpu), steps.plain).dropna(how="all").median(axis=1).to_numpy()


def _percentile_95(values: Floats, /, *, axis: int | None = None) -> Floats:
    return np.asarray(np.quantile(values, 0.95, axis=axis))


def _time_change(measure: Measure, times: tuple[Floats, Floats], statistic: Statistic) -> MeasureChange | None:
    """Return the change of a statistic, such as the median, of the step times of two runs; None if a run has none.

    `times` has the step times of both runs, or their processor times, in seconds.
    """
    # All ranks of a synchronised step last equally long: the median over ranks is the step.
    x, y = map(thinned, times)
    if not len(x) or not len(y) or not statistic(x):
        return None
    samples = min(len(x), len(y))
    few = STEPS_AT_LEAST <= samples < _STEPS_PLENTY
    bounds = permutation_bounds(x, y, statistic) if few else _change_bounds(x, y, statistic)
    # The 95th percentile of fewer than 20 steps is the slowest of them.
    sufficient = samples >= (_STEPS_PLENTY if measure is Measure.STEP_TIME_P95 else STEPS_AT_LEAST)
    return _change_of(measure, (statistic(x), statistic(y)), bounds, samples, is_sufficient=sufficient)


def _memory_change(a: Steps, b: Steps) -> MeasureChange | None:
    """Return the change of the peak memory on the rank that used most; None if a run does not record memory.

    The confidence interval is wide if only one step reaches the peak.
    """
    x, y = (thinned(steps.grid(steps.table["memory_bytes"]).max(axis=1).to_numpy()) for steps in (a, b))
    if not x.max(initial=0) or not y.max(initial=0):
        return None
    bounds = _change_bounds(x, y, np.max)
    return _change_of(Measure.MEMORY, (x.max(), y.max()), bounds, min(len(x), len(y)), is_sufficient=True)


def _loss_change(a: Steps, b: Steps) -> MeasureChange | None:
    """Return the change of the mean loss over the last steps that both runs have.

    The result is None if they have no step in common, or if the mean loss is 0. The bootstrap resamples the differences
    between the runs. Losses fall over time, so resampling the losses themselves would make the interval far too wide.
    """
    x, y = (mean_by_step(steps, "loss") for steps in (a, b))
    common = x.index.intersection(y.index)
    # Early losses fall fast and differ by the seed; the end of the common steps shows where the runs go.
    last = common[int(len(common) * _LOSS_FROM) :] if len(common) >= _STEPS_PLENTY else common
    if not len(last) or not x[last].mean():
        return None
    before, after = (thinned(np.asarray(losses[last], dtype=float)) for losses in (x, y))
    resampled = block_resamples(after - before, np.random.default_rng(SEED)).mean(axis=1) / abs(before.mean())
    change = (after.mean() - before.mean()) / abs(before.mean())
    # The standard error shrinks with the square root of the steps: few ones stretch the interval.
    stretch = np.sqrt(max(1.0, _STEPS_PLENTY / len(common)))
    bounds = change + (np.percentile(resampled, BOUNDS_PERCENT) - change) * stretch
    sufficient = len(common) >= STEPS_AT_LEAST
    return _change_of(Measure.LOSS, (before.mean(), after.mean()), bounds, len(common), is_sufficient=sufficient)


def _change_of(
    measure: Measure, ends: Sequence[float], bounds: Floats, samples: int, *, is_sufficient: bool
) -> MeasureChange:
    """Return a `MeasureChange` from `ends[0]`, the value in the first run, to `ends[1]`, the value in the second run.

    `bounds` are the lower and the upper bound of the relative change; `samples` is the number of steps that it is based
    on.
    """
    a, b = map(float, ends)
    return MeasureChange(
        measure=measure,
        a=a,
        b=b,
        change=(b - a) / abs(a),
        low=float(bounds[0]),
        high=float(bounds[1]),
        samples=samples,
        is_sufficient=is_sufficient,
    )
