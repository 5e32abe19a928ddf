"""What becomes of loss and gradient norm: broken, spikes, jumps, a rise that stays, a plateau."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzers.steps.model import Event, Steps
from analyzers.steps.reading.log_lines import BROKEN, FINITE, Array
from analyzers.steps.robust_statistics import NORMAL, deviation

WINDOW = 20
BEFORE_AT_LEAST = 8
SPIKE, SPIKE_SHARE = 8.0, 0.2
"""A spike is this many robust deviations above the values before it, and this share of them."""
JUMP, JUMP_SHARE = 12.0, 3.0
"""Of the gradient norm, which varies more."""
EVENTS_AT_MOST = 20
PLATEAU_FROM, PLATEAU_VALUES, PLATEAU_FALL = 0.6, 60, 0.01
"""On a plateau the last part of so many values surely fell by less than this share of the whole fall."""
RISE_VALUES = 20


def events(steps: Steps) -> list[Event]:
    """All that happened, in order of steps."""
    loss, norm = series(steps, "loss"), series(steps, "grad_norm")
    found = spikes("loss_spike", loss, SPIKE, SPIKE_SHARE) + spikes("grad_norm_jump", norm, JUMP, JUMP_SHARE)
    found += [event for event in (rise(loss), plateau(loss)) if event]
    return sorted(found, key=lambda event: event.step)


def series(steps: Steps, name: str) -> "pd.Series[float]":
    """Finite values by step, the mean over the ranks that know them."""
    known = steps.table[steps.table[f"{name}_state"] == FINITE]
    return known.groupby("step")[name].mean()


@dataclass(frozen=True)
class Broken:
    """The first step of which `what` is not finite, and the ranks where that began."""

    step: int
    what: str
    ranks: list[int]


def first_nonfinite(steps: Steps) -> Broken | None:
    """Where loss or gradient norm became NaN or infinite."""
    table = steps.table
    bad = table[(table["loss_state"] == BROKEN) | (table["grad_norm_state"] == BROKEN)]
    if bad.empty:
        return None
    step = int(bad["step"].min())
    first = bad[bad["step"] == step]
    what = "loss" if (first["loss_state"] == BROKEN).any() else "gradient norm"
    # The loss of all ranks is broken on all of them; a rank's own one tells where it began.
    columns = ("local_loss_state", "loss_state", "grad_norm_state")
    broken = next(ranks for column in columns if len(ranks := first[first[column] == BROKEN]["rank"]))
    return Broken(step, what, sorted(broken.tolist()))


def spikes(kind: str, values: "pd.Series[float]", deviations: float, share: float) -> list[Event]:
    """Values far above those before them, one event for neighbouring ones; `until` they are back."""
    if len(values) <= BEFORE_AT_LEAST:
        return []
    numbers, index = values.to_numpy(), values.index.to_numpy()
    middle, spread = usual_before(numbers)
    high = numbers > np.maximum(middle + deviations * spread, middle + share * np.abs(middle))
    found, over = [], 0
    for at in map(int, np.flatnonzero(high)):
        if at < over:
            continue
        limit = middle[at] + deviations * spread[at]
        back = np.flatnonzero(numbers[at:] <= limit)
        over = at + int(back[0]) if len(back) else len(numbers)
        top = at + int(numbers[at:over].argmax())
        until = int(index[over]) if over < len(numbers) else None
        found.append(
            Event(kind=kind, step=int(index[at]), value=float(numbers[top]), before=float(middle[at]), until=until)
        )
    return sorted(found, key=lambda e: -((e.value or 0) - (e.before or 0)))[:EVENTS_AT_MOST]


def usual_before(numbers: Array) -> tuple[Array, Array]:
    """Median and robust deviation of the WINDOW values before each; NaN where there are too few."""
    padded = np.concatenate([np.full(WINDOW, np.nan), numbers[:-1]])
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)
    middle, spread = np.full(len(numbers), np.nan), np.full(len(numbers), np.nan)
    enough = np.arange(len(numbers)) >= BEFORE_AT_LEAST
    middle[enough] = np.nanmedian(windows[enough], axis=1)
    away = np.abs(windows[enough] - middle[enough, None])
    spread[enough] = np.maximum(NORMAL * np.nanmedian(away, axis=1), 1e-3 * np.abs(middle[enough]) + 1e-9)
    return middle, spread


def rise(values: "pd.Series[float]") -> Event | None:
    """A loss that ends clearly above where it was at its best, and stays there."""
    if len(values) < 3 * RISE_VALUES:
        return None
    smooth = values.rolling(RISE_VALUES).median().dropna()
    lowest, end = int(np.argmin(smooth)), float(smooth.iloc[-1])
    low = float(smooth.iloc[lowest])
    noise = deviation((values - values.rolling(RISE_VALUES, min_periods=1).median()).to_numpy())
    late = values.loc[smooth.index[lowest] :]
    if end - low < max(SPIKE * noise, 0.05 * abs(low)) or len(late) < RISE_VALUES:
        return None
    above = late[late > (low + end) / 2]
    return Event(kind="loss_rise", step=int(above.index[0]), value=end, before=low)


def plateau(values: "pd.Series[float]") -> Event | None:
    """A loss that fell and surely does so no more: even the upper bound of what it still falls is next to nothing."""
    last = values.iloc[int(len(values) * PLATEAU_FROM) :]
    if len(last) < PLATEAU_VALUES:
        return None
    tenth = max(1, len(values) // 20)
    fallen = float(values.iloc[:tenth].median() - values.iloc[-tenth:].median())
    slope, error = trend(last.to_numpy())
    most = -(slope - 2 * error) * len(last)
    if fallen <= 0 or most > PLATEAU_FALL * fallen:
        return None
    return Event(kind="plateau", step=int(last.index[0]), value=float(last.median()), before=float(values.iloc[0]))


def trend(numbers: Array) -> tuple[float, float]:
    """Slope by least squares and its standard error, larger where neighbours resemble each other."""
    x = np.arange(len(numbers)) - (len(numbers) - 1) / 2
    slope = float(x @ numbers / (x @ x))
    rest = numbers - numbers.mean() - slope * x
    total = float(rest @ rest)
    alike = min(max(float(rest[1:] @ rest[:-1]) / total, 0.0), 0.9) if total else 0.0
    error = np.sqrt(total / max(len(numbers) - 2, 1) / (x @ x) * (1 + alike) / (1 - alike))
    return slope, float(error)
