"""What do loss and gradient norm do: NaN, spikes, jumps, a rise that stays, a plateau?"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd

from analyzers.columns import Floats
from analyzers.steps.model import Event, EventKind
from analyzers.steps.reading.log_lines import BROKEN, FINITE
from analyzers.steps.robust_statistics import MAD_TO_STD, robust_deviation
from analyzers.steps.table import Steps

WINDOW = 20
BEFORE_AT_LEAST = 8
"""Values before one that it is compared with, at most and at least."""
SPIKE, SPIKE_SHARE = 8.0, 0.2
"""A spike is so many robust deviations above the values before it, and this share of them."""
JUMP, JUMP_SHARE = 12.0, 3.0
"""The same of the gradient norm, which varies more."""
EVENTS_AT_MOST = 20
PLATEAU_FROM, PLATEAU_VALUES, PLATEAU_FALL = 0.6, 60, 0.01
"""On a plateau the values after this share of the run, at least so many, fall by less than this share of the whole
fall even by the upper bound of their slope."""
RISE_VALUES, RISE_SHARE = 20, 0.05


class Quantity(StrEnum):
    """What may become NaN or infinite."""

    LOSS = "loss"
    GRAD_NORM = "gradient norm"


@dataclass(frozen=True)
class NonFinite:
    """The first step whose loss or gradient norm is NaN or infinite, and the ranks on which that began."""

    step: int
    quantity: Quantity
    ranks: list[int]


def events(steps: Steps) -> list[Event]:
    """Return all events of loss and gradient norm, in order of steps."""
    loss, norm = mean_by_step(steps, "loss"), mean_by_step(steps, "grad_norm")
    all_events = spikes(EventKind.LOSS_SPIKE, loss, SPIKE, SPIKE_SHARE)
    all_events += spikes(EventKind.GRAD_NORM_JUMP, norm, JUMP, JUMP_SHARE)
    all_events += [event for event in (rise(loss), plateau(loss)) if event]
    return sorted(all_events, key=lambda event: event.step)


def mean_by_step(steps: Steps, name: str) -> "pd.Series[float]":
    """Return the finite values of `loss` or `grad_norm` by step, as the mean over the ranks that log them."""
    finite = steps.table[steps.table[f"{name}_state"] == FINITE]
    return finite.groupby("step")[name].mean()


def first_nonfinite(steps: Steps) -> NonFinite | None:
    """Return where the loss or the gradient norm first became NaN or infinite."""
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
    return NonFinite(step, quantity, sorted(ranks.tolist()))


def spikes(kind: EventKind, values: "pd.Series[float]", deviations: float, share: float) -> list[Event]:
    """Return the values far above those before them, the highest first; neighbouring high values make one event."""
    if len(values) <= BEFORE_AT_LEAST:
        return []
    numbers, index = np.asarray(values, dtype=float), values.index.to_numpy()
    median, spread = level_before(numbers)
    high = numbers > np.maximum(median + deviations * spread, median + share * np.abs(median))
    spiking, over = [], 0
    for at in map(int, np.flatnonzero(high)):
        if at < over:
            continue
        # The level before the spike decides when it is over: values of the spike would raise a moving one.
        normal = np.flatnonzero(numbers[at:] <= median[at] + deviations * spread[at])
        over = at + int(normal[0]) if len(normal) else len(numbers)
        highest = float(numbers[at:over].max())
        until = int(index[over]) if over < len(numbers) else None
        spiking.append(Event(kind=kind, step=int(index[at]), value=highest, before=float(median[at]), until=until))
    return sorted(spiking, key=lambda event: -height(event))[:EVENTS_AT_MOST]


def height(event: Event) -> float:
    """Return by how much an event exceeds the level before it."""
    return (event.value or 0.0) - (event.before or 0.0)


def level_before(numbers: Floats) -> tuple[Floats, Floats]:
    """Return median and robust deviation of the WINDOW values before each value; NaN where there are too few."""
    padded = np.concatenate([np.full(WINDOW, np.nan), numbers[:-1]])
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)
    median, spread = np.full(len(numbers), np.nan), np.full(len(numbers), np.nan)
    enough = np.arange(len(numbers)) >= BEFORE_AT_LEAST
    median[enough] = np.nanmedian(windows[enough], axis=1)
    distances = np.abs(windows[enough] - median[enough, None])
    # A loss that is constant over the window has no deviation: without a floor the next digit would be a spike.
    floor = 1e-3 * np.abs(median[enough]) + 1e-9
    spread[enough] = np.maximum(MAD_TO_STD * np.nanmedian(distances, axis=1), floor)
    return median, spread


def rise(values: "pd.Series[float]") -> Event | None:
    """Return the rise of a loss that ends clearly above its lowest level and stays there."""
    if len(values) < 3 * RISE_VALUES:
        return None
    # A median over many values: one spike at the end is no rise.
    smooth = values.rolling(RISE_VALUES).median().dropna()
    lowest, end = int(np.argmin(smooth)), float(smooth.iloc[-1])
    low = float(smooth.iloc[lowest])
    noise = robust_deviation((values - values.rolling(RISE_VALUES, min_periods=1).median()).to_numpy())
    after = values.loc[smooth.index[lowest] :]
    if end - low < max(SPIKE * noise, RISE_SHARE * abs(low)) or len(after) < RISE_VALUES:
        return None
    # Where it passed half of the rise: the lowest value may lie long before it began.
    above = after[after > (low + end) / 2]
    return Event(kind=EventKind.LOSS_RISE, step=int(above.index[0]), value=end, before=low)


def plateau(values: "pd.Series[float]") -> Event | None:
    """Return where a loss that fell does so no more: even the upper bound of its slope is next to nothing."""
    last = values.iloc[int(len(values) * PLATEAU_FROM) :]
    if len(last) < PLATEAU_VALUES:
        return None
    # A twentieth of the values at either end, as single losses vary.
    end = max(1, len(values) // 20)
    fall = float(values.iloc[:end].median() - values.iloc[-end:].median())
    slope, error = trend(np.asarray(last, dtype=float))
    largest_fall = -(slope - 2 * error) * len(last)  # two standard errors: 95 %
    if fall <= 0 or largest_fall > PLATEAU_FALL * fall:
        return None
    return Event(
        kind=EventKind.PLATEAU, step=int(last.index[0]), value=float(last.median()), before=float(values.iloc[0])
    )


def trend(numbers: Floats) -> tuple[float, float]:
    """Return the least-squares slope per value, and its standard error.

    The squared error grows by (1 + r) / (1 - r) where neighbours have correlation r: they are worth fewer values then.
    """
    x = np.arange(len(numbers)) - (len(numbers) - 1) / 2
    slope = float(x @ numbers / (x @ x))
    residuals = numbers - numbers.mean() - slope * x
    total = float(residuals @ residuals)
    correlation = min(max(float(residuals[1:] @ residuals[:-1]) / total, 0.0), 0.9) if total else 0.0
    inflation = (1 + correlation) / (1 - correlation)
    error = np.sqrt(total / max(len(numbers) - 2, 1) / (x @ x) * inflation)
    return slope, float(error)
