"""Steps in which all ranks are slow together, before they meet: storage that hiccups, savings that block."""

import pandas as pd

from analyzers.steps.answers.lateness import CAUSES
from analyzers.steps.model import Stall, Steps
from analyzers.steps.robust_statistics import deviation

STEPS_AT_LEAST = 20
STALLS_AT_LEAST = 3
OUTLIER = 6.0
"""Robust deviations beyond which a step is stalled, if that also makes it longer by SHARE."""
SHARE = 0.2
COST = 0.03
"""Of the time of all steps."""


def stalls(steps: Steps) -> list[Stall]:
    """The causes for which even the quickest rank was stalled now and then, the costliest first."""
    spent = steps.grid(steps.table["dur_s"], steps.plain).dropna().median(axis=1)
    if len(spent) < STEPS_AT_LEAST:
        return []
    found = [stall(steps, cause, names, spent) for cause, names in CAUSES.items() if cause != "compute"]
    return sorted((s for s in found if s), key=lambda s: -s.lost_s)


def stall(steps: Steps, cause: str, names: tuple[str, ...], spent: "pd.Series[float]") -> Stall | None:
    """The steps that are stalled by one cause."""
    known = steps.phases.total(names)
    least = steps.grid(known).min(axis=1).loc[spent.index]
    usual = float(least.median())
    beyond = least - usual
    stalled = beyond[beyond > max(OUTLIER * deviation(least.to_numpy()), SHARE * float(spent.median()))]
    if len(stalled) < STALLS_AT_LEAST or stalled.sum() < COST * spent.sum():
        return None
    return Stall(
        cause=cause,
        steps=len(stalled),
        first_step=int(stalled.index[0]),
        last_step=int(stalled.index[-1]),
        lost_s=float(stalled.sum()),
        share=float(stalled.sum() / spent.sum()),
    )
