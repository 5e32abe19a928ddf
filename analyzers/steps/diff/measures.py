"""Compute how much step time, processor time, memory and loss changed between two runs, with confidence intervals."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec
import numpy as np

from analyzers.columns import Floats
from analyzers.steps.answers.losses import mean_by_step
from analyzers.steps.diff.resampling import (
    BOUNDS_PERCENT,
    SEED,
    STEPS_PLENTY,
    Statistic,
    block_resamples,
    change_bounds,
    permutation_bounds,
    thinned,
)
from analyzers.steps.table import Steps

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
    """Return the change of each measure that both runs record."""
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
    """Return the 95th percentile of a series; with `axis=1`, of each row."""
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
    few = STEPS_AT_LEAST <= samples < STEPS_PLENTY
    bounds = permutation_bounds(x, y, statistic) if few else change_bounds(x, y, statistic)
    # The 95th percentile of fewer than 20 steps is the slowest of them.
    sufficient = samples >= (STEPS_PLENTY if measure is Measure.STEP_TIME_P95 else STEPS_AT_LEAST)
    return _change_of(measure, (statistic(x), statistic(y)), bounds, samples, is_sufficient=sufficient)


def _memory_change(a: Steps, b: Steps) -> MeasureChange | None:
    """Return the change of the peak memory on the rank that used most; None if a run does not record memory.

    The confidence interval is wide if only one step reaches the peak.
    """
    x, y = (thinned(steps.grid(steps.table["memory_bytes"]).max(axis=1).to_numpy()) for steps in (a, b))
    if not x.max(initial=0) or not y.max(initial=0):
        return None
    bounds = change_bounds(x, y, np.max)
    return _change_of(Measure.MEMORY, (x.max(), y.max()), bounds, min(len(x), len(y)), is_sufficient=True)


def _loss_change(a: Steps, b: Steps) -> MeasureChange | None:
    """Return the change of the mean loss over the last steps that both runs have.

    The result is None if they have no step in common, or if the mean loss is 0. The bootstrap resamples the differences
    between the runs. Losses fall over time, so resampling the losses themselves would make the interval far too wide.
    """
    x, y = (mean_by_step(steps, "loss") for steps in (a, b))
    common = x.index.intersection(y.index)
    # Early losses fall fast and differ by the seed; the end of the common steps shows where the runs go.
    last = common[int(len(common) * _LOSS_FROM) :] if len(common) >= STEPS_PLENTY else common
    if not len(last) or not x[last].mean():
        return None
    before, after = (thinned(np.asarray(losses[last], dtype=float)) for losses in (x, y))
    resampled = block_resamples(after - before, np.random.default_rng(SEED)).mean(axis=1) / abs(before.mean())
    change = (after.mean() - before.mean()) / abs(before.mean())
    # The standard error shrinks with the square root of the steps: few ones stretch the interval.
    stretch = np.sqrt(max(1.0, STEPS_PLENTY / len(common)))
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
