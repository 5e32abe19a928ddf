"""The segments of an allocator as lines of cells, each in the colour of what fills it most."""

from typing import Any

import pandas as pd
from rich.segment import Segment
from rich.style import Style
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from analyzers.memory import block_map
from analyzers.words import share, size
from workbench.colours import CATEGORIES, CATEGORY_LETTERS, text_colour

LABEL = 24
"""Columns in front of the cells, for the size of the segment and how full it is."""
FREE = "·"


class BlockMap(ScrollView, can_focus=True):
    """A line a segment, largest first. A letter tells the category where colour does not; `·` is free memory."""

    DEFAULT_CSS = "BlockMap { height: 1fr; }"

    class Chosen(Message):
        """A block was clicked."""

        def __init__(self, address: int) -> None:
            super().__init__()
            self.address = address

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._state: tuple[pd.DataFrame, pd.DataFrame] | None = None
        self._rows = pd.DataFrame()

    def show(self, segments: pd.DataFrame, blocks: pd.DataFrame) -> None:
        """Draw another state, as `memory.views.segments` and `memory.views.live_blocks` give it."""
        self._state = segments, blocks
        self._scale()

    def on_resize(self) -> None:
        self._scale()

    def _scale(self) -> None:
        if self._state is not None and self.size.width > LABEL:
            self._rows = block_map(*self._state, cells=self.size.width - LABEL)
            self.virtual_size = Size(0, len(self._rows) + 1)
            self.refresh()

    def on_click(self, event: Click) -> None:
        """Tell of the block that fills most of the cell under the mouse."""
        line, place = self.scroll_offset.y + event.y, event.x - LABEL
        if self._state is None or line >= len(self._rows) or place < 0:
            return
        filled = self._rows["filled"].iloc[line]
        if place < len(filled) and filled[place] >= 0:
            self.post_message(self.Chosen(int(self._state[1]["address"].iloc[filled[place]])))

    def render_line(self, y: int) -> Strip:
        return self._line(self.scroll_offset.y + y).apply_style(self.rich_style)

    def _line(self, line: int) -> Strip:
        width = self.size.width
        if line == len(self._rows):
            return Strip([Segment(legend()[:width].ljust(width), Style(dim=True))], width)
        if line > len(self._rows):
            return Strip.blank(width)
        segment = self._rows.iloc[line]
        label = f"{size(int(segment['bytes'])):>10} {share(segment['used'], segment['bytes']):>7} used"
        return Strip([Segment(label[:LABEL].ljust(LABEL)), *map(cell, segment["owners"])], width).simplify()


def cell(owner: str) -> Segment:
    if not owner:
        return Segment(FREE, Style(dim=True))
    return Segment(CATEGORY_LETTERS[owner], Style(color=text_colour(CATEGORIES[owner]), bgcolor=CATEGORIES[owner]))


def legend() -> str:
    """What the letters mean."""
    return "  ".join(
        [*(f"{letter} {name.replace('_', ' ')}" for name, letter in CATEGORY_LETTERS.items()), f"{FREE} free"]
    )
