"""Find events in the loss and gradient norm: NaN, spikes, jumps, a rise that stays, a plateau."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd

from analyzers.columns import Floats
from analyzers.steps.answers.early_jumps import early_jumps
from analyzers.steps.model import Event, EventKind
from analyzers.steps.reading.log_lines import BROKEN, FINITE
from analyzers.steps.robust_statistics import MAD_TO_STD, robust_deviation
from analyzers.steps.table import Steps

_RECENT = 7
"""The number of values before a value whose median is taken as its expected value."""
WINDOW = 20
_BEFORE_AT_LEAST = 8
"""The smallest number of earlier values from which the noise of a value is estimated; the largest is WINDOW."""
_FINITE_AT_LEAST = 3
"""The number of steps with a finite loss after which training counts as recovered from NaN or infinity."""
CHUNK = 1 << 16
"""The number of values that are processed at a time, because the values before each of them are copied into memory."""
_TAIL_SHARE, _TAIL_DEVIATIONS = 0.015, 2.2
"""In noise with a normal distribution, 1.5 % of the values lie more than 2.2 standard deviations above the mean.

If more values do, the noise has heavy tails, and its deviation is estimated from how far the tails reach.
"""
SPIKE, _SPIKE_SHARE = 8.0, 0.2
"""The limits for a spike of the loss, which is 8 robust standard deviations and 20 % above the expected loss."""
_JUMP, _JUMP_SHARE = 12.0, 3.0
"""The same limits for a jump of the gradient norm, which varies more than the loss."""
_EVENTS_AT_MOST = 20
_PLATEAU_FROM, _PLATEAU_VALUES, _PLATEAU_FALL = 0.6, 60, 0.01
"""The limits for a plateau, which is searched for in the last part of a run.

This part begins after the share PLATEAU_FROM of the steps, and must have at least PLATEAU_VALUES values. On a plateau
the loss falls by less than the share PLATEAU_FALL of its whole fall, even by the upper bound of its slope.
"""
_RISE_VALUES, _RISE_SHARE = 20, 0.05


class Quantity(StrEnum):
    """The logged quantity that became NaN or infinite."""

    LOSS = "loss"
    GRAD_NORM = "gradient norm"


@dataclass(frozen=True)
class NonFinite:
    """The first step whose loss or gradient norm is NaN or infinite, and the ranks whose logs show this in the step.

    `quantity` says whether it is the loss or the gradient norm. `finite_from` is the step from which on all values are
    finite again, for example after a loss scaler skipped some steps; None if there is no such step.
    """

    step: int
    quantity: Quantity
    ranks: list[int]
    finite_from: int | None = None


def events(steps: Steps) -> list[Event]:
    """Return all spikes, jumps, rises and plateaus of the loss and the gradient norm, in order of steps."""
    loss, norm = mean_by_step(steps, "loss"), mean_by_step(steps, "grad_norm")
    all_events = spikes(EventKind.LOSS_SPIKE, loss, SPIKE, _SPIKE_SHARE)
    all_events += spikes(EventKind.GRAD_NORM_JUMP, norm, _JUMP, _JUMP_SHARE)
    all_events += [event for event in (rise(loss), plateau(loss)) if event]
    return sorted(all_events, key=lambda event: event.step)


def mean_by_step(steps: Steps, name: str) -> "pd.Series[float]":
    """Return the mean over ranks of the finite values of column `name` (`loss` or `grad_norm`), indexed by step."""
    finite = steps.table[steps.table[f"{name}_state"] == FINITE]
    return finite.groupby("step")[name].mean()


def first_nonfinite(steps: Steps) -> NonFinite | None:
    """Return a `NonFinite` for the first step whose loss or gradient norm is NaN or infinite; None if there is none."""
    table = steps.table
    broken = table[(table["loss_state"] == BROKEN) | (table["grad_norm_state"] == BROKEN)]
    if broken.empty:
        return None
    step = int(broken["step"].min())
    first = broken[broken["step"] == step]
    quantity = Quantity.LOSS if (first["loss_state"] == BROKEN).any() else Quantity.GRAD_NORM
    # The averaged loss is NaN on all ranks at once; the local one, if it is logged, shows where that began.
    columns = ("local_loss_state", "loss_state", "grad_norm_state")
    ranks = next(ranks for column in columns if len(ranks := first[first[column] == BROKEN]["rank"]))
    return NonFinite(step, quantity, sorted(ranks.tolist()), _finite_again(table, int(broken["step"].max())))


def _finite_again(table: pd.DataFrame, last_broken: int) -> int | None:
    """Return the first step after `last_broken`, the last step with NaN or infinity, that has a finite loss.

    `table` has the columns `step` and `loss_state` of the steps table. The result is None if too few steps with a
    finite loss follow.
    """
    after = table[(table["step"] > last_broken) & (table["loss_state"] == FINITE)]["step"]
    return int(after.min()) if after.nunique() >= _FINITE_AT_LEAST else None


def spikes(kind: EventKind, values: "pd.Series[float]", deviations: float, share: float) -> list[Event]:
    """Return events of this kind for values that are far above the values before them, the highest first.

    Consecutive high values are one event. A value is far above if it exceeds its expected value by two limits: by
    `deviations` robust standard deviations, and by the fraction `share` of the expected value. The first values of a
    loss have `early_jumps` too.
    """
    if len(values) <= _BEFORE_AT_LEAST:
        return []
    numbers, index = np.asarray(values, dtype=float), values.index.to_numpy()
    expected = _expected_values(numbers)
    # Relative to the level, as the noise of a loss shrinks with it; near zero, to a tenth of the usual level.
    smallest = 0.1 * float(np.median(np.abs(numbers))) + 1e-30
    scale = np.maximum(np.abs(expected), smallest)
    with np.errstate(over="ignore"):  # a logged value may be close to the largest that there is
        excess = (numbers - expected) / scale
        high = excess > np.maximum(deviations * _usual_excess(excess), share)
    for at, level in early_jumps(numbers, share).items() if kind is EventKind.LOSS_SPIKE else ():
        if not high[at]:
            high[at], expected[at], scale[at] = True, level, max(abs(level), smallest)
    spiking, over = [], 0
    for at in map(int, np.flatnonzero(high)):
        # This value belongs to the spike before.
        if at < over:
            continue
        # The level before the spike decides when it is over: values of the spike would raise a moving one.
        normal = np.flatnonzero(numbers[at:] <= expected[at] + share / 2 * scale[at])
        over = at + int(normal[0]) if len(normal) else len(numbers)
        highest = float(numbers[at:over].max())
        until = int(index[over]) if over < len(numbers) else None
        spiking.append(Event(kind=kind, step=int(index[at]), value=highest, before=float(expected[at]), until=until))
    return sorted(spiking, key=lambda event: -height(event))[:_EVENTS_AT_MOST]


def height(event: Event) -> float:
    """Return by how much the value of an event exceeds the level before it."""
    return (event.value or 0.0) - (event.before or 0.0)


def _expected_values(numbers: Floats) -> Floats:
    """Return, for each value, the value expected from those before it: the median of the last RECENT values.

    It is NaN for the first values. RECENT is small because a loss falls fast at first. The median of many values would
    then be far above the loss, and hide spikes.
    """
    expected = np.full(len(numbers), np.nan)
    if len(numbers) > _RECENT:
        windows = np.lib.stride_tricks.sliding_window_view(numbers[:-1], _RECENT)
        expected[_RECENT:] = np.median(windows, axis=1)
    return expected


def _usual_excess(excess: Floats) -> Floats:
    """Return, for each value, the robust standard deviation of `excess`, as a measure of the usual noise.

    `excess` is each value minus its expected value, relative to the expected value. The deviation is computed from
    differences of neighbours (hence the sqrt(2)), which a falling loss does not increase. It is computed for the WINDOW
    values before each value and for the whole series; the larger result counts, because a few values in a row may be
    close together by chance. If the noise has heavy tails, the result is larger: the tails are estimated from a value
    near the highest, such as the 30th highest of 2000.
    """
    distances = np.abs(np.diff(excess, prepend=np.nan)) / np.sqrt(2)
    overall = MAD_TO_STD * float(np.nanmedian(distances))
    share = max(_TAIL_SHARE, _EVENTS_AT_MOST / len(excess))
    tail = float(np.nanquantile(excess, 1 - share)) / _TAIL_DEVIATIONS if share < 0.5 else 0.0
    local = MAD_TO_STD * _medians_before(distances)
    # A loss that is constant over the window has no deviation: without a floor the next digit would be a spike.
    usual: Floats = np.fmax(local, max(overall, tail, 1e-3))
    return usual


def _medians_before(values: Floats) -> Floats:
    """Return, for each value, the median of the WINDOW values before it.

    It is NaN for the first values, because there are too few values before them.
    """
    medians = np.full(len(values), np.nan)
    whole = min(len(values), _RECENT + 1 + WINDOW)
    for at in range(_RECENT + _BEFORE_AT_LEAST, whole):
        medians[at] = np.nanmedian(values[max(0, at - WINDOW) : at])
    for begin in range(whole, len(values), CHUNK):
        end = min(begin + CHUNK, len(values))
        windows = np.lib.stride_tricks.sliding_window_view(values[begin - WINDOW : end - 1], WINDOW)
        medians[begin:end] = np.median(windows, axis=1)
    return medians


def rise(values: "pd.Series[float]") -> Event | None:
    """Return an event if the loss ends clearly above its lowest level and stays there, else None.

    `values` is the loss by step.
    """
    if len(values) < 3 * _RISE_VALUES:
        return None
    # A median over many values: one spike at the end is no rise.
    smooth = values.rolling(_RISE_VALUES).median().dropna()
    lowest, end = int(np.argmin(smooth)), float(smooth.iloc[-1])
    low = float(smooth.iloc[lowest])
    noise = robust_deviation((values - values.rolling(_RISE_VALUES, min_periods=1).median()).to_numpy())
    after = values.loc[smooth.index[lowest] :]
    if end - low < max(SPIKE * noise, _RISE_SHARE * abs(low)) or len(after) < _RISE_VALUES:
        return None
    # Where it passed half of the rise: the lowest value may lie long before it began.
    above = after[after > (low + end) / 2]
    return Event(kind=EventKind.LOSS_RISE, step=int(above.index[0]), value=end, before=low)


def plateau(values: "pd.Series[float]") -> Event | None:
    """Return an event if the loss fell at first and then stopped falling, else None.

    `values` is the loss by step. The loss counts as flat if even the steepest slope that still fits the noise of its
    last part is close to zero.
    """
    last = values.iloc[int(len(values) * _PLATEAU_FROM) :]
    if len(last) < _PLATEAU_VALUES:
        return None
    # A twentieth of the values at either end, as single losses vary.
    end = max(1, len(values) // 20)
    fall = float(values.iloc[:end].median() - values.iloc[-end:].median())
    slope, error = trend(np.asarray(last, dtype=float))
    largest_fall = -(slope - 2 * error) * len(last)  # two standard errors: 95 %
    if fall <= 0 or largest_fall > _PLATEAU_FALL * fall:
        return None
    return Event(
        kind=EventKind.PLATEAU, step=int(last.index[0]), value=float(last.median()), before=float(values.iloc[0])
    )


def trend(numbers: Floats) -> tuple[float, float]:
    """Return the least-squares slope of a series (per index), and the standard error of the slope.

    If neighbouring values have correlation r, they carry less information, and the squared error grows by (1 + r) /
    (1 - r).
    """
    x = np.arange(len(numbers)) - (len(numbers) - 1) / 2
    slope = float(x @ numbers / (x @ x))
    residuals = numbers - numbers.mean() - slope * x
    total = float(residuals @ residuals)
    # At most 0.9, so that the inflation stays finite.
    correlation = min(max(float(residuals[1:] @ residuals[:-1]) / total, 0.0), 0.9) if total else 0.0
    inflation = (1 + correlation) / (1 - correlation)
    error = np.sqrt(total / max(len(numbers) - 2, 1) / (x @ x) * inflation)
    return slope, float(error)
