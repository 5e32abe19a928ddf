"""Layers over time, stacked: one row of a frame a column or more, eight steps a cell."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from rich.segment import Segment
from rich.style import Style
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from workbench.colours import STATUSES

STEPS = " ▁▂▃▄▅▆▇█"
RULER_ROWS = 2
"""Rows kept for the marks above the area and the labels below it."""
WIDEST = 32
"""Columns that a row takes at most, where there are few."""
FAILURE = "✗"
NOTHING = "nothing to draw"


class Stacked(Widget, can_focus=True):
    """The cursor is a row of the frame; moving it posts `Moved`. A subclass says what is marked and how it is labelled.

    `instants` are what it draws; `wide` columns each.
    """

    DEFAULT_CSS = "Stacked { width: 1fr; height: 1fr; min-height: 6; }"
    cursor: reactive[int] = reactive(-1)

    class Moved(Message):
        """The cursor stands on another row of the frame."""

        def __init__(self, area: "Stacked", row: dict[str, Any]) -> None:
            super().__init__()
            self.area, self.row = area, row

        @property
        def control(self) -> "Stacked":
            """Whose cursor it is."""
            return self.area

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.instants = pd.DataFrame()
        self.wide = 1
        self._total = ""
        self._colours: dict[str, str] = {}
        self._tops: np.ndarray[Any, Any] = np.zeros((0, 0), int)
        self._drawn: dict[int, list[Segment]] = {}

    def signs(self) -> dict[int, str]:
        """Marks above the area, by row; later ones cover earlier ones."""
        raise NotImplementedError

    def ruler(self) -> str:
        """The line below the area."""
        raise NotImplementedError

    def draw(self, instants: pd.DataFrame, colours: Mapping[str, str], total: str) -> None:
        """Draw the columns named in `colours`, first at the bottom; the cursor goes to where `total` is highest."""
        self.instants, self._total = instants, total
        self._colours = {name: colour for name, colour in colours.items() if name in instants.columns}
        self._scale()
        if len(instants):
            self.cursor = self.highest
            self.watch_cursor()
        self.refresh()

    @property
    def names(self) -> list[str]:
        """The layers, the lowest first."""
        return list(self._colours)

    @property
    def highest(self) -> int:
        """The row with the largest total."""
        return int(np.nanargmax(self.instants[self._total].to_numpy(float)))

    def _scale(self) -> None:
        self._drawn.clear()
        rows = max(1, self.size.height - RULER_ROWS)
        self.wide = max(1, min(WIDEST, self.size.width // max(1, len(self.instants))))
        if not len(self.instants) or not self._colours:
            self._tops = np.zeros((0, 0), int)
            return
        layers = np.nan_to_num(self.instants[list(self._colours)].to_numpy(float))
        top = max(float(np.nanmax(self.instants[self._total].to_numpy(float))), 1e-12)
        self._tops = np.rint(layers.cumsum(axis=1) / top * rows * 8).astype(int)

    def on_resize(self) -> None:
        self._scale()
        self.refresh()

    def watch_cursor(self) -> None:
        if 0 <= self.cursor < len(self.instants):
            row = self.instants.iloc[self.cursor]
            self.post_message(self.Moved(self, {str(name): value for name, value in row.items()}))
        self.refresh()

    def move(self, rows: int) -> None:
        if len(self.instants):
            self.cursor = min(max(0, self.cursor + rows), len(self.instants) - 1)

    def on_click(self, event: Click) -> None:
        """The cursor goes where the mouse is; the line that shows the focus is no part of the chart."""
        at = event.get_content_offset(self)
        if at is not None and at.x // self.wide < len(self.instants):
            self.cursor = at.x // self.wide

    def render_line(self, y: int) -> Strip:
        """A line on the theme's own background."""
        return self._line(y).apply_style(self.rich_style)

    def _line(self, y: int) -> Strip:
        width, height = self.size
        if y == 0:
            return self._marks(width)
        if y == height - 1:
            told = self.ruler() if len(self.instants) else NOTHING
            return Strip([Segment(told[:width].ljust(width), Style(dim=True))], width)
        floor = (height - RULER_ROWS - y) * 8
        drawn = self._segments(floor)[: width // self.wide]
        if 0 <= self.cursor < len(drawn):
            drawn[self.cursor] = turned(drawn[self.cursor])
        return Strip([*drawn, Segment(" " * (width - self.wide * len(drawn)))], width).simplify()

    def _segments(self, floor: int) -> list[Segment]:
        """A line of cells without the cursor; they stay what they are until something else is drawn."""
        if floor not in self._drawn:
            self._drawn[floor] = [self._cell(row, floor) for row in range(len(self._tops))]
        return list(self._drawn[floor])

    def _cell(self, row: int, floor: int) -> Segment:
        """Foreground is the layer at the cell's bottom, background the one at its top."""
        column = self._tops[row]
        low, high = int(np.searchsorted(column, floor, "right")), int(np.searchsorted(column, floor + 8, "left"))
        filled = min(8, int(column[low]) - floor) if low < len(column) else 0
        return Segment(STEPS[filled] * self.wide, style_of(self._colour(low), self._colour(high)))

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
    """One style object a pair of colours, as comparing and parsing them takes longer than drawing."""
    return Style(color=colour, bgcolor=behind)


def turned(cell: Segment) -> Segment:
    """A cell under the cursor."""
    return Segment(cell.text, (cell.style or Style()) + Style(reverse=True))
