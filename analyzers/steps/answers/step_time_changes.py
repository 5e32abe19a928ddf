"""Find when the steps became slower or faster, at once or gradually."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from analyzers.columns import Floats
from analyzers.steps.answers.change_points import Segment, segments
from analyzers.steps.model import Change, ChangeKind
from analyzers.steps.table import Steps

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
    levels = _merge_small(values, ends or levels, _smallest_share(steps))
    kind = ChangeKind.DRIFT if ends else ChangeKind.STEP
    return [_change_between(steps, plain, a, b, kind) for a, b in pairwise(levels)]


def _smallest_share(steps: Steps) -> float:
    """Return the smallest relative change of the step time that is reported."""
    return _SHARE_ON_CPU if steps.device_type == "cpu" else SHARE_AT_LEAST


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
