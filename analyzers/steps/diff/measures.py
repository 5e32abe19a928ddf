"""Two runs side by side: how much a measure changed, with an interval that says how sure that is.

Intervals are percentiles of a block bootstrap with a fixed seed: neighbouring steps resemble each other, so blocks of
them are drawn, for each run on its own; losses of two runs are drawn together, step by step. Of few steps resampling
shows too little of what could have been: the interval of the step time then holds the changes that a permutation test
does not refuse, and others are stretched.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from analyzers.steps.answers.change_points import LONGEST_SERIES
from analyzers.steps.answers.losses import mean_by_step
from analyzers.steps.reading.log_lines import Array
from analyzers.steps.table import Steps

STEPS_AT_LEAST, STEPS_PLENTY = 5, 20
"""Plain steps, or steps with a loss, that a verdict needs; fewer than plenty widen its interval."""
REFUSED = 0.05
HALVINGS = 20
DRAWS, SEED = 2000, 17
SURE = (2.5, 97.5)
LOSS_FROM = 0.75
"""The loss is compared over the steps after this share of the common ones."""
TINY = 1e-9
REST = "in no phase"
APART = 1e-2
"""Losses have parted where they stay this far apart, relative to themselves."""


Statistic = Callable[..., Any]


class Contrast(msgspec.Struct, frozen=True, kw_only=True):
    """A measure in two runs: `step_time` (median), `step_time_mean`, `step_time_p95` and
    `processor_time` (median) in seconds, `memory` in bytes of the fullest rank, `loss`.

    `change` from `a` to `b` is relative and lies between `low` and `high` with 95 %; `samples`: how many steps the
    smaller run gave; `enough`: whether they suffice for a verdict.
    """

    measure: str
    a: float
    b: float
    change: float
    low: float
    high: float
    samples: int
    enough: bool


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """The losses of two runs at their common steps. `differs_from`: the first step with another value, `apart_from`:
    the one from which on they stay more than one per cent apart; None if never.
    """

    steps: int
    identical: bool
    largest: float
    differs_from: int | None
    apart_from: int | None


class PhaseChange(msgspec.Struct, frozen=True, kw_only=True):
    """Mean seconds of a phase in a plain step of both; the changes of all phases add up to that of the mean step."""

    what: str
    a_s: float
    b_s: float
    change_s: float


def attribution(a: Steps, b: Steps) -> list[PhaseChange]:
    """What a mean step gained and lost, the largest change first and what no phase holds last; maybe nothing."""
    before, after = mean_phases(a), mean_phases(b)
    found = [
        PhaseChange(what=name, a_s=x, b_s=y, change_s=y - x)
        for name in before | after
        for x, y in [(before.get(name, 0.0), after.get(name, 0.0))]
    ]
    return sorted(found, key=lambda one: (one.what == REST, -abs(one.change_s))) if before and after else []


def mean_phases(steps: Steps) -> dict[str, float]:
    """Of the plain steps of all ranks: seconds by phase, and the rest, which makes them add up to the mean step."""
    rows = steps.plain.to_numpy()
    if not rows.any():
        return {}
    spent = {name: float(steps.phases.at(name, rows).mean()) for name in steps.phases}
    return {**spent, REST: float(steps.table["dur_s"].to_numpy()[rows].mean()) - sum(spent.values())}


def contrasts(a: Steps, b: Steps) -> list[Contrast]:
    """The measures that both runs know."""
    times, busy = (plain_times(a), plain_times(b)), (processor_times(a), processor_times(b))
    found = [
        seconds(times, "step_time", np.median),
        seconds(times, "step_time_mean", np.mean),
        seconds(times, "step_time_p95", p95),
        seconds(busy, "processor_time", np.median),
        memory(a, b),
        loss(a, b),
    ]
    return [contrast for contrast in found if contrast]


def p95(values: Array, axis: int | None = None) -> Array:
    return np.asarray(np.quantile(values, 0.95, axis=axis))


def seconds(times: tuple[Array, Array], measure: str, statistic: Statistic) -> Contrast | None:
    """A measure of the plain steps of both runs, by their times."""
    x, y = map(thinned, times)
    if not len(x) or not len(y) or not statistic(x):
        return None
    samples, rng = min(len(x), len(y)), np.random.default_rng(SEED)
    if STEPS_AT_LEAST <= samples < STEPS_PLENTY:
        bounds = not_refused(x, y, statistic)
    else:
        ratios = statistic(drawn(y, rng), axis=1) / np.maximum(statistic(drawn(x, rng), axis=1), TINY) - 1
        bounds = np.percentile(ratios, SURE)
    enough = samples >= (STEPS_PLENTY if measure == "step_time_p95" else STEPS_AT_LEAST)
    return contrast(measure, (statistic(x), statistic(y)), bounds, samples, enough=enough)


def not_refused(x: Array, y: Array, statistic: Statistic) -> Array:
    """The lowest and the highest relative change of `x` that leaves it hard to tell from `y`."""
    order = np.random.default_rng(SEED).permuted(np.tile(np.arange(len(x) + len(y)), (DRAWS, 1)), axis=1)

    def refused(change: float) -> bool:
        return chance(x * (1 + change), y, statistic, order) < REFUSED

    change = float(statistic(y) / statistic(x)) - 1
    return np.array([edge(refused, change, -1.0), edge(refused, change, 2 * change + 2)])


def edge(refused: Callable[[float], bool], inside: float, outside: float) -> float:
    """Where it begins to be refused, by bisection."""
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if refused(middle) else (middle, outside)
    return inside


def chance(x: Array, y: Array, statistic: Statistic, order: Array) -> float:
    """How often steps dealt to two runs at random differ as much as `x` and `y` do."""
    dealt = np.concatenate([x, y])[order]
    away = statistic(dealt[:, len(x) :], axis=1) - statistic(dealt[:, : len(x)], axis=1)
    return float((np.abs(away) >= abs(float(statistic(y) - statistic(x))) * (1 - TINY)).mean())


def plain_times(steps: Steps) -> Array:
    """Seconds of each plain step, the median over ranks."""
    return steps.grid(steps.table["dur_s"], steps.plain).median(axis=1).dropna().to_numpy()


def processor_times(steps: Steps) -> Array:
    """The same of the processor time in all phases, which other jobs on the machine hardly change; maybe none."""
    if not steps.cpu:
        return np.array([])
    return steps.grid(steps.cpu.total(steps.cpu), steps.plain).median(axis=1).dropna().to_numpy()


def thinned(values: Array) -> Array:
    """At most LONGEST_SERIES of the values, evenly."""
    every = -(-len(values) // LONGEST_SERIES) if len(values) else 1
    return values[::every]


def memory(a: Steps, b: Steps) -> Contrast | None:
    """The highest of the fullest rank; a height that is reached in one step only leaves the interval wide."""
    x, y = (thinned(steps.grid(steps.table["memory_bytes"]).max(axis=1).to_numpy()) for steps in (a, b))
    if not x.max(initial=0) or not y.max(initial=0):
        return None
    rng = np.random.default_rng(SEED)
    ratios = drawn(y, rng).max(axis=1) / np.maximum(drawn(x, rng).max(axis=1), TINY) - 1
    return contrast("memory", (x.max(), y.max()), np.percentile(ratios, SURE), min(len(x), len(y)), enough=True)


def loss(a: Steps, b: Steps) -> Contrast | None:
    """Mean over the last common steps that have one; the differences of the runs are drawn, not their levels."""
    x, y = (mean_by_step(steps, "loss") for steps in (a, b))
    common = x.index.intersection(y.index)
    late = common[int(len(common) * LOSS_FROM) :] if len(common) >= STEPS_PLENTY else common
    if not len(late) or not x[late].mean():
        return None
    before, after = thinned(x[late].to_numpy()), thinned(y[late].to_numpy())
    drawn_changes = drawn(after - before, np.random.default_rng(SEED)).mean(axis=1) / abs(before.mean())
    ends, enough = (before.mean(), after.mean()), len(common) >= STEPS_AT_LEAST
    change = (ends[1] - ends[0]) / abs(ends[0])
    bounds = change + (np.percentile(drawn_changes, SURE) - change) * np.sqrt(max(1.0, STEPS_PLENTY / len(common)))
    return contrast("loss", ends, bounds, len(common), enough=enough)


def contrast(measure: str, ends: tuple[Any, Any], bounds: Array, samples: int, *, enough: bool) -> Contrast:
    """The measure in both runs, with the bounds of its change."""
    (a, b), (low, high) = ends, bounds
    change = (b - a) / abs(a)
    return Contrast(
        measure=measure,
        a=float(a),
        b=float(b),
        change=float(change),
        low=float(low),
        high=float(high),
        samples=samples,
        enough=enough,
    )


def drawn(values: Array, rng: np.random.Generator) -> Array:
    """DRAWS resamples of a series, one a row, made of blocks of about its cube root that may wrap around its end."""
    count = len(values)
    block = max(1, round(count ** (1 / 3)))
    begins = rng.integers(count, size=(DRAWS, -(-count // block)))
    places = (begins[:, :, None] + np.arange(block)) % count
    return values[places.reshape(DRAWS, -1)[:, :count]]


def parity(a: Steps, b: Steps) -> Parity | None:
    """Whether two runs have the same losses, None without a common step."""
    x, y = (mean_by_step(steps, "loss") for steps in (a, b))
    common = x.index.intersection(y.index)
    if not len(common):
        return None
    before, after = x[common].to_numpy(), y[common].to_numpy()
    away = np.abs(after - before)
    differs = np.flatnonzero(away > 0)
    return Parity(
        steps=len(common),
        identical=not len(differs),
        largest=float(away.max()),
        differs_from=int(common[differs[0]]) if len(differs) else None,
        apart_from=apart_from(np.asarray(common), away > APART * np.abs(before)),
    )


def apart_from(steps: Array, apart: Array) -> int | None:
    """The step from which on all are apart."""
    if not apart[-1]:
        return None
    together = np.flatnonzero(~apart)
    return int(steps[together[-1] + 1 if len(together) else 0])
