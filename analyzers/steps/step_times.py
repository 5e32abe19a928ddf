"""Find what changed in the durations of steps: lasting changes, single long steps and stalls."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from analyzers.columns import Floats
from analyzers.steps.lateness import PHASES_OF, Lateness
from analyzers.steps.model import Cause, Change, ChangeKind, GlobalStall, LongStep
from analyzers.steps.table import Steps, robust_deviation

# Find where the level of a series changes, by exact segmentation of its ranks, which is robust against outliers.
#
# A *rank* here is the position of a value in sorted order. A *cut* is an index at which the level changes.
#
# 1. Values are replaced by their ranks, scaled to mean 0 and variance 1. Then neither outliers nor the shape of the
#    noise matter, and the variance is known.
# 2. Of all ways to cut the series into segments, the cheapest one is returned. The cost is the sum of squared distances
#    from the segments' means, plus a penalty for each cut. "Optimal partitioning" finds it exactly in O(n^2) (Jackson
#    et al., An algorithm for optimal partitioning of data on an interval, IEEE Signal Processing Letters 12, 2005).
# 3. The penalty: in units of the variance, a cut without any cause still lowers the cost by about 2 log n (the largest
#    of n chi-squared variables of one degree of freedom). The penalty is PENALTY log n with PENALTY = 4, because both
#    ends of a segment are searched. Of thousands of series of pure noise, less than one in a thousand is cut.
# 4. If steps resemble their neighbours (autocorrelation r), they carry less information than independent ones. So the
#    penalty grows by (1 + r) / (1 - r), the variance inflation of an AR(1) process.
#
# Example: `[1.0, 1.1, 0.9] * 5 + [2.0, 2.1, 1.9] * 5` with an outlier of 9.0 at index 3. As a rank the outlier is
# only the largest of 30 values. The cut at 15 lowers the sum of squares from 30.0 by 17.3, which is more than the
# penalty of 4 log 30 = 13.6. No other cut does so: `segments` returns the levels 1.0 (0 to 15) and 2.0 (15 to 30).
# With only 10 + 10 such values the cut saves 9.8 and costs 12.0: so few values prove no change.

_PENALTY = 4.0
SHORTEST = 5
"""The smallest number of values in a segment between two changes."""
LONGEST_SERIES = 2000
"""The length above which a series is replaced by the medians of blocks of its values.

It is then cut only between blocks. The cost of the search grows with the square of the length.
"""


@dataclass(frozen=True)
class Segment:
    """A part of a series with a constant level: the values `begin` to `end` (exclusive), and their median `level`."""

    begin: int
    end: int
    level: float


def segments(values: Floats) -> list[Segment]:
    """Return the segments of constant level in a series, in order; a single segment if the level never changes."""
    block = -(-len(values) // LONGEST_SERIES)
    # Values after the last whole block belong to the last segment.
    whole = len(values) // block * block
    # Medians, so that a block with an outlier is no outlier.
    medians = np.median(values[:whole].reshape(-1, block), axis=1) if block > 1 else values
    cuts = [cut * block for cut in cheapest_cuts(standard_ranks(medians), penalty(medians))]
    bounds = [0, *cuts, len(values)]
    return [Segment(a, b, float(np.median(values[a:b]))) for a, b in pairwise(bounds) if b > a]


def penalty(values: Floats) -> float:
    """Return the penalty for each cut in a segmentation; it is so high that noise alone is not cut.

    For n values it is PENALTY log n, times (1 + r) / (1 - r), where r is the correlation of neighbouring values.
    """
    correlation = _neighbour_correlation(values)
    return float(_PENALTY * np.log(max(len(values), 2)) * (1 + correlation) / (1 - correlation))


def _neighbour_correlation(values: Floats) -> float:
    """Return the correlation of neighbouring values, limited to 0 to 0.8; 0 for a series too short to estimate it.

    The estimate uses two variances: of the differences between values one step apart, 2 s^2 (1 - r), and two steps
    apart, 2 s^2 (1 - r^2). Their ratio is 1 + r. Unlike the usual estimate, a few changes of level do not increase this
    one.
    """
    if len(values) < 3 * SHORTEST:
        return 0.0
    lag1, lag2 = (float(np.median(np.abs(values[lag:] - values[:-lag]))) for lag in (1, 2))
    return float(np.clip((lag2 / lag1) ** 2 - 1, 0.0, 0.8)) if lag1 > 0 else 0.0


def standard_ranks(values: Floats) -> Floats:
    """Return each value's rank in sorted order, scaled to mean 0 and variance 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    spread = ranks.std()
    return (ranks - ranks.mean()) / spread if spread else np.zeros(len(values))


def cheapest_cuts(values: Floats, cut_cost: float) -> list[int]:
    """Return the indices at which new segments begin in the segmentation of lowest cost; each cut costs `cut_cost`.

    In the code, `cost[end]` is the lowest cost for the first `end` values. It is the minimum over `begin` of three
    terms: `cost[begin]`, the squared distances within `begin..end` (from cumulative sums), and `cut_cost`.
    """
    count = len(values)
    sums, squares = (np.concatenate([[0.0], np.cumsum(v)]) for v in (values, values * values))
    cost = np.full(count + 1, np.inf)
    cost[0], last_cut = -cut_cost, np.zeros(count + 1, dtype=int)  # the first segment needs no cut
    for end in range(SHORTEST, count + 1):
        begin = np.arange(end - SHORTEST + 1)
        distances = squares[end] - squares[begin] - (sums[end] - sums[begin]) ** 2 / (end - begin)
        total = cost[begin] + distances + cut_cost
        last_cut[end] = int(total.argmin())
        cost[end] = total[last_cut[end]]
    # Walk back from the end: each best last cut is the end of the best segmentation before it.
    cuts, end = [], count
    while end > 0 and (end := int(last_cut[end])) > 0:
        cuts.append(end)
    return cuts[::-1]


STEPS_AT_LEAST = 20
SHARE_AT_LEAST, _SHARE_ON_CPU = 0.05, 0.25
"""The smallest relative changes of the step time that are reported, on devices and on CPUs.

On shared processors, steps vary more without any cause in the job.
"""
_TINY_S = 1e-9


def step_time_changes(steps: Steps) -> list[Change]:
    """Return the changes of the typical duration of a step, in order of steps.

    The typical duration is the median over ranks. Only steps that did nothing besides training count.
    """
    plain = steps.grid(steps.table["dur_s"], steps.plain).dropna(how="all").median(axis=1)
    if len(plain) < STEPS_AT_LEAST:
        return []
    values = plain.to_numpy()
    levels = segments(values)
    # Segments approximate a drift by stairs, each of which would be reported as a change.
    ends = _drift_ends(values, levels)
    levels = _merge_small(values, ends or levels, _SHARE_ON_CPU if steps.device_type == "cpu" else SHARE_AT_LEAST)
    kind = ChangeKind.DRIFT if ends else ChangeKind.STEP
    return [_change_between(steps, plain, a, b, kind) for a, b in pairwise(levels)]


def _drift_ends(values: Floats, levels: Sequence[Segment]) -> list[Segment]:
    """Return the first and the last third as two segments if the values drift along a line, else an empty list.

    Two descriptions of the series are compared: a line through the medians of both thirds (a resistant line, Tukey
    1977), and `levels`, segments of constant level. The one with the smaller sum of absolute distances fits better.
    Outliers influence neither fit.
    """
    third, index = len(values) // 3, np.arange(len(values))
    rise = np.median(values[-third:]) - np.median(values[:third])
    slope = rise / (len(values) - third)
    line = slope * index + np.median(values - slope * index)
    stairs = np.concatenate([np.full(level.end - level.begin, level.level) for level in levels])
    if len(levels) < 2 or np.abs(values - line).sum() >= np.abs(values - stairs).sum():
        return []
    return [Segment(0, third, float(line[0])), Segment(len(values) - third, len(values), float(line[-1]))]


def _merge_small(values: Floats, levels: Sequence[Segment], share: float) -> list[Segment]:
    """Return the segments after merging neighbours in `levels` whose levels differ by less than the fraction `share`.

    The difference is relative to the level of the first of the two. `values` is the series that the segments divide;
    the level of a merged segment is the median of its values.
    """
    merged = list(levels)
    while len(merged) > 1:
        changes = [abs(b.level - a.level) / max(a.level, _TINY_S) for a, b in pairwise(merged)]
        smallest = int(np.argmin(changes))
        if changes[smallest] >= share:
            break
        a, b = merged[smallest], merged[smallest + 1]
        # Merging one pair at a time lets several small steps in one direction count together.
        merged[smallest : smallest + 2] = [Segment(a.begin, b.end, float(np.median(values[a.begin : b.end])))]
    return merged


def _change_between(steps: Steps, plain: "pd.Series[float]", a: Segment, b: Segment, kind: ChangeKind) -> Change:
    """Return the change of step time between two segments of `plain`, with the change of each phase in seconds.

    `plain` is {step: seconds} of the steps that did nothing besides training. A change of `kind` DRIFT is reported at
    the first step of segment `a`, a change of kind STEP at the first step of `b`.
    """
    before, after = (plain.index[segment.begin : segment.end] for segment in (a, b))
    begin = b.begin if kind is ChangeKind.STEP else a.begin
    return Change(
        kind=kind,
        step=int(plain.index[begin]),
        before_s=a.level,
        after_s=b.level,
        phases={name: _phase_median(steps, name, after) - _phase_median(steps, name, before) for name in steps.phases},
    )


def _phase_median(steps: Steps, phase: str, numbers: pd.Index) -> float:
    """Return the median seconds of a phase over all ranks, in steps that did nothing but train.

    The steps go from the first to the last of `numbers`, which are ascending step numbers.
    """
    rows = steps.plain & steps.table["step"].between(numbers[0], numbers[-1])
    return float(np.median(steps.phases.at(phase, rows.to_numpy())))


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
