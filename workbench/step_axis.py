"""Convert between training steps and positions on a chart's axis of trace entries or nanoseconds."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzers.columns import Floats

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
        """Return the steps at these positions on the axis, as fractional numbers."""
        at: Floats = np.asarray(positions, float)
        return np.interp(at, self.positions, self.steps)

    def to_positions(self, steps: Floats) -> Floats:
        """Return the positions of these steps on the axis."""
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
