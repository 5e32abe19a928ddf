"""A line chart over the steps with a line per run, drawn in Braille dots; signs on the lines distinguish the runs."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Unpack

import numpy as np
import pandas as pd
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from analyzers.steps.views import NOT_TRAINING
from analyzers.words import duration
from workbench.colours import STATUSES, phase_colour
from workbench.console import clean
from workbench.present.parity_lines import Lines
from workbench.present.table import CUT
from workbench.tui.widgets.axes import Unit, round_distance
from workbench.tui.widgets.common import WidgetOptions, call_on_new_size, fitted, wrapped
from workbench.tui.widgets.stacked_chart import FAILURE, NO_DATA, StackedChart

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a Braille cell, by row and column."""
_BRAILLE = 0x2800
_LABEL = 10
"""The columns to the left of the lines, for the labels of the value axis."""
_HEAD_ROWS = 1
"""The number of rows for the title above the chart."""
_RULER_ROWS = 2
"""The most rows for the text below the chart."""
_VALUE_WIDTH = 10
"""The usual width, in columns, of a sign and a value in the text below the chart."""
_SIGN_EVERY = 6
"""The smallest distance, in columns, between two signs on the same line."""
_LABEL_EVERY = 4
"""The usual distance, in rows, between the labels of the value axis."""
_NEARLY = 1e-9
"""The largest distance from a whole number that counts as a rounding error of a multiple."""
MARK, _CURSOR = "┄", "┆"
Point = tuple[int, int]
"""A position, as (from the left, from the top), in Braille dots or in character cells."""


@dataclass(frozen=True)
class Scale:
    """Converts steps and values to positions in an area of `columns` by `rows` cells, each of 2 by 4 Braille dots."""

    columns: int
    rows: int
    steps: tuple[int, ...]
    low: float
    high: float

    def x(self, row: int) -> int:
        """Return the horizontal position, in dots, of the step with the index `row` in `steps`."""
        spread = (self.steps[-1] - self.steps[0]) or 1
        return round((self.steps[row] - self.steps[0]) / spread * (self.columns * 2 - 1))

    def y(self, value: float) -> int:
        spread = (self.high - self.low) or 1.0
        return round((self.high - value) / spread * (self.rows * 4 - 1))

    def points(self, values: Sequence[float]) -> list[Point | None]:
        return [(self.x(row), self.y(value)) if math.isfinite(value) else None for row, value in enumerate(values)]


class LineChart(Widget, can_focus=True):
    """A chart with a line per run, drawn from the table in a `Lines` object, which has a row per step.

    `cursor` is the index of the table row whose step is selected.
    """

    DEFAULT_CSS = "LineChart { width: 1fr; height: 1fr; min-height: 6; }"
    cursor: reactive[int] = reactive(0)

    def __init__(self, **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self._lines = Lines("", pd.DataFrame())
        self._scale = Scale(1, 1, (), 0.0, 0.0)
        self._dots: dict[Point, Counter[int]] = {}
        self._signs: dict[Point, int] = {}
        self._labels: list[float] = []
        self._ruler_rows = 1

    def show(self, lines: Lines) -> None:
        """Draw these lines; the cursor keeps its row index, or moves to the last row if the new table is shorter."""
        self._lines = lines
        # The new lines may have fewer steps than the number that the cursor stands on.
        self.move(0)
        self._draw()

    def move(self, by: int) -> None:
        self.cursor = min(max(0, self.cursor + by), max(0, len(self._lines.table) - 1))

    def on_mount(self) -> None:
        call_on_new_size(self, self._draw)

    def _draw(self) -> None:
        self._ruler_rows = self._needed_ruler_rows()
        room = max(1, self.size.width - _LABEL), max(1, self.size.height - _HEAD_ROWS - self._ruler_rows)
        low, high, self._labels = round_heights(self._lines, room[1])
        self._scale = Scale(*room, tuple(map(int, self._lines.table.index)), low, high)
        self._dots, self._signs = {}, {}
        for number, name in enumerate(self._lines.names):
            points = self._scale.points(self._lines.table[name].tolist())
            for x, y in connected(points):
                self._dots.setdefault((x // 2, y // 4), Counter())[number] |= _DOTS[y % 4][x % 2]
            self._signs |= dict.fromkeys(sign_places(points, number, len(self._lines.names)), number)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        return Strip(self._line(y)).adjust_cell_length(self.size.width).apply_style(self.rich_style)

    def _line(self, y: int) -> list[Segment]:
        if y == 0:
            return [Segment(fitted(clean(self._lines.title), self.size.width - 1), Style(bold=True))]
        if not self._scale.steps:
            return [Segment(NO_DATA if y == 1 else "", Style(dim=True))]
        if (row := y - self.size.height + self._ruler_rows) >= 0:
            return self._ruler_segments(row)
        return [Segment(f"{self._label(y - 1):>{_LABEL - 1}} ", Style(dim=True)), *self._cells(y - 1)]

    def _label(self, row: int) -> str:
        """Return the label to the left of row `row` of the chart; empty for most rows.

        Labelled are some round values, and before them `Lines.mark`, an extra horizontal line.
        """
        mark = self._lines.mark
        named = {} if mark is None else {mark: self._lines.text(mark)}
        named |= dict(zip(self._labels, self._lines.texts_of(self._labels), strict=True))
        return next((text for value, text in named.items() if self._scale.y(value) // 4 == row), "")

    def _cells(self, row: int) -> Iterator[Segment]:
        mark, at = self._lines.mark, self._scale.x(self.cursor) // 2
        empty = MARK if mark is not None and self._scale.y(mark) // 4 == row else " "
        for column in range(self._scale.columns):
            yield self._cell((column, row), _CURSOR if column == at else empty, reverse=column == at)

    def _cell(self, place: Point, empty: str, *, reverse: bool) -> Segment:
        """Return the chart's cell at `place`: the sign of a run, or the dots of its line, or the character `empty`.

        `reverse` swaps the colours, which marks the cursor.
        """
        if place in self._signs:
            number = self._signs[place]
            return Segment(self._lines.sign(number), Style(color=self._lines.colour(number), reverse=reverse))
        if dots := self._dots.get(place):
            # Lines that lie on each other take turns, so that each is seen.
            number, bits = sorted(dots)[place[0] % len(dots)], 0
            for part in dots.values():
                bits |= part
            return Segment(chr(_BRAILLE | bits), Style(color=self._lines.colour(number), reverse=reverse))
        return Segment(empty, Style(dim=True))

    def _ruler(self) -> list[Text]:
        """Return the lines of text below the chart: the range of steps, and the value of each run at the cursor.

        If the chart has a text for each step (`Lines.texts`), the text at the cursor takes the place of the values.
        """
        steps = self._step_text()
        if self._lines.texts:
            return [Text(f"{steps}   {clean(self._lines.texts[self.cursor])}", style="dim")]
        values = enumerate(self._lines.table.iloc[self.cursor].tolist())
        signed = (
            Text.assemble((self._lines.sign(i), self._lines.colour(i)), f" {self._lines.exact(value)}")
            for i, value in values
            if not math.isnan(value)
        )
        lines = list(wrapped([Text(steps, style="dim"), *signed], self.size.width - 1).split("\n"))
        if len(lines) > self._ruler_rows:
            lines[self._ruler_rows - 1].append(f" {CUT}")
        return lines[: self._ruler_rows]

    def _ruler_segments(self, row: int) -> list[Segment]:
        """Return the line of text with the index `row` below the chart."""
        lines = self._ruler()
        if row >= len(lines):
            return []
        lines[row].truncate(self.size.width - 1, overflow="ellipsis")
        return list(lines[row].render(self.app.console))

    def _needed_ruler_rows(self) -> int:
        """Return how many rows the text below the chart usually takes; these are reserved before the cursor moves."""
        if self._lines.texts or self._lines.table.empty:
            return 1
        usual = [Text(self._step_text()), *[Text(" " * _VALUE_WIDTH)] * len(self._lines.names)]
        return min(wrapped(usual, self.size.width - 1).plain.count("\n") + 1, _RULER_ROWS)

    def _step_text(self) -> str:
        steps = self._lines.table.index
        return f"{self._lines.axis} {steps[self.cursor]} of {steps[0]} … {steps[-1]}"


def round_heights(lines: Lines, rows: int) -> tuple[float, float, list[float]]:
    """Return (lowest, highest, labels) of a value axis for some lines: round values, the outermost at its ends.

    Logarithms are round if they are whole, which makes the labels powers of ten.
    """
    low, high = lines.heights()
    span = (high - low) or abs(high) or 1.0
    step = round_distance(span / max(1, rows // _LABEL_EVERY))
    step = max(1.0, float(math.ceil(step))) if lines.power else step
    first, last = math.floor(low / step + _NEARLY), math.ceil(high / step - _NEARLY)
    labels = [float(f"{number * step:.12g}") for number in range(first, max(last, first + 1) + 1)]
    return labels[0], labels[-1], labels


def connected(points: Sequence[Point | None]) -> Iterator[Point]:
    """Yield the dots of straight lines between neighbouring points; a missing point leaves a gap."""
    # Each point by itself, too: one between two gaps has no line.
    yield from (point for point in points if point)
    for before, after in pairwise(points):
        if before and after:
            (x, y), (to_x, to_y) = before, after
            length = max(abs(to_x - x), abs(to_y - y), 1)
            yield from ((round(x + (to_x - x) * i / length), round(y + (to_y - y) * i / length)) for i in range(length))


def sign_places(points: Sequence[Point | None], number: int, count: int) -> Iterator[Point]:
    """Yield the cells in which to draw the sign of the line with the index `number`; there are `count` lines.

    The lines take turns along the x axis, so that the signs of equal lines do not cover each other.
    """
    last = -_SIGN_EVERY
    for row, point in enumerate(points):
        is_turn = row % min(count, len(points)) == number % len(points)
        if point and is_turn and point[0] // 2 - last >= _SIGN_EVERY:
            last = point[0] // 2
            yield last, point[1] // 4


_BASE = 0.05
"""The least height of the column of the lowest loss, as a share of the range of the losses, so that it is visible."""
_TICK_COLUMNS = 6
"""The columns of a chart for the label of each step."""
_FLOORS = 5
"""A chart of losses begins at a round number: a multiple of this part of their range, which is rounded up."""


class PhaseChart(StackedChart):
    """A chart of the phases of one rank's steps, in seconds: a column per step, as high as the step's duration."""

    UNIT: ClassVar[Unit] = Unit.SECONDS

    def show(self, frame: pd.DataFrame) -> None:
        """Draw the steps in `frame`: the largest phase is at the bottom, time outside the training at the top."""
        names = [str(name) for name in frame.columns if name not in ("step", "dur_s", "tagged")]
        spent = frame[names].sum().to_dict()
        ranked = sorted(names, key=lambda name: (name in NOT_TRAINING, -spent[name]))
        colours = {name: phase_colour(name) for name in ranked}
        self.draw(thinned(frame, "dur_s", self.columns), colours, "dur_s")

    def signs(self) -> dict[int, str]:
        """Return the mark above the chart as {index of a table row: sign}: `▼` over the longest step."""
        return {self.highest: "▼"}

    def value_text(self, value: float) -> str:
        return duration(value)

    def ticks(self) -> dict[int, str]:
        """Return the labels of the steps below the chart as {index of a table row: label}; a row is a step."""
        return step_ticks(self.instants, self.starts[-1])

    def ruler(self) -> Sequence[str]:
        return [_step_range(self.instants), f"▼ longest {duration(float(self.instants['dur_s'].max()))}"]


class LossChart(StackedChart):
    """A chart of the loss of each step, from `steps.views.series`; its lower edge is near the lowest loss, not 0."""

    _floor = 0.0

    def show(self, frame: pd.DataFrame) -> None:
        """Draw the losses in a table; a step whose loss is NaN or infinite has a mark instead.

        The cursor starts at the first such step, if there is one.
        """
        known = frame.dropna(subset="step")
        finite = known["loss"].replace([math.inf, -math.inf], math.nan)
        self._floor = floor_below(float(finite.min()), float(finite.max()))
        drawn = known.assign(height=(finite - self._floor).fillna(0.0), broken=known["broken"])
        self.draw(thinned(drawn, "height", self.columns), {"height": STATUSES["ok"]}, "height")
        self.cursor = min(self.signs(), default=self.cursor)

    def signs(self) -> dict[int, str]:
        """Return the marks above the chart as {index of a table row: sign}: `✗` over steps whose loss is not finite."""
        return {int(row): FAILURE for row in np.flatnonzero(self.instants["broken"].to_numpy(bool))}

    def value_text(self, value: float) -> str:
        return f"{self._floor + value:.6g}"

    def floor_text(self) -> str:
        return self.value_text(0.0)

    def ticks(self) -> dict[int, str]:
        """Return the labels of the steps below the chart as {index of a table row: label}; a row is a step."""
        return step_ticks(self.instants, self.starts[-1])

    def ruler(self) -> Sequence[str]:
        losses = self.instants["loss"]
        broken = [f"{FAILURE} not finite"] if self.signs() else []
        return [_step_range(self.instants), *broken, f"loss {losses.min():.4f} … {losses.max():.4f}"]


def floor_below(lowest: float, highest: float) -> float:
    """Return a round number a little below `lowest`, for the lower edge of a chart of losses.

    >>> floor_below(5.87, 6.11)
    5.85
    """
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        return 0.0
    # A constant loss has no range.
    span = (highest - lowest) or abs(lowest) or 1.0
    step = round_distance(span / _FLOORS)
    floor = float(f"{math.floor((lowest - _BASE * span) / step) * step:.12g}")
    return max(0.0, floor) if lowest >= 0 else floor


def _step_range(frame: pd.DataFrame) -> str:
    return f"step {int(frame['step'].iloc[0])} … {int(frame['step'].iloc[-1])}"


def step_ticks(frame: pd.DataFrame, columns: int) -> dict[int, str]:
    """Return {index of a row of `frame`: label of its step}: `step 5` for the first row, else only the number.

    Only multiples of a round number have labels, as many as fit into `columns`. If such a step was not recorded, the
    next recorded step has a label. If a row stands for several steps, its label is the round number.
    """
    steps = [int(step) for step in frame["step"]]
    apart = max(1, int(round_distance((steps[-1] - steps[0] + 1) / max(1, columns // _TICK_COLUMNS))))
    labelled = (row for row in range(1, len(steps)) if steps[row] // apart > steps[row - 1] // apart)
    several = len(steps) == columns and steps[-1] - steps[0] > columns
    named = ((row, steps[row] // apart * apart if several else steps[row]) for row in labelled)
    return {0: f"step {steps[0]}"} | {row: str(step) for row, step in named}


def thinned(frame: pd.DataFrame, by: str, rows: int) -> pd.DataFrame:
    """Return at most `rows` rows of a table, keeping every spike.

    Consecutive rows are grouped; of each group, only the row with the largest value in column `by` is kept.
    """
    if len(frame) <= rows or rows <= 0:
        return frame
    edges = np.linspace(0, len(frame), rows + 1).astype(int)
    values = np.nan_to_num(frame[by].to_numpy(float), nan=-math.inf)
    return frame.iloc[[a + int(values[a:b].argmax()) for a, b in pairwise(edges)]]
