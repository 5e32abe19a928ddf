"""Compute the content of the line charts of `workbench parity`, for terminal, dashboard and HTML."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analyzers.parity import BisectData, report
from analyzers.parity.bisect_report import first_step, operation_table, step_table
from analyzers.parity.model import Curve, ParityData, ValueKind
from analyzers.parity.report import CURVE_NAMES, value_name_of
from analyzers.report import Report
from analyzers.run import Run, discover
from analyzers.store import Options
from analyzers.words import figures, relative
from workbench.axes import Tick, tick_distance
from workbench.colours import css_nth, nth_colour
from workbench.present.figure import HEIGHT, WIDTH, Axes, figure

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
        return [str(name) for name in self.table]

    def colour(self, number: int) -> str:
        return nth_colour(number + self.offset)

    def sign(self, number: int) -> str:
        """Return the sign that marks the line with index `number`; a run has the same sign in all charts."""
        return SIGNS[(number + self.offset) % len(SIGNS)]

    def heights(self) -> tuple[float, float]:
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
    return Lines(f"{CURVE_NAMES[curve].capitalize()} by step", report.curve_table(data, curve))


def difference_lines(data: ParityData, curve: Curve) -> Lines:
    """Return the content of a line chart of each run's relative difference from the first run, on a log scale."""
    table = report.difference_table(data, curve).map(logarithm)
    what, first = CURVE_NAMES[curve].capitalize(), data.runs[0].name
    title = f"{what}: relative difference from {first} (log scale, allowed: {relative(data.tolerance)})"
    return Lines(title, table, mark=logarithm(data.tolerance), power=True, offset=1)


def all_lines(data: ParityData) -> Sequence[Lines]:
    charts = [of(data, curve) for curve in Curve for of in (curve_lines, difference_lines)]
    return [lines for lines in charts if lines.table.notna().to_numpy().any()]


def logarithm(difference: float) -> float:
    """Return the decimal logarithm of a relative difference; infinity and NaN stay as they are.

    Differences below `_SMALLEST`, such as 0, count as `_SMALLEST`.
    """
    return math.log10(max(difference, _SMALLEST)) if math.isfinite(difference) else difference


_HIGHEST = 10.0
"""The relative difference at which infinite differences are drawn.

A difference is infinite if a tensor is finite in only one of the runs, or if its sizes differ.
"""
_DIFFERENCE, _ALLOWED = "difference", "allowed by rounding"


def operation_lines(table: pd.DataFrame, step: int) -> Lines:
    """Return the chart of a step's tensors in the order of computation: the difference, and the allowed difference."""
    rows = table[table["step"] == step]
    values = {_DIFFERENCE: rows["difference"], _ALLOWED: rows["tolerance"]}
    drawn = pd.DataFrame({name: column.map(height) for name, column in values.items()})
    drawn.index = pd.Index(rows["position"].to_numpy(), name="operation")
    title = f"Difference of B from A by operation of step {step} (log scale)"
    return Lines(title, drawn, power=True, axis="operation", texts=_operation_texts(rows))


def step_lines(table: pd.DataFrame) -> Lines:
    """Return the chart of the largest difference of each step."""
    steps = step_table(table)
    drawn = pd.DataFrame({"largest difference": steps["largest"].map(height)})
    texts = [
        f"largest difference {difference_text(largest)}, {beyond} of {tensors} tensors beyond rounding"
        for largest, beyond, tensors in zip(steps["largest"], steps["beyond"], steps["tensors"], strict=True)
    ]
    return Lines("Largest difference of B from A by step (log scale)", drawn, power=True, texts=texts)


def height(difference: float) -> float:
    return logarithm(min(difference, _HIGHEST)) if not math.isnan(difference) else difference


def _operation_texts(rows: pd.DataFrame) -> list[str]:
    columns = (rows[name] for name in ("kind", "name", "difference", "tolerance"))
    return [operation_text(*cells) for cells in zip(*columns, strict=True)]


def operation_text(kind: str, name: str, difference: float, allowed: float) -> str:
    sign = "differs" if difference > allowed else "agrees"
    return (
        f"{value_name_of(ValueKind(kind), name)}: {sign}, {difference_text(difference)} (allowed {relative(allowed)})"
    )


def difference_text(difference: float) -> str:
    return relative(difference) if math.isfinite(difference) else "only one is finite, or sizes differ"


LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
_MOST_STEPS = 6


def parity_charts(data: ParityData, _report: Report[object], _run: Run) -> Iterator[str]:
    yield from filter(None, map(line_chart, all_lines(data)))


def bisect_charts(data: BisectData, _report: Report[object], _run: Run) -> Iterator[str]:
    """Yield the HTML figures of two recorded runs: the differences by operation of the first step that differs, and by
    step.

    Raises:
        WorkbenchError: The recordings are no longer where they were.
    """
    tensors = operation_table(discover(Path(data.a.folder)), discover(Path(data.b.folder)), Options(), data.tolerance)
    charts = (operation_lines(tensors, first_step(data, tensors)), step_lines(tensors))
    yield from filter(None, map(line_chart, charts))


def line_chart(lines: Lines) -> str:
    """Return an HTML figure with one line per run, and a dashed line at `lines.mark`; empty if there is no step."""
    steps = [int(step) for step in lines.table.index]
    low, high = lines.heights()
    if not steps:
        return ""
    # All values may be equal, and even 0.
    spread = (high - low) or abs(high) or 1.0

    def points(line: Sequence[tuple[float, float]]) -> str:
        wide = WIDTH / max(steps[-1] - steps[0], 1)
        finite = ((x, y) for x, y in line if math.isfinite(y))
        return " ".join(f"{(x - steps[0]) * wide:.1f},{(high - y) / spread * HEIGHT:.1f}" for x, y in finite)

    shapes = [
        f'<polyline points="{points(list(zip(steps, lines.table[name].tolist(), strict=True)))}" fill="none"'
        f' stroke="{css_nth(i + lines.offset)}" stroke-width="2"/>'
        for i, name in enumerate(lines.names)
    ]
    if lines.mark is not None:
        # A single step would make a line without length.
        ends = points([(steps[0], lines.mark), (max(steps[-1], steps[0] + 1), lines.mark)])
        shapes.append(f'<polyline points="{ends}" fill="none" stroke="currentColor" stroke-dasharray="6 4"/>')
    colours = {name: css_nth(i + lines.offset) for i, name in enumerate(lines.names)}
    labels = lines.texts_of([low + share * (high - low) for share in LEVELS])
    up = [*zip(LEVELS, labels, strict=True)] if high > low else []
    return figure(lines.title, "".join(shapes), colours, Axes(up, step_ticks(steps, lines.axis)))


def step_ticks(steps: Sequence[int], axis: str) -> list[Tick]:
    """Return labels of steps at round numbers for an axis from the first of them to the last."""
    length = max(steps[-1] - steps[0], 1)
    every = max(1, round(tick_distance(length, _MOST_STEPS)))
    at = [number for number in range(steps[0], steps[-1] + 1) if number % every == 0] or [steps[0]]
    return [((n - steps[0]) / length, f"{axis} {n}" if n == at[0] else str(n)) for n in at]
