"""Find steps in which all ranks are slow at the same time, for example because storage or a checkpoint blocks them."""

import pandas as pd

from analyzers.steps.answers.lateness import PHASES_OF
from analyzers.steps.model import Cause, GlobalStall
from analyzers.steps.robust_statistics import robust_deviation
from analyzers.steps.table import Steps

STEPS_AT_LEAST = 20
_STALLS_AT_LEAST = 3
_OUTLIER = 6.0
"""A step is stalled if it is this many robust standard deviations above the median, and longer by SHARE of a step."""
_SHARE = 0.2
_COST = 0.03
"""The share of the time of plain steps (steps that did nothing but train) from which on stalls are reported."""


def global_stalls(steps: Steps) -> list[GlobalStall]:
    """Return a `GlobalStall` for each cause by which even the fastest rank lost time, the costliest first.

    A cause is reported only if several steps are affected and the time lost in them is long enough.
    """
    step_s = steps.grid(steps.table["dur_s"], steps.plain).dropna().median(axis=1)
    if len(step_s) < STEPS_AT_LEAST:
        return []
    # Compute is left out: all ranks computing longer is a longer step, not a stall.
    causes = [_stall_of(steps, cause, step_s) for cause in PHASES_OF if cause is not Cause.COMPUTE]
    return sorted((stall for stall in causes if stall), key=lambda stall: -stall.lost_s)


def _stall_of(steps: Steps, cause: Cause, step_s: "pd.Series[float]") -> GlobalStall | None:
    """Return a `GlobalStall` on steps in which every rank lost time to one cause; None if they are few or cost little.

    `step_s` has the duration in seconds of each step that only trained (no checkpoint, for example), by step.
    """
    # The minimum over ranks: what the fastest rank had to wait for is no straggler of its own.
    fastest = steps.grid(steps.phases.total(PHASES_OF[cause])).min(axis=1).loc[step_s.index]
    extra = fastest - float(fastest.median())
    stalled = extra[extra > max(_OUTLIER * robust_deviation(fastest.to_numpy()), _SHARE * float(step_s.median()))]
    # A single slow step costs little, and nothing in the logs can explain it.
    if len(stalled) < _STALLS_AT_LEAST or stalled.sum() < _COST * step_s.sum():
        return None
    return GlobalStall(
        cause=cause,
        steps=len(stalled),
        first_step=int(stalled.index[0]),
        last_step=int(stalled.index[-1]),
        lost_s=float(stalled.sum()),
        share=float(stalled.sum() / step_s.sum()),
    )
