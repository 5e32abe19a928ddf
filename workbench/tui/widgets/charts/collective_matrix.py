"""A matrix of ranks (rows) and collectives (columns) with a sign per cell; the row of a stopped rank ends early."""

from typing import Unpack

import pandas as pd
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from workbench.colours import COLLECTIVE_SIGNS, COLLECTIVE_STATES
from workbench.tui.widgets.widget_options import WidgetOptions

LABEL_WIDTH = 10
"""Columns in front of the cells, for the rank."""


class CollectiveMatrix(ScrollView, can_focus=True):
    """A matrix of the states of collectives, with a row per rank and a column per sequence number.

    The states come from `hangs.views.matrix`.
    """

    DEFAULT_CSS = "CollectiveMatrix { height: 1fr; }"

    def __init__(self, **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self._frame = pd.DataFrame()

    def show(self, frame: pd.DataFrame) -> None:
        """Draw a matrix, scrolled to its newest columns."""
        self._frame = frame
        self.virtual_size = Size(LABEL_WIDTH + 2 * len(frame.columns), len(frame) + 1)
        self.refresh()
        self.call_after_refresh(self.scroll_to, x=self.virtual_size.width, animate=False)

    def on_resize(self) -> None:
        """Scroll to the newest columns again.

        The matrix may have been drawn before the widget's size was known.
        """
        self.scroll_to(x=self.virtual_size.width, animate=False)

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        line, width = top + y, self.size.width
        if self._frame.empty:
            text = "no collectives recorded" if line == 0 else ""
            return Strip([Segment(text.ljust(width))], width).apply_style(self.rich_style)
        label, cells = self._line(line)
        shown = Strip.join([Strip([label]), cells.crop_extend(left, left + width - LABEL_WIDTH, None)])
        return shown.apply_style(self.rich_style)

    def _line(self, line: int) -> tuple[Segment, Strip]:
        """Return (label, cells) of a line; the label stays in place when the cells scroll."""
        if line == 0:
            return Segment("rank".ljust(LABEL_WIDTH), Style(dim=True)), self._head()
        if line <= len(self._frame):
            return Segment(f"{self._frame.index[line - 1]}".ljust(LABEL_WIDTH)), self._row(line - 1)
        return Segment(" " * LABEL_WIDTH), Strip([])

    def _head(self) -> Strip:
        first, last = self._frame.columns[0], self._frame.columns[-1]
        cells = 2 * len(self._frame.columns)
        span = f"#{first}".ljust(max(0, cells - len(f"#{last}"))) + f"#{last}"
        return Strip([Segment(span, Style(dim=True))])

    def _row(self, row: int) -> Strip:
        return Strip([state_cell(state) for state in self._frame.iloc[row].astype(str)])


def state_cell(state: str) -> Segment:
    """Return the cell for the state of a collective: its sign and a space; an unknown state is a question mark."""
    colour = COLLECTIVE_STATES.get(state, COLLECTIVE_STATES[""])
    return Segment(f"{COLLECTIVE_SIGNS.get(state, '?')} ", Style(color=colour, bold=True))


def legend() -> Text:
    """Return the legend of the matrix: the sign and colour of each state of a collective."""
    states = [state for state in COLLECTIVE_SIGNS if state]
    return Text("   ").join(
        Text.assemble((COLLECTIVE_SIGNS[state], COLLECTIVE_STATES[state]), f" {state}") for state in states
    )
