"""The segments of an allocator as lines of cells, each in the colour of what fills it most."""

from typing import Any

import numpy as np
import pandas as pd
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from workbench.palette import CATEGORIES, ink
from workbench.present.units import size

LABEL = 24
"""Columns in front of the cells, for the size of the segment and how full it is."""
LETTERS = {name: name[0].upper() for name in CATEGORIES} | {"unknown": "?"}
FREE = "·"
Column = np.ndarray[Any, Any]


class BlockMap(ScrollView, can_focus=True):
    """A line a segment, largest first. A letter tells the category where colour does not; `·` is free memory."""

    DEFAULT_CSS = "BlockMap { height: 1fr; }"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._segments = pd.DataFrame(columns=["address", "bytes"])
        self._blocks: dict[int, pd.DataFrame] = {}

    def show(self, segments: pd.DataFrame, blocks: pd.DataFrame) -> None:
        """Draw another state, as `memory.views.segments` and `memory.views.state` give it."""
        self._segments = segments.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)
        self._blocks = {base: blocks[blocks["segment"] == base] for base in blocks["segment"].unique().tolist()}
        self.virtual_size = Size(0, len(self._segments) + 1)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        return self._line(self.scroll_offset.y + y).apply_style(self.rich_style)

    def _line(self, line: int) -> Strip:
        width = self.size.width
        if line == len(self._segments):
            return Strip([Segment(legend()[:width].ljust(width), Style(dim=True))], width)
        if line > len(self._segments):
            return Strip.blank(width)
        segment = self._segments.iloc[line]
        base, total = int(segment["address"]), int(segment["bytes"])
        blocks = self._blocks.get(base)
        used = 0 if blocks is None else int(blocks["requested"].sum())
        label = f"{size(total):>10} {100 * used / max(1, total):4.0f} % used "
        cells = [] if blocks is None else owners(blocks, base, total, max(1, width - LABEL))
        drawn = [cell(owner) for owner in cells or [""] * max(1, width - LABEL)]
        return Strip([Segment(label[:LABEL].ljust(LABEL)), *drawn], width).simplify()


def owners(blocks: pd.DataFrame, base: int, total: int, cells: int) -> list[str]:
    """Of each cell the category that has the most bytes in it; empty where nothing is alive."""
    edges = np.linspace(0, total, cells + 1)
    found = {str(name): held(rows, base, edges) for name, rows in blocks.groupby("category")}
    names, amounts = list(found), np.array(list(found.values()))
    return [names[most] if amounts[most, i] else "" for i, most in enumerate(amounts.argmax(axis=0))]


def held(blocks: pd.DataFrame, base: int, edges: Column) -> Column:
    """Bytes of these blocks between neighbouring edges (offsets into the segment).

    Blocks do not overlap and come by address, so the bytes below an offset grow linearly inside a block and stay level
    between two: interpolating between their ends is exact, however many there are.
    """
    start = (blocks["address"].to_numpy(np.uint64) - np.uint64(base)).astype(float)
    sizes = blocks["requested"].to_numpy(float)
    below = sizes.cumsum()
    knots = np.stack([start, start + sizes], axis=1).ravel()
    return np.diff(np.interp(edges, knots, np.stack([below - sizes, below], axis=1).ravel()))


def cell(owner: str) -> Segment:
    if not owner:
        return Segment(FREE, Style(dim=True))
    return Segment(LETTERS[owner], Style(color=ink(CATEGORIES[owner]), bgcolor=CATEGORIES[owner]))


def legend() -> str:
    """What the letters mean."""
    return "  ".join([*(f"{letter} {name.replace('_', ' ')}" for name, letter in LETTERS.items()), f"{FREE} free"])
