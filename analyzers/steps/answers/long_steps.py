"""Find single steps that took far longer than the steps around them, for example because storage or network stalled."""

import numpy as np
import pandas as pd

from analyzers.columns import Floats
from analyzers.steps.answers.lateness import Lateness
from analyzers.steps.model import LongStep
from analyzers.steps.robust_statistics import robust_deviation
from analyzers.steps.table import Steps

STEPS_AT_LEAST = 20
_WARM_UP = 5
"""The number of steps at the start of each process that are left out: they compile, allocate and fill caches."""
AROUND = 51
"""The number of steps around a step whose median duration is taken as its usual duration."""
_TIMES_USUAL = 4.0
"""The number of times its usual duration that a step must take at least to count as stalled."""
_BEYOND_OTHERS = 2.0
"""The number of times the longest step that is not stalled that a stalled step must take at least.

Noise has no such gap between the longest step and the others.
"""
_DEVIATIONS = 5.0
_SINGLE_AT_MOST, _SINGLE_SHARE = 2, 0.003
"""The most long steps that count as single stalls, as a number and as a share of all steps; the larger limit counts.

If there are more, long steps recur.
"""
_ALIKE = 0.7
"""Long steps recur if the extra time of the shortest is at least this share of the extra time of the longest."""
_MAIN_SHARE = 0.6
"""A phase or rank is named if it explains more than this share of the extra time."""


def single_stalls(steps: Steps, late: Lateness | None = None) -> list[LongStep]:
    """Return the few steps that took far longer than the steps around them, in order; empty if long steps recur.

    Example: of 1000 steps of 0.6 s one takes 90 s and no other more than 0.9 s: the step of 90 s is a stall. With a
    checkpoint of 30 s every 50 steps there is no stall, because these long steps recur.
    """
    plain = _plain_times(steps)
    if len(plain) < STEPS_AT_LEAST:
        return []
    seconds = np.asarray(plain, dtype=np.float64)
    usual = np.asarray(plain.rolling(AROUND, center=True, min_periods=AROUND // 4).median(), dtype=np.float64)
    stalled = _stalled_steps(seconds, usual)
    total = float(seconds.sum())
    return [long_step(steps, late, int(plain.index[at]), seconds[at], usual[at], total) for at in stalled]


def _plain_times(steps: Steps) -> "pd.Series[float]":
    """Return {step: seconds} of the steps that only trained, without a checkpoint for example (median over ranks).

    The first WARM_UP steps of each process are left out.
    """
    table = steps.table
    position = table.groupby(["rank", "session"]).cumcount().to_numpy()
    usable = steps.plain.to_numpy() & (position >= _WARM_UP)
    return steps.grid(table["dur_s"], usable).dropna(how="all").median(axis=1)


def _stalled_steps(seconds: Floats, usual: Floats) -> list[int]:
    """Return the ascending indices, in `seconds`, of the steps that stalled.

    `seconds` has the duration of each step; `usual` has, for each step, the median duration of the steps around it.
    The result is empty if long steps recur: there are many of them, or they take equally long.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(usual > 0, seconds / usual, 1.0)
    # A step that took no time has no logarithm.
    noise = robust_deviation(np.log(np.maximum(ratio, 1e-9)))
    order = np.argsort(ratio)[::-1]
    at_most = max(_SINGLE_AT_MOST, int(_SINGLE_SHARE * len(seconds)))
    # The largest gap among the highest ratios separates stalls from what merely varies.
    highest = ratio[order[: at_most + 1]]
    gaps = highest[:-1] / np.maximum(highest[1:], 1e-9)
    count = max((n for n, gap in enumerate(gaps, 1) if gap >= _BEYOND_OTHERS), default=0)
    # Where the durations vary much anyway, four times the usual one is nothing special.
    limit = max(_TIMES_USUAL, float(np.exp(_DEVIATIONS * noise)))
    stalled = [int(at) for at in order[:count] if ratio[at] >= limit]
    # Equally long steps are something that the job does now and then, such as a checkpoint.
    alike = len(stalled) > 1 and ratio[stalled[-1]] - 1 > _ALIKE * (ratio[stalled[0]] - 1)
    return [] if alike else sorted(stalled)


def long_step(steps: Steps, late: Lateness | None, step: int, seconds: float, usual: float, total: float) -> LongStep:
    """Return a `LongStep` with the ranks for which the others waited, and the phase that took most of the extra time.

    `seconds` is the duration of the step, `usual` the duration of the steps around it, and `total` the sum of all step
    times, all in seconds.
    """
    return LongStep(
        step=step,
        duration_s=float(seconds),
        usual_s=float(usual),
        ranks=late_ranks(steps, late, step, seconds - usual),
        phase=_main_phase(steps, step, seconds - usual),
        share=float((seconds - usual) / total),
    )


def late_ranks(steps: Steps, late: Lateness | None, step: int, extra_s: float) -> list[int]:
    """Return the ranks whose lateness explains most of the extra time `extra_s` of a step.

    If no rank explains it, or if the logs do not show lateness, all ranks are returned.
    """
    if late is None or not late.is_known or step not in late.excess.index:
        return steps.ranks
    excess = late.excess.to_numpy()[int(np.searchsorted(late.excess.index.to_numpy(), step))]
    behind = [rank for rank, behind_s in zip(steps.ranks, excess, strict=True) if behind_s > _MAIN_SHARE * extra_s]
    return behind or steps.ranks


def _main_phase(steps: Steps, step: int, extra_s: float) -> str:
    """Return the phase that explains most of the extra time `extra_s` of a step; an empty text if none does.

    The time of a phase is its time on the rank where the phase took longest.
    """
    rows = (steps.table["step"] == step).to_numpy()
    extra = {
        name: float(steps.phases.at(name, rows).max() - np.median(steps.phases.at(name, slice(None))))
        for name in steps.phases
    }
    longest = max(extra, key=lambda name: extra[name], default="")
    return longest if longest and extra[longest] > _MAIN_SHARE * extra_s else ""
