"""Growth of memory, and counts of collectives that differ."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzers.steps.model import Steps

GROWTH = 0.1
"""A leak hint needs memory to grow by this share of where it began."""
RISING = 0.7
"""... in this share of the steps."""
GOES_ON = 0.25
"""... and by this part of that in the second half of them."""


@dataclass(frozen=True)
class Moment:
    """Something that began at `step` on `ranks`; `value` is its size in units of what it is about."""

    step: int
    ranks: list[int]
    value: float = 0.0
    what: str = ""


def memory_growth(steps: Steps) -> list[Moment]:
    """Ranks whose memory rises step after step, recorders aside; `value` is bytes a step."""
    found = []
    observed = steps.observed > 0  # their buffers count as the process's memory
    rows = steps.table[["rank", "step", "memory_bytes"]][~steps.table["warmup"] & ~observed]
    for rank, mine in rows.groupby("rank"):
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
    return Moment(int(series.index[0]), [rank], gained / (len(series) - 1))


def fewer_collectives(steps: Steps) -> list[Moment]:
    """Where ranks had issued fewer collectives by the end of a step than the others; `what` is the group."""
    found = []
    for group in map(str, steps.seqs):
        table = steps.grid(steps.seqs[group], steps.seqs[group] >= 0).dropna()
        apart = table[table.max(axis=1) > table.min(axis=1)]
        if len(apart):
            found.append(first_apart(group, apart.iloc[0], int(str(apart.index[0]))))
    return found


def first_apart(group: str, row: "pd.Series[float]", step: int) -> Moment:
    """Who differs from most ranks in a step, and by how many collectives."""
    usual = row.mode().max()
    odd = row[row != usual]
    return Moment(step, [int(str(rank)) for rank in odd.index], float((odd - usual).iloc[0]), group)
