"""What happens over the steps of a run: broken losses, spikes, slowdown, growth of memory, counts of collectives."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzers.steps.lines import BROKEN, FINITE
from analyzers.steps.model import Steps

WINDOW = 20
SPIKE = 8.0
"""A spike is this many robust deviations above the losses before it."""
DRIFT = 1.25
GROWTH = 0.1
"""A leak hint needs memory to grow by this share of where it began."""
RISING = 0.7
"""... in this share of the steps."""
GOES_ON = 0.25
"""... and by this part of that in the second half of them."""
STEPS_AT_LEAST = 12


@dataclass(frozen=True)
class Moment:
    """Something that began at `step` on `ranks`; `value` is its size in units of what it is about."""

    step: int
    ranks: list[int]
    value: float = 0.0
    before: float = 0.0
    what: str = ""


def first_nonfinite(steps: Steps) -> Moment | None:
    """The first step whose loss or gradient norm is NaN or infinite, and the ranks where that began."""
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
    return Moment(step, sorted(broken.tolist()), what=what)


def loss_spike(steps: Steps) -> Moment | None:
    """The largest jump of the loss above what it was just before."""
    table = steps.table[steps.table["loss_state"] == FINITE]
    series = table.groupby("step")["loss"].mean()
    if len(series) < STEPS_AT_LEAST:
        return None
    before = series.shift(1).rolling(WINDOW, min_periods=8)
    middle = before.median()
    spread = before.apply(lambda w: np.median(np.abs(w - np.median(w))), raw=True) * 1.4826
    height = (series - middle) / spread.clip(lower=1e-3 * middle.abs() + 1e-9)
    high = height[(height > SPIKE) & (series > 1.2 * middle)]
    if high.empty:
        return None
    step = int(str(high.idxmax()))
    return Moment(step, sorted(table[table["step"] == step]["rank"].tolist()), float(series[step]), float(middle[step]))


def slowdown(steps: Steps) -> Moment | None:
    """Whether the last third of the plain steps is slower than the first."""
    plain = steps.table[~steps.table["apart"]]
    series = plain.groupby("step")["dur_s"].median()
    if len(series) < STEPS_AT_LEAST:
        return None
    third = len(series) // 3
    before, after = float(series.iloc[:third].median()), float(series.iloc[-third:].median())
    lasting = float((series.iloc[-third:] > before * DRIFT).mean())
    if after < DRIFT * before or lasting < RISING:
        return None
    fast = series[series <= DRIFT * before]
    return Moment(int(series.index[series.index > fast.index.max()].min()), steps.ranks, after, before)


def memory_growth(steps: Steps) -> list[Moment]:
    """Ranks whose memory rises step after step, recorders aside; `value` is bytes a step."""
    found = []
    observed = steps.observed > 0  # their buffers count as the process's memory
    for rank, mine in steps.table[~steps.table["warmup"] & ~observed].groupby("rank"):
        series = mine.set_index("step")["memory_bytes"].astype(float)
        if moment := growth(int(str(rank)), series[series > 0]):
            found.append(moment)
    return found


def growth(rank: int, series: "pd.Series[float]") -> Moment | None:
    if len(series) < 6:
        return None
    rises = np.diff(series.to_numpy())
    gained = float(series.iloc[-1] - series.iloc[0])
    late = float(series.iloc[-1] - series.iloc[len(series) // 2])
    # Caches and pools fill and then stay; a leak goes on.
    if gained < GROWTH * series.iloc[0] or float((rises > 0).mean()) < RISING or late < GOES_ON * gained:
        return None
    return Moment(int(series.index[0]), [rank], gained / (len(series) - 1), float(series.iloc[0]))


def fewer_collectives(steps: Steps) -> list[Moment]:
    """Where ranks had issued fewer collectives by the end of a step than the others; `what` is the group."""
    found = []
    for group in steps.seqs:
        frame = steps.table[["rank", "step"]].assign(seq=steps.seqs[group])
        table = (
            frame[frame["seq"] >= 0].pivot_table(index="step", columns="rank", values="seq", aggfunc="last").dropna()
        )
        apart = table[table.max(axis=1) > table.min(axis=1)]
        if apart.empty:
            continue
        row = apart.iloc[0]
        usual = row.mode().max()
        odd = row[row != usual]
        found.append(
            Moment(
                int(str(apart.index[0])),
                [int(str(r)) for r in odd.index],
                float((odd - usual).iloc[0]),
                what=str(group),
            )
        )
    return found
