"""Ranks down, collectives across: one sign a cell, so that a missing rank is a hole in the last columns."""

from typing import Any

import pandas as pd
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from workbench.palette import STATE_SIGNS, STATES

LABEL = 10
"""Columns in front of the cells, for the rank."""


class Matrix(ScrollView, can_focus=True):
    """A frame of states as `hangs.views.matrix` gives it: index = rank, columns = sequence numbers."""

    DEFAULT_CSS = "Matrix { height: 4; max-height: 60%; }"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._frame = pd.DataFrame()

    def show(self, frame: pd.DataFrame) -> None:
        """Draw another matrix; its newest columns are in view."""
        self._frame = frame
        self.styles.height = len(frame) + 3
        self.virtual_size = Size(LABEL + 2 * len(frame.columns), len(frame) + 2)
        self.scroll_to(x=self.virtual_size.width, animate=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        line, width = top + y, self.size.width
        if self._frame.empty:
            text = "no collectives recorded" if line == 0 else ""
            return Strip([Segment(text.ljust(width))], width)
        return self._line(line).crop_extend(left, left + width, None)

    def _line(self, line: int) -> Strip:
        if line == 0:
            return self._head()
        if line <= len(self._frame):
            return self._row(line - 1)
        return self._legend() if line == len(self._frame) + 1 else Strip([])

    def _head(self) -> Strip:
        first, last = self._frame.columns[0], self._frame.columns[-1]
        cells = 2 * len(self._frame.columns)
        span = f"#{first}".ljust(max(0, cells - len(f"#{last}"))) + f"#{last}"
        return Strip([Segment("rank".ljust(LABEL) + span, Style(dim=True))])

    def _legend(self) -> Strip:
        parts = [Segment(" " * LABEL)]
        for state, sign in STATE_SIGNS.items():
            if state:
                parts += [Segment(sign, Style(color=STATES[state])), Segment(f" {state}   ", Style(dim=True))]
        return Strip(parts)

    def _row(self, row: int) -> Strip:
        label = f"{self._frame.index[row]}".ljust(LABEL)
        states = self._frame.iloc[row].astype(str)
        cells = [
            Segment(f"{STATE_SIGNS.get(s, '?')} ", Style(color=STATES.get(s, STATES[""]), bold=True)) for s in states
        ]
        return Strip([Segment(label), *cells])
