"""Stacked memory over time: one real instant a column, eight steps a cell, the peak and the failure marked."""

from typing import Any

import numpy as np
import pandas as pd
from rich.segment import Segment
from rich.style import Style
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from workbench.palette import CATEGORIES, STATUSES
from workbench.present.units import size

STEPS = " ▁▂▃▄▅▆▇█"
RULER_ROWS = 2
"""Rows kept for the marks above the area and the labels below it."""


class Area(Widget, can_focus=True):
    """A timeline as `memory.views.timeline` gives it. The cursor is a column; moving it posts `Moved`."""

    DEFAULT_CSS = "Area { width: 1fr; height: 1fr; min-height: 6; }"
    cursor: reactive[int] = reactive(-1)

    class Moved(Message):
        """The cursor stands on another instant: a row of the frame."""

        def __init__(self, row: dict[str, Any]) -> None:
            super().__init__()
            self.row = row

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._frame = pd.DataFrame()
        self._names: list[str] = []
        self._tops: np.ndarray[Any, Any] = np.zeros((0, 0), int)

    def show(self, frame: pd.DataFrame) -> None:
        """Draw another timeline; the cursor goes to its peak."""
        self._frame = frame
        self._names = [name for name in CATEGORIES if name in frame.columns]
        self._scale()
        if len(frame):
            self.cursor = int(frame["allocated"].to_numpy().argmax())
        self.refresh()

    def _scale(self) -> None:
        rows = max(1, self.size.height - RULER_ROWS)
        if not len(self._frame) or not self._names:
            self._tops = np.zeros((0, 0), int)
            return
        layers = self._frame[self._names].to_numpy(float)
        top = max(1.0, float(self._frame["allocated"].max()))
        self._tops = np.rint(layers.cumsum(axis=1) / top * rows * 8).astype(int)

    def on_resize(self) -> None:
        self._scale()
        self.refresh()

    def watch_cursor(self) -> None:
        if 0 <= self.cursor < len(self._frame):
            row = self._frame.iloc[self.cursor]
            self.post_message(self.Moved({str(name): value for name, value in row.items()}))
        self.refresh()

    def move(self, columns: int) -> None:
        if len(self._frame):
            self.cursor = min(max(0, self.cursor + columns), len(self._frame) - 1)

    def entry_at_cursor(self) -> int | None:
        """The trace entry under the cursor; None before there is a timeline."""
        return int(self._frame["entry"].iloc[self.cursor]) if 0 <= self.cursor < len(self._frame) else None

    def on_click(self, event: Any) -> None:
        if event.x < len(self._frame):
            self.cursor = event.x

    def render_line(self, y: int) -> Strip:
        """A line on the theme's own background."""
        return self._line(y).apply_style(self.rich_style)

    def _line(self, y: int) -> Strip:
        width, height = self.size
        if y == 0:
            return self._marks(width)
        if y == height - 1:
            return self._ruler(width)
        floor = (height - 1 - RULER_ROWS + 1 - y) * 8
        drawn = [self._cell(x, floor) for x in range(min(width, len(self._tops)))]
        return Strip([*drawn, Segment(" " * (width - len(drawn)))], width).simplify()

    def _cell(self, x: int, floor: int) -> Segment:
        """Foreground is the layer at the cell's bottom, background the one at its top."""
        column = self._tops[x]
        low, high = int(np.searchsorted(column, floor, "right")), int(np.searchsorted(column, floor + 8, "left"))
        filled = min(8, int(column[low]) - floor) if low < len(column) else 0
        style = Style(color=self._colour(low), bgcolor=self._colour(high), reverse=x == self.cursor)
        return Segment(STEPS[filled], style)

    def _colour(self, layer: int) -> str | None:
        return CATEGORIES[self._names[layer]] if layer < len(self._names) else None

    def _marks(self, width: int) -> Strip:
        """`▼` over the peak, `✗` over a failed allocation, `┆` over the cursor."""
        marks = [" "] * width
        if len(self._frame):
            self._mark(marks, self.cursor, "┆")
            self._mark(marks, int(self._frame["allocated"].to_numpy().argmax()), "▼")
            for failed in np.flatnonzero(self._frame["oom"].to_numpy(bool)):
                self._mark(marks, int(failed), "✗")
        error = Style(color=STATUSES["error"], bold=True)
        return Strip([Segment(mark, error if mark == "✗" else Style(bold=True)) for mark in marks], width).simplify()

    @staticmethod
    def _mark(marks: list[str], at: int, sign: str) -> None:
        if 0 <= at < len(marks):
            marks[at] = sign

    def _ruler(self, width: int) -> Strip:
        if not len(self._frame):
            return Strip([Segment("no timeline".ljust(width))], width)
        top = size(int(self._frame["allocated"].max()))
        first, last = int(self._frame["entry"].iloc[0]), int(self._frame["entry"].iloc[-1])
        text = f"entry {first} … {last}   top {top}   ▼ peak  ✗ allocation failed  ┆ cursor"
        return Strip([Segment(text[:width].ljust(width), Style(dim=True))], width)
