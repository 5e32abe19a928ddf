"""A matrix of ranks (rows) and collectives (columns), with a sign for the state in each cell.

The row of a rank that stopped ends early.
"""

from collections.abc import Container
from typing import Unpack

import pandas as pd
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from analyzers.words import without_middle
from workbench.colours import COLLECTIVE_SIGNS, COLLECTIVE_STATES
from workbench.tui.widgets.common import WidgetOptions

BROKEN = ("missing", "mismatch")
"""The states of a collective of which the number is shown above the matrix."""
LABEL_WIDTH, _WIDEST_LABEL = 10, 26
"""The least and the most columns in front of the cells, for the rank or the ranks that share a row."""


class CollectiveMatrix(ScrollView, can_focus=True):
    """A matrix of the states of collectives, with a row per rank and a column per sequence number.

    The states come from `hangs.views.matrix`.
    """

    DEFAULT_CSS = "CollectiveMatrix { height: 1fr; }"

    def __init__(self, **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self._frame = pd.DataFrame()
        self._label_width = LABEL_WIDTH

    def show(self, frame: pd.DataFrame) -> None:
        self._frame = frame
        longest = max(map(len, map(str, frame.index)), default=0)
        self._label_width = min(max(LABEL_WIDTH, longest + 2), _WIDEST_LABEL)
        self.virtual_size = Size(self._label_width + 2 * len(frame.columns), len(frame) + 1)
        self.refresh()
        self.call_after_refresh(self._scroll_to_newest)

    def on_resize(self) -> None:
        """Scroll to the newest columns again, because the matrix may have been drawn before its size was known."""
        self._scroll_to_newest()

    def _scroll_to_newest(self) -> None:
        # Forced, because Textual ignores it until the scroll bar is shown, which a busy machine does later.
        self.scroll_to(x=self.virtual_size.width, animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        line, width = top + y, self.size.width
        if self._frame.empty:
            text = "no collectives recorded" if line == 0 else ""
            return Strip([Segment(text.ljust(width))], width).apply_style(self.rich_style)
        label, cells = self._line(line)
        shown = Strip.join([Strip([label]), cells.crop_extend(left, left + width - self._label_width, None)])
        return shown.apply_style(self.rich_style)

    def _line(self, line: int) -> tuple[Segment, Strip]:
        """Return (label, cells) of a line; when the cells scroll, the label does not move."""
        wide = self._label_width
        if line == 0:
            return Segment("rank".ljust(wide), Style(dim=True)), self._head()
        if line <= len(self._frame):
            return Segment(without_middle(str(self._frame.index[line - 1]), wide - 1).ljust(wide)), self._row(line - 1)
        return Segment(" " * wide), Strip([])

    def _head(self) -> Strip:
        """Return the line with the numbers of the first collective, of the first that a rank lacks, and of the last."""
        names = [f"#{name}" for name in self._frame.columns]
        broken = self._frame.isin(BROKEN).any().to_numpy()
        last = max(0, 2 * len(names) - len(names[-1]))
        line, at = names[0], 2 * int(broken.argmax())
        if broken.any() and len(line) < at < last - len(names[at // 2]):
            line = line.ljust(at) + names[at // 2]
        return Strip([Segment(line.ljust(last) + names[-1], Style(dim=True))])

    def _row(self, row: int) -> Strip:
        return Strip([_state_cell(state) for state in self._frame.iloc[row].astype(str)])


def _state_cell(state: str) -> Segment:
    colour = COLLECTIVE_STATES.get(state, COLLECTIVE_STATES[""])
    return Segment(f"{COLLECTIVE_SIGNS.get(state, '?')} ", Style(color=colour, bold=True))


def legend(occurring: Container[str] | None = None) -> Text:
    """Return the legend of the matrix: sign and colour of each state, or only of the states in `occurring`."""
    states = [state for state in COLLECTIVE_SIGNS if state and (occurring is None or state in occurring)]
    return Text("   ").join(
        Text.assemble((COLLECTIVE_SIGNS[state], COLLECTIVE_STATES[state]), f" {state}") for state in states
    )
