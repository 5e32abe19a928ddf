"""A stacked area chart with a value axis; each row of the table is drawn one or more characters wide."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar, NamedTuple, Unpack

import numpy as np
import pandas as pd
from rich.segment import Segment
from rich.style import Style
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from analyzers.columns import Floats
from workbench.colours import STATUSES, text_colour
from workbench.tui.widgets.axes import Unit, ValueAxis, value_axis, without_zeros
from workbench.tui.widgets.common import WidgetOptions

EIGHTHS = 8
_MOST_OWED = 8.0
"""The most eighths by which one cell may correct a layer's area; more would draw the layer where it is not."""


class Cell(NamedTuple):
    """One character cell of a chart: layer number `below` fills its lower `eighths`, layer number `above` the rest."""

    eighths: int
    below: int
    above: int

    @property
    def larger(self) -> int:
        return self.below if self.eighths > EIGHTHS // 2 else self.above


def stacked_cells(layers: Floats, top: float, rows: int) -> list[list[Cell]]:
    """Return the cells of each column of a stacked chart, from the bottom up.

    `layers` has the shape (columns, layers), the lowest layer first, in any unit; `top` is the value at the upper
    edge of the `rows` cells. Layers are numbered from 0; the empty space above them has the number of layers.

    For example, with `rows` = 1 and `top` = 8, a column with the layers 5 and 3 becomes `[Cell(5, 0, 1)]`: the lower
    five eighths of the cell have the colour of layer 0, the rest that of layer 1.
    """
    columns, count = layers.shape
    # The tiny divisor is for a table of zeros, whose top is 0.
    heights = np.nan_to_num(np.maximum(layers, 0.0)) / max(top, 1e-300) * rows * EIGHTHS
    dealt, owed = _deal_eighths(heights, rows * EIGHTHS), np.zeros(count + 1)
    return [[divided(runs, owed) for runs in _runs_of_cells(dealt[column], rows)] for column in range(columns)]


def _deal_eighths(heights: Floats, total: int) -> list[list[int]]:
    """Return, for each column, the height of each layer in eighths of a cell; the empty space above comes last.

    The heights of a column add up to `total`. The top of the stack is rounded separately in each column. Area that a
    layer loses by rounding is added to the layer in the next column.
    """
    owed, columns = np.zeros(heights.shape[1]), []
    for column in heights:
        filled = min(total, round(float(column.sum())))
        counts = _largest_remainder(np.maximum(column + owed, 0.0), filled)
        owed = np.clip(owed + column - counts, -1.0, 1.0)
        columns.append([*counts.tolist(), total - filled])
    return columns


def _largest_remainder(wanted: Floats, total: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Round the numbers in `wanted` to whole numbers whose sum is `total`.

    All are rounded down; then those that lost most get one more. (1.6, 1.3, 0.1) with a total of 3 becomes (2, 1, 0).
    """
    counts = np.floor(wanted).astype(np.int64)
    while (missing := total - int(counts.sum())) > 0:
        counts[np.argsort(counts - wanted, kind="stable")[:missing]] += 1
    while missing < 0:
        counts[np.argmax(np.where(counts > 0, counts - wanted, -np.inf))] -= 1
        missing += 1
    return counts


def _runs_of_cells(counts: list[int], rows: int) -> list[list[tuple[int, int]]]:
    """Return, for each cell of a column from the bottom up, its layers as (layer, eighths).

    `counts` has the height of each layer in eighths. For example, with two cells, the heights 5 and 11 become `[[(0,
    5), (1, 3)], [(1, 8)]]`.
    """
    cells: list[list[tuple[int, int]]] = [[] for _ in range(rows)]
    height = 0
    for layer, count in enumerate(counts):
        end = height + count
        while height < end:
            taken = min(end - height, EIGHTHS - height % EIGHTHS)
            cells[height // EIGHTHS].append((layer, taken))
            height += taken
    return cells


def divided(runs: list[tuple[int, int]], owed: Floats) -> Cell:
    """Return a cell with at most two colours that shows the layers in `runs` with the least error.

    `runs` are (layer, eighths), from the bottom up. `owed` is the area, in eighths, that earlier cells left out of each
    layer; this function updates it. The top of the whole stack is always drawn at its true height.
    """
    if len(runs) == 1:
        return Cell(EIGHTHS, runs[0][0], runs[0][0])
    blank = len(owed) - 1
    edges = [len(runs) - 1] if runs[-1][0] == blank else range(1, len(runs))
    best = min((_candidate(runs, edge, owed) for edge in edges), key=lambda cell: lost(runs, cell, owed))
    for layer, eighths in runs:
        owed[layer] += eighths
    owed[best.below] -= best.eighths
    owed[best.above] -= EIGHTHS - best.eighths
    np.clip(owed, -_MOST_OWED, _MOST_OWED, out=owed)
    return best


def _candidate(runs: list[tuple[int, int]], edge: int, owed: Floats) -> Cell:
    """Return a cell with two colours: one for the runs before index `edge`, one for the others.

    `runs` are (layer, eighths), from the bottom up. `owed` is the area, in eighths, that earlier cells left out of each
    layer. Each colour is that of the layer with the most area to draw, including this area.
    """
    lower, upper = runs[:edge], runs[edge:]
    below, above = (max(part, key=lambda run: run[1] + float(owed[run[0]]))[0] for part in (lower, upper))
    return Cell(sum(eighths for _, eighths in lower), below, above)


def lost(runs: list[tuple[int, int]], cell: Cell, owed: Floats) -> float:
    """Return the error of drawing some layers as `cell`: missing plus excess area, in eighths of a character cell.

    `runs` has the number and the area of each layer in this cell. `owed` is the area that earlier cells left out of
    each layer (negative: they drew too much). Both areas are in eighths of a cell.
    """
    drawn = {cell.below: cell.eighths}
    drawn[cell.above] = drawn.get(cell.above, 0) + EIGHTHS - cell.eighths
    return sum(abs(eighths + float(owed[layer]) - drawn.get(layer, 0)) for layer, eighths in runs)


LEVELS = " ▁▂▃▄▅▆▇█"
_PATTERNS = "█▒░▓#=+:·"
"""The signs of the layers, lowest first, for terminals without colours; neighbouring signs differ in density."""
_RULER_ROWS = 3
"""The number of rows for the marks above the chart, and for the labels and the text below it."""
AXIS_WIDTH = 12
NARROW = 50
"""The chart width, in columns, below which the chart has no value axis."""
_CURSOR = "│"
_GAP = "   "
"""The space between the parts of the line below the chart."""
_WIDEST_COLUMNS = 32
"""The most columns that a table row takes, in a chart of few rows."""
FAILURE = "✗"
NO_DATA = "no data to draw"

_NUMBERS = (int, float, np.number)


class StackedChart(Widget, can_focus=True):
    """Draws a table as a chart of stacked layers: a column of the table is a layer, a row is an instant or a step.

    The rows are drawn from left to right; row i begins at column `starts[i]` and ends before `starts[i + 1]`.
    Subclasses provide the marks above the chart, the labels of the value axis, and the ticks and the text below the
    chart. `cursor` is the index of a table row; moving the cursor posts `Moved`. A chart that cannot be focused shows
    no cursor.
    """

    UNIT: ClassVar[Unit] = Unit.NUMBER
    """The unit of the values, which decides which labels of the value axis are round."""

    DEFAULT_CSS = "StackedChart { width: 1fr; height: 1fr; min-height: 6; }"
    cursor: reactive[int] = reactive(-1)

    class Moved(Message):
        """Message: the cursor moved to another row of the table; `row` has this row as {column: number}."""

        def __init__(self, chart: "StackedChart", row: dict[str, float]) -> None:
            super().__init__()
            self.chart, self.row = chart, row

        @property
        def control(self) -> "StackedChart":
            return self.chart

    def __init__(self, **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self.instants = pd.DataFrame()
        self.starts = [0]
        self._total = ""
        self._highest = 0
        self._colours: dict[str, str] = {}
        self._cells: list[list[Cell]] = []
        self._scaled_for = Size(0, 0)
        self._axis = ValueAxis(1.0, {})
        self._tick_text = ""
        self._drawn: dict[int, list[Segment]] = {}

    def signs(self) -> dict[int, str]:
        """Return the marks above the chart as {index of a table row: sign}."""
        raise NotImplementedError

    def ruler(self) -> Sequence[str]:
        """Return the parts of the text below the chart, the most important first.

        Parts without enough space are left out.
        """
        raise NotImplementedError

    def floor_text(self) -> str:
        return ""

    def value_text(self, value: float) -> str:
        """Return the label of the value axis for `value`, which is in the unit of the total column."""
        raise NotImplementedError

    def ticks(self) -> dict[int, str]:
        """Return the labels below the chart as {index of a table row: label}, such as the steps that begin there."""
        return {}

    def draw(self, instants: pd.DataFrame, colours: Mapping[str, str], total: str) -> None:
        """Draw the columns of the table `instants` as stacked layers; `colours` names them, the lowest layer first.

        `total` is the column with the sum of the layers. Its largest value determines the height of the chart and the
        row at which the cursor starts.
        """
        self.instants, self._total = instants, total
        self._colours = {name: colour for name, colour in colours.items() if name in instants.columns}
        self._highest = int(np.nanargmax(instants[total].to_numpy(float))) if len(instants) else 0
        self._scale()
        if len(instants):
            self.cursor = self.highest
            self.watch_cursor()
        self.refresh()

    @property
    def names(self) -> list[str]:
        return list(self._colours)

    @property
    def highest(self) -> int:
        """The index of the row with the largest total; it is found once, as each move of the cursor draws its mark."""
        return self._highest

    @property
    def axis_width(self) -> int:
        return AXIS_WIDTH if self.size.width >= NARROW else 0

    @property
    def columns(self) -> int:
        """The width of the chart without its value axis, in characters."""
        return self.size.width - self.axis_width

    @property
    def _cell_rows(self) -> int:
        return max(1, self.size.height - _RULER_ROWS)

    def _scale(self) -> None:
        self._drawn.clear()
        self._scaled_for = self.size
        self.starts = _starts_of_rows(len(self.instants), self.columns)
        self._tick_text = self._tick_line()
        self._cells = []
        if len(self.instants) and self._colours:
            layers = np.nan_to_num(self.instants[list(self._colours)].to_numpy(float))
            largest = float(np.nanmax(self.instants[self._total].to_numpy(float)))
            self._axis = value_axis(largest, self._cell_rows, self.UNIT)
            self._cells = stacked_cells(layers.repeat(np.diff(self.starts), axis=0), self._axis.top, self._cell_rows)

    def on_resize(self) -> None:
        """Scale the chart to its new size; do nothing if the size is the old one.

        Textual reports the old size when a hidden view is shown again.
        """
        if self.size != self._scaled_for:
            self._scale()
            self.refresh()

    def watch_cursor(self) -> None:
        if 0 <= self.cursor < len(self.instants):
            row = self.instants.iloc[self.cursor]
            numbers = {
                str(name): float(value) for name, value in row.items() if isinstance(value, int | float | np.number)
            }
            self.post_message(self.Moved(self, numbers))
        self.refresh()

    def move(self, rows: int) -> None:
        if len(self.instants):
            self.cursor = min(max(0, self.cursor + rows), len(self.instants) - 1)

    def on_click(self, event: Click) -> None:
        """Move the cursor to the table row that was clicked; ignore clicks outside the drawn rows."""
        at = event.get_content_offset(self)
        row = bisect_right(self.starts, at.x - self.axis_width) - 1 if at is not None else -1
        if 0 <= row < len(self.instants):
            self.cursor = row

    def render_line(self, y: int) -> Strip:
        """Return the line of characters at `y`, on the background colour of the theme."""
        return self._line(y).apply_style(self.rich_style)

    def _line(self, y: int) -> Strip:
        width, height = self.size
        if self.size != self._scaled_for:  # a line may be asked for before the message that the size has changed
            self._scale()
        if y == height - 1:
            label = _fitting(self._ruler_parts(), width) if len(self.instants) else NO_DATA
            return Strip([Segment(label[:width].ljust(width), Style(dim=True))], width)
        if y == 0:
            return Strip([Segment(" " * self.axis_width), *self._marks(self.columns)], width)
        if y == height - _RULER_ROWS + 1:
            floor = self.floor_text()[: self.axis_width - 2] if self.axis_width else ""
            label = f"{floor:>{self.axis_width - 2}} ┘" if floor else " " * self.axis_width
            return Strip([Segment(label + self._tick_text, Style(dim=True))], width)
        line = height - _RULER_ROWS - y
        return Strip([Segment(self._axis_label(line), Style(dim=True)), *self._columns(line)], width).simplify()

    def _ruler_parts(self) -> Sequence[str]:
        return [*self.ruler(), *([f"{_CURSOR} cursor"] if self.can_focus else [])]

    def _axis_label(self, line: int) -> str:
        if not self.axis_width or not self._cells:
            return " " * self.axis_width
        if line not in self._axis.labels:
            return "│".rjust(self.axis_width)
        # The label names the upper edge of its cells.
        label = without_zeros(self.value_text(self._axis.labels[line]))
        return f"{label[: self.axis_width - 2]:>{self.axis_width - 2}} ┤"

    def _tick_line(self) -> str:
        """Return the line of labels below the chart, each at the position of its table row.

        Labels without enough space are left out.
        """
        line, free = "", 0
        for row, label in sorted(self.ticks().items() if len(self.instants) else ()):
            start = self.starts[row]
            if start >= free and start + len(label) <= self.columns:
                line = line.ljust(start) + label
                free = len(line) + 2
        return line.ljust(self.columns)

    def _middle_of(self, row: int) -> int:
        return (self.starts[row] + self.starts[row + 1]) // 2

    def _columns(self, line: int) -> list[Segment]:
        """Return the cells of line number `line` of the chart, with the cursor; line 0 is the lowest."""
        drawn = self._segments(line)[: self.columns]
        at = self._middle_of(self.cursor) if 0 <= self.cursor < len(self.instants) else len(drawn)
        if self.can_focus and at < len(drawn):
            drawn[at] = self._cursor_cell(self._cells[at][line])
        return [*drawn, Segment(" " * (self.columns - len(drawn)))]

    def _segments(self, line: int) -> list[Segment]:
        """Return the cells of line number `line` of the chart without the cursor; line 0 is the lowest.

        They are cached, because the cursor moves often.
        """
        if line not in self._drawn:
            draw = self._pattern if self.app.no_color else self._segment
            self._drawn[line] = [draw(cells[line]) for cells in self._cells]
        return list(self._drawn[line])

    def _segment(self, cell: Cell) -> Segment:
        if cell.larger >= len(self._colours) and cell.below == cell.above:
            return Segment(" ")
        return Segment(LEVELS[cell.eighths], _style_of(self._colour(cell.below), self._colour(cell.above)))

    def _pattern(self, cell: Cell) -> Segment:
        """Return the cell as a character, for terminals without colours: a sign for the layer that fills most of it.

        A cell that is mostly empty shows its fill level instead. Otherwise small values would be invisible.
        """
        layer = cell.larger
        if layer < len(self._colours):
            return Segment(_PATTERNS[layer % len(_PATTERNS)])
        return Segment(LEVELS[cell.eighths] if cell.below < len(self._colours) else " ")

    def _cursor_cell(self, cell: Cell) -> Segment:
        colour = self._colour(cell.larger)
        style = Style(color=text_colour(colour), bgcolor=colour, bold=True) if colour else Style(bold=True)
        return Segment(_CURSOR, style)

    def _colour(self, layer: int) -> str | None:
        return list(self._colours.values())[layer] if layer < len(self._colours) else None

    def _marks(self, width: int) -> list[Segment]:
        marks = [" "] * width
        cursor = {self.cursor: _CURSOR} if self.can_focus else {}
        for row, sign in (cursor | self.signs()).items() if len(self.instants) else ():
            if 0 <= row < len(self.instants) and (at := self._middle_of(row)) < width:
                marks[at] = sign
        error = Style(color=STATUSES["error"], bold=True)
        styles = (error if mark == FAILURE else Style(bold=True) for mark in marks)
        return [Segment(mark, style) for mark, style in zip(marks, styles, strict=True)]


def _starts_of_rows(rows: int, columns: int) -> list[int]:
    """Return the column at which each row of a table begins, and at the end the column after the last row.

    The rows share the columns equally; each is at least one and at most `_WIDEST_COLUMNS` wide.

    >>> _starts_of_rows(3, 8)
    [0, 2, 5, 8]
    """
    width = min(_WIDEST_COLUMNS * rows, max(columns, rows))
    return [width * row // rows for row in range(rows + 1)] if rows else [0]


def _fitting(parts: Iterable[str], width: int) -> str:
    """Return as many of the first parts as fit into `width` characters, separated by gaps."""
    line = ""
    for part in parts:
        longer = f"{line}{_GAP}{part}" if line else part
        if len(longer) > width:
            break
        line = longer
    return line


@lru_cache(maxsize=1024)
def _style_of(colour: str | None, behind: str | None) -> Style:
    """Return the style with `colour` on the background `behind`; it is cached, because creating a style is slow."""
    return Style(color=colour, bgcolor=behind)
