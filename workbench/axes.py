"""Convert between training steps and positions on a chart's axis of trace entries or nanoseconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

import numpy as np
import pandas as pd

from analyzers.columns import Floats
from analyzers.words import size, tick_durations

Span = tuple[float, float]
"""A range of positions on an axis, or of steps, as (first, end)."""
NEAR = 5e-4
"""A position that is less than this number of steps from a whole step counts as that step: pixels are no finer."""


@dataclass(frozen=True)
class StepMarks:
    """Pairs of a position on an axis and the step (a fractional number) at this position, both ascending.

    Between two pairs, positions and steps are interpolated.
    """

    positions: Floats
    steps: Floats

    @classmethod
    def of(cls, frame: pd.DataFrame) -> "StepMarks":
        """Return the marks in a table; the first column has positions on the axis, the second the steps there."""
        positions, steps = (frame.iloc[:, i].to_numpy(float) for i in (0, 1))
        return cls(positions, steps)

    def to_steps(self, positions: "Floats | pd.Series[int]") -> Floats:
        at: Floats = np.asarray(positions, float)
        return np.interp(at, self.positions, self.steps)

    def to_positions(self, steps: Floats) -> Floats:
        return np.interp(steps, self.steps, self.positions)

    def steps_within(self, span: Span) -> Span | None:
        """Return the range of steps that a range of the axis covers; None if it contains no step."""
        if not len(self.positions) or span[1] <= self.positions[0] or span[0] >= self.positions[-1]:
            return None
        low, high = self.to_steps(np.array(span)).tolist()
        return (low, high) if high - low > NEAR else None

    def span_of(self, steps: Span) -> tuple[int, int] | None:
        """Return the range of the axis that a range of steps covers; None if the steps are outside the axis."""
        if not len(self.positions) or steps[1] <= self.steps[0] or steps[0] >= self.steps[-1]:
            return None
        low, high = self.to_positions(np.array(steps)).tolist()
        # At least one position wide: a step shorter than one entry must still be visible.
        return int(low), max(int(low) + 1, int(np.ceil(high)))

    def starts(self) -> list[tuple[int, float]]:
        """Return (step, position) of each step that starts on the axis; steps with an unknown end are left out."""
        # A mark at a fraction of a step lies inside it; only whole numbers are starts.
        number, following = np.floor(self.steps[:-1]), self.steps[1:]
        inside = np.flatnonzero((following > self.steps[:-1]) & (following <= number + 1))
        _, first = np.unique(number[inside], return_index=True)
        return [(int(number[i]), float(self.positions[i])) for i in inside[first]]


Tick = tuple[float, str]
"""A tick of an axis, as (value, label)."""


def byte_tick_values(top: int) -> list[int]:
    """Return the ticks of an axis from 0 to `top` bytes, at round multiples of binary units such as MiB."""
    every = 1 << max(0, (max(top, 1) - 1).bit_length() - 3)  # a power of two of which four to eight fit
    return [*range(0, top + every, every)]


def tick_distance(length: float, most: int) -> float:
    """Return the distance between the ticks of an axis, so that at most `most` ticks fit in `length`.

    The distance is 1, 2 or 5 times a power of ten.
    """
    if length <= 0:
        return 1.0
    # 1, 2 and 5 are the steps that people read without counting.
    magnitude: float = 10.0 ** floor(log10(length / most))
    return next(factor * magnitude for factor in (1, 2, 5, 10) if length / (factor * magnitude) <= most)


def byte_marks(top: int) -> list[Tick]:
    return [(value, size(value)) for value in byte_tick_values(top) if value <= top]


def duration_marks(top_ns: float, most: int) -> list[Tick]:
    every = tick_distance(top_ns, most)
    at = [number * every for number in range(floor(top_ns / every) + 1)]
    return [*zip(at, tick_durations(at, every, top_ns), strict=True)]


def apart(ticks: Sequence[Tick], least: float) -> list[Tick]:
    """Return the ticks without any tick that is closer than `least` to the previous one; `ticks` are ascending."""
    kept: list[Tick] = []
    for tick in ticks:
        if not kept or tick[0] - kept[-1][0] >= least:
            kept.append(tick)
    return kept
