"""How the step time goes over a run: changes of its level, drifts, and the steps that do more than train."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from analyzers.steps.answers.change_points import Segment, segments
from analyzers.steps.model import APART, Apart, Change, Steps
from analyzers.steps.reading.log_lines import Array

STEPS_AT_LEAST = 20
WORTH_TELLING, ON_SHARED_CORES = 0.05, 0.25
"""A change of the level by this share; processors that others use too make steps vary more."""
TINY = 1e-9


def changes(steps: Steps) -> list[Change]:
    """The changes of the level of the time of plain steps that are worth telling."""
    plain = steps.grid(steps.table["dur_s"], steps.plain).median(axis=1).dropna()
    if len(plain) < STEPS_AT_LEAST:
        return []
    values, worth = plain.to_numpy(), worth_of(steps)
    found = segments(values)
    ends = drift(values, found)
    found = merged(values, ends or found, worth)
    kind = "drift" if ends else "step"
    return [change(steps, plain, a, b, kind=kind) for a, b in pairwise(found)]


def worth_of(steps: Steps) -> float:
    return ON_SHARED_CORES if steps.on == "cpu" else WORTH_TELLING


def drift(values: Array, found: Sequence[Segment]) -> list[Segment]:
    """The first and the last third on a line through both, if that fits better than the segments; else nothing."""
    third, where = len(values) // 3, np.arange(len(values))
    rise = np.median(values[-third:]) - np.median(values[:third])
    slope = rise / (len(values) - third)
    line = slope * where + np.median(values - slope * where)
    steps = np.concatenate([np.full(s.end - s.begin, s.level) for s in found])
    if len(found) < 2 or np.abs(values - line).sum() >= np.abs(values - steps).sum():
        return []
    return [Segment(0, third, float(line[0])), Segment(len(values) - third, len(values), float(line[-1]))]


def merged(values: Array, found: Sequence[Segment], worth: float) -> list[Segment]:
    """Without the cuts that change too little, the smallest ones first."""
    left = list(found)
    while len(left) > 1:
        sizes = [abs(b.level - a.level) / max(a.level, TINY) for a, b in pairwise(left)]
        least = int(np.argmin(sizes))
        if sizes[least] >= worth:
            break
        a, b = left[least], left[least + 1]
        left[least : least + 2] = [Segment(a.begin, b.end, float(np.median(values[a.begin : b.end])))]
    return left


def change(steps: Steps, plain: "pd.Series[float]", a: Segment, b: Segment, kind: str) -> Change:
    """From one segment to another, with the phases behind it."""
    first, last = (plain.index[s.begin : s.end] for s in (a, b))
    begin = b.begin if kind == "step" else a.begin
    return Change(
        kind=kind,
        step=int(plain.index[begin]),
        before_s=a.level,
        after_s=b.level,
        phases={name: spent(steps, name, last) - spent(steps, name, first) for name in steps.phases},
    )


def spent(steps: Steps, phase: str, when: pd.Index) -> float:
    """The median over ranks and steps of the seconds of a phase."""
    chosen = steps.plain & steps.table["step"].between(when[0], when[-1])
    return float(np.median(steps.phases.at(phase, chosen.to_numpy())))


def apart(steps: Steps) -> dict[str, Apart]:
    """The steps with each tag, in the order of APART."""
    tags = steps.table["tags"]
    found = {}
    for tag in APART:
        named = [text for text in tags.unique() if tag in text.split(",")]
        if named:
            mine = steps.table[tags.isin(named)]
            median = mine["dur_s"].median()
            found[tag] = Apart(steps=mine["step"].nunique(), median_step_s=None if np.isnan(median) else float(median))
    return found
