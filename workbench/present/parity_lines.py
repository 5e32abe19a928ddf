"""Compute the content of the line charts of `workbench parity`, for terminal, dashboard and HTML."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analyzers.parity import views
from analyzers.parity.findings import CURVE_NAMES
from analyzers.parity.model import Curve, ParityData
from analyzers.words import figures, relative
from workbench.colours import nth_colour

_SMALLEST = 1e-10
"""The smallest relative difference on a chart's axis, which is logarithmic; smaller differences are drawn here."""
_MOST_FIGURES, _MOST_DIGITS = 3, 8
"""The usual number of digits of a label, and the largest number, if values differ only in further digits."""
SIGNS = "●▲■◆✚✖▼★"
"""The signs of the runs in a chart, one for each run, because no chart relies on colour alone."""


@dataclass(frozen=True)
class Lines:
    """The content of a line chart with one line per run: `table` has a row per step and a column per run.

    `axis` names what a row is if it is not a step, such as `operation`. `texts` has a text for each row, which is
    shown instead of the values. If `power` is true, the values are decimal logarithms. `mark` is the height of an
    extra horizontal line, such as the tolerance. `offset` is the index of the run in the first column, so that a run
    has the same colour in all charts.
    """

    title: str
    table: pd.DataFrame
    mark: float | None = None
    power: bool = False
    offset: int = 0
    axis: str = "step"
    texts: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """The names of the runs in the table, in the order of its columns."""
        return [str(name) for name in self.table]

    def colour(self, number: int) -> str:
        """Return the colour of the line with index `number`; a run has the same colour in all charts."""
        return nth_colour(number + self.offset)

    def sign(self, number: int) -> str:
        """Return the sign that marks the line with index `number`; a run has the same sign in all charts."""
        return SIGNS[(number + self.offset) % len(SIGNS)]

    def heights(self) -> tuple[float, float]:
        """Return (lowest, highest) of all finite values in the table and of `mark`; (0, 0) if there are none."""
        values = [float(y) for y in self.table.to_numpy(float).ravel() if math.isfinite(y)]
        values += [] if self.mark is None else [self.mark]
        return min(values, default=0.0), max(values, default=0.0)

    def text(self, value: float) -> str:
        """Return the axis label for the y value `value`; for a logarithm, the label shows the relative difference."""
        if not self.power or not math.isfinite(value):
            return figures(value)
        difference: float = 10**value
        # The power of a logarithm is the number itself but for rounding.
        return f"<{relative(_SMALLEST)}" if difference <= _SMALLEST * 1.001 else relative(difference)

    def texts_of(self, values: Sequence[float]) -> list[str]:
        """Return the axis labels of several y values, whole where three digits would make some of them equal."""
        texts = [self.text(value) for value in values]
        if self.power or len({*texts}) == len({*values}):
            return texts
        for digits in range(_MOST_FIGURES + 1, _MOST_DIGITS):
            texts = [f"{value:#.{digits}g}" for value in values]
            if all(math.isclose(float(text), value) for text, value in zip(texts, values, strict=True)):
                break
        return texts

    def exact(self, value: float) -> str:
        """Return the y value `value` as text with seven digits.

        If the y values are logarithms (`power`), return the relative difference that `value` stands for, as `text`
        does.
        """
        return self.text(value) if self.power else f"{value:.7g}"


def curve_lines(data: ParityData, curve: Curve) -> Lines:
    """Return the content of a line chart of a curve (loss or gradient norm) of all runs."""
    return Lines(f"{CURVE_NAMES[curve].capitalize()} by step", views.curve_table(data, curve))


def difference_lines(data: ParityData, curve: Curve) -> Lines:
    """Return the content of a line chart of each run's relative difference from the first run, on a log scale."""
    table = views.difference_table(data, curve).map(logarithm)
    what, first = CURVE_NAMES[curve].capitalize(), data.runs[0].name
    title = f"{what}: relative difference from {first} (log scale, allowed: {relative(data.tolerance)})"
    return Lines(title, table, mark=logarithm(data.tolerance), power=True, offset=1)


def all_lines(data: ParityData) -> Sequence[Lines]:
    """Return the content of each line chart of a parity report; charts without values are left out."""
    charts = [of(data, curve) for curve in Curve for of in (curve_lines, difference_lines)]
    return [lines for lines in charts if lines.table.notna().to_numpy().any()]


def logarithm(difference: float) -> float:
    """Return the decimal logarithm of a relative difference; infinity and NaN stay as they are.

    Differences below `_SMALLEST`, such as 0, count as `_SMALLEST`.
    """
    return math.log10(max(difference, _SMALLEST)) if math.isfinite(difference) else difference
