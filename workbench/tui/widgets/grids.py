"""Charts of cells: a map of memory blocks, and a matrix of collectives by rank."""

from collections import Counter
from collections.abc import Container, Iterable
from typing import Unpack

import pandas as pd
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from analyzers.memory import block_map
from analyzers.words import quantity, share, size, without_middle
from workbench.colours import CATEGORIES, CATEGORY_LETTERS, COLLECTIVE_SIGNS, COLLECTIVE_STATES, text_colour
from workbench.console import clean
from workbench.tui.widgets.common import WidgetOptions, call_on_new_size, wrapped

# A map of the allocator's segments: each line is a segment, divided into character cells.
#
# The colour of a cell stands for the category with the most bytes in the cell.

LABEL_WIDTH = 24
"""The columns in front of the cells, for the size of the segment and the share that is in use."""
FREE = "·"
SEGMENTS_AT_MOST = 1000
"""The most segments that the map shows, each as a line.

A snapshot may have a hundred thousand segments. To draw all of them would take a minute and gigabytes of memory.
"""


class BlockMap(ScrollView, can_focus=True):
    """A map with a line for each of the largest segments, divided into character cells.

    Colour and letter of a cell name the category with the most bytes in this part of the segment; `·` is free memory.
    The legend above the segments does not scroll, and explains the categories that occur.
    """

    DEFAULT_CSS = "BlockMap { height: 1fr; }"

    class BlockClicked(Message):
        def __init__(self, address: int) -> None:
            super().__init__()
            self.address = address

    def __init__(self, **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self._state: tuple[pd.DataFrame, pd.DataFrame] | None = None
        self._rows = pd.DataFrame()
        self._legend: list[Text] = []

    def show(self, segments: pd.DataFrame, blocks: pd.DataFrame) -> None:
        """Draw the map; `segments` comes from `memory.views.segments`, and `blocks` from `memory.views.live_blocks`."""
        self._state = segments, blocks
        self._scale()

    def on_mount(self) -> None:
        call_on_new_size(self, self._scale)

    def _scale(self) -> None:
        if self._state is not None and self.size.width > LABEL_WIDTH:
            self._rows = block_map(*self._state, cells=self.size.width - LABEL_WIDTH, rows=SEGMENTS_AT_MOST)
            self._legend = list(legend(self._owners(), self.size.width).split("\n"))
            self.virtual_size = Size(0, len(self._legend) + len(self._rows) + 1)
            self.refresh()

    def on_click(self, event: Click) -> None:
        """Post `BlockClicked` for the block with the most bytes in the clicked cell."""
        row, column = event.y - len(self._legend), event.x - LABEL_WIDTH
        line = self.scroll_offset.y + row
        if self._state is None or row < 0 or line >= len(self._rows) or column < 0:
            return
        blocks = self._rows["filled"].iloc[line]
        if column < len(blocks) and blocks[column] >= 0:
            self.post_message(self.BlockClicked(int(self._state[1]["address"].iloc[blocks[column]])))

    def render_line(self, y: int) -> Strip:
        row = y - len(self._legend)
        line = self._line(self.scroll_offset.y + row) if row >= 0 else self._head(y)
        return line.apply_style(self.rich_style)

    def _head(self, y: int) -> Strip:
        return Strip(self._legend[y].render(self.app.console)).adjust_cell_length(self.size.width)

    def _owners(self) -> list[str]:
        """Return the categories that occur in the map, the category with the most cells first."""
        cells = (
            Counter(owner for owners in self._rows["owners"] for owner in owners if owner) if len(self._rows) else {}
        )
        return sorted(cells, key=cells.__getitem__, reverse=True)

    def _line(self, line: int) -> Strip:
        width = self.size.width
        if line == len(self._rows):
            return Strip([Segment(self._omitted()[:width].ljust(width), Style(dim=True))], width)
        if line > len(self._rows):
            return Strip.blank(width)
        segment = self._rows.iloc[line]
        label = f"{size(int(segment['bytes'])):>10} {share(segment['used'], segment['bytes']):>7} used"
        return Strip([Segment(label[:LABEL_WIDTH].ljust(LABEL_WIDTH)), *map(cell, segment["owners"])], width).simplify()

    def _omitted(self) -> str:
        omitted = len(self._state[0]) - len(self._rows) if self._state else 0
        return f"{quantity(omitted, 'smaller segment')} not shown" if omitted else ""


def cell(owner: str) -> Segment:
    if not owner:
        return Segment(FREE, Style(dim=True))
    return Segment(CATEGORY_LETTERS[owner], Style(color=text_colour(CATEGORIES[owner]), bgcolor=CATEGORIES[owner]))


def legend(names: Iterable[str], width: int) -> Text:
    """Return the legend of the map in lines of `width` characters: letter and name of each category in its colour."""
    parts = [
        Text.assemble(
            (CATEGORY_LETTERS[name], f"{text_colour(CATEGORIES[name])} on {CATEGORIES[name]}"), f" {clean(name)}"
        )
        for name in names
    ]
    return wrapped([Text(f"{FREE} free", style="dim"), *parts], width)


# A matrix of ranks (rows) and collectives (columns), with a sign for the state in each cell.
#
# The row of a rank that stopped ends early.

BROKEN = ("missing", "mismatch")
"""The states of a collective of which the number is shown above the matrix."""
_RANK_WIDTH, _WIDEST_LABEL = 10, 26
"""The least and the most columns in front of the cells, for the rank or the ranks that share a row."""


class CollectiveMatrix(ScrollView, can_focus=True):
    """A matrix of the states of collectives, with a row per rank and a column per sequence number.

    The states come from `hangs.views.matrix`.
    """

    DEFAULT_CSS = "CollectiveMatrix { height: 1fr; }"

    def __init__(self, **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self._frame = pd.DataFrame()
        self._label_width = _RANK_WIDTH

    def show(self, frame: pd.DataFrame) -> None:
        self._frame = frame
        longest = max(map(len, map(str, frame.index)), default=0)
        self._label_width = min(max(_RANK_WIDTH, longest + 2), _WIDEST_LABEL)
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


def matrix_legend(occurring: Container[str] | None = None) -> Text:
    """Return the legend of the matrix: sign and colour of each state, or only of the states in `occurring`."""
    states = [state for state in COLLECTIVE_SIGNS if state and (occurring is None or state in occurring)]
    return Text("   ").join(
        Text.assemble((COLLECTIVE_SIGNS[state], COLLECTIVE_STATES[state]), f" {state}") for state in states
    )
