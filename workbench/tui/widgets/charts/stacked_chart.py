"""A chart of stacked layers over time: each table row is one or more columns wide, with eight heights per cell."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Unpack

import numpy as np
import pandas as pd
from rich.segment import Segment
from rich.style import Style
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from analyzers.columns import Integers
from workbench.colours import STATUSES
from workbench.tui.widgets.widget_options import WidgetOptions

LEVELS = " ▁▂▃▄▅▆▇█"
RULER_ROWS = 2
"""Rows kept for the marks above the area and the labels below it."""
WIDEST_COLUMNS = 32
"""Columns that a row takes at most, where there are few rows."""
FAILURE = "✗"
NO_DATA = "no data to draw"

NUMBERS = (int, float, np.number)
NO_TOPS: Integers = np.zeros((0, 0), np.int64)


class StackedChart(Widget, can_focus=True):
    """Draws the rows of the table `instants` from left to right, each `wide` characters wide; its columns are stacked.

    Subclasses provide the marks and the line below the chart. The cursor is a row index; moving it posts `Moved`.
    """

    DEFAULT_CSS = "StackedChart { width: 1fr; height: 1fr; min-height: 6; }"
    cursor: reactive[int] = reactive(-1)

    class Moved(Message):
        """Message: the cursor moved to another row; `row` is that row as {column: number}."""

        def __init__(self, chart: "StackedChart", row: dict[str, float]) -> None:
            super().__init__()
            self.chart, self.row = chart, row

        @property
        def control(self) -> "StackedChart":
            """The chart whose cursor moved."""
            return self.chart

    def __init__(self, **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self.instants = pd.DataFrame()
        self.wide = 1
        self._total = ""
        self._colours: dict[str, str] = {}
        self._tops = NO_TOPS
        self._drawn: dict[int, list[Segment]] = {}

    def signs(self) -> dict[int, str]:
        """Return the marks above the chart as {row: sign}."""
        raise NotImplementedError

    def ruler(self) -> str:
        """Return the line of text below the chart."""
        raise NotImplementedError

    def draw(self, instants: pd.DataFrame, colours: Mapping[str, str], total: str) -> None:
        """Draw the table columns named in `colours`, the first at the bottom.

        The maximum of the column `total` sets the height of the chart; the cursor starts at its row.
        """
        self.instants, self._total = instants, total
        self._colours = {name: colour for name, colour in colours.items() if name in instants.columns}
        self._scale()
        if len(instants):
            self.cursor = self.highest
            self.watch_cursor()
        self.refresh()

    @property
    def names(self) -> list[str]:
        """The names of the stacked columns, the lowest first."""
        return list(self._colours)

    @property
    def highest(self) -> int:
        """The index of the row with the largest total."""
        return int(np.nanargmax(self.instants[self._total].to_numpy(float)))

    def _scale(self) -> None:
        self._drawn.clear()
        rows = max(1, self.size.height - RULER_ROWS)
        self.wide = max(1, min(WIDEST_COLUMNS, self.size.width // max(1, len(self.instants))))
        if not len(self.instants) or not self._colours:
            self._tops = NO_TOPS
            return
        layers = np.nan_to_num(self.instants[list(self._colours)].to_numpy(float))
        top = max(float(np.nanmax(self.instants[self._total].to_numpy(float))), 1e-12)
        self._tops = np.rint(layers.cumsum(axis=1) / top * rows * 8).astype(np.int64)

    def on_resize(self) -> None:
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
        """Move the cursor to the clicked row; a click on the line that marks the focus is ignored."""
        at = event.get_content_offset(self)
        if at is not None and at.x // self.wide < len(self.instants):
            self.cursor = at.x // self.wide

    def render_line(self, y: int) -> Strip:
        """Return the line of characters at `y`, on the background of the theme."""
        return self._line(y).apply_style(self.rich_style)

    def _line(self, y: int) -> Strip:
        width, height = self.size
        if y == 0:
            return self._marks(width)
        if y == height - 1:
            label = self.ruler() if len(self.instants) else NO_DATA
            return Strip([Segment(label[:width].ljust(width), Style(dim=True))], width)
        floor = (height - RULER_ROWS - y) * 8
        drawn = self._segments(floor)[: width // self.wide]
        if 0 <= self.cursor < len(drawn):
            drawn[self.cursor] = reversed_cell(drawn[self.cursor])
        return Strip([*drawn, Segment(" " * (width - self.wide * len(drawn)))], width).simplify()

    def _segments(self, floor: int) -> list[Segment]:
        """Return the cells of a line without the cursor; `floor` is the height of its lower edge.

        They are cached until another table is drawn, because the cursor moves often.
        """
        if floor not in self._drawn:
            self._drawn[floor] = [self._cell(row, floor) for row in range(len(self._tops))]
        return list(self._drawn[floor])

    def _cell(self, row: int, floor: int) -> Segment:
        """Return the cell of a row at height `floor`; its foreground is the lower layer in it, its background the upper
        one.

        Heights are in eighths of a cell. With layers up to 5 and 20, the cell from 0 to 8 is five eighths of the first
        layer's colour on a background of the second layer's.
        """
        column = self._tops[row]
        low, high = int(np.searchsorted(column, floor, "right")), int(np.searchsorted(column, floor + 8, "left"))
        filled = min(8, int(column[low]) - floor) if low < len(column) else 0
        return Segment(LEVELS[filled] * self.wide, style_of(self._colour(low), self._colour(high)))

    def _colour(self, layer: int) -> str | None:
        return list(self._colours.values())[layer] if layer < len(self._colours) else None

    def _marks(self, width: int) -> Strip:
        marks = [" "] * width
        for row, sign in ({self.cursor: "┆"} | self.signs()).items() if len(self.instants) else ():
            if 0 <= row * self.wide < width:
                marks[row * self.wide] = sign
        error = Style(color=STATUSES["error"], bold=True)
        styles = (error if mark == FAILURE else Style(bold=True) for mark in marks)
        return Strip([Segment(mark, style) for mark, style in zip(marks, styles, strict=True)], width).simplify()


@lru_cache(maxsize=1024)
def style_of(colour: str | None, behind: str | None) -> Style:
    """Return the Style of a pair of colours; it is cached, because creating styles takes longer than drawing."""
    return Style(color=colour, bgcolor=behind)


def reversed_cell(cell: Segment) -> Segment:
    """Return a cell with foreground and background swapped, as it is drawn at the cursor."""
    return Segment(cell.text, (cell.style or Style()) + Style(reverse=True))
