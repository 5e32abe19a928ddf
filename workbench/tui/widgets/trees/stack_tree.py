"""A tree of the Python stacks of all ranks, which branches where the ranks differ."""

from collections.abc import Sequence
from typing import ClassVar, Unpack

import pandas as pd
from rich.text import Text
from textual.binding import Binding, BindingType

from analyzers.hangs.views import without_libraries
from analyzers.words import quantity, rank_names, rank_ranges
from workbench.console import clean
from workbench.tui.widgets.trees.lazy_tree import LazyTree
from workbench.tui.widgets.widget_options import WidgetOptions

PLACE = ("filename", "line", "name")


class StackTree(LazyTree):
    """A tree of the stacks from `hangs.views.stacks`, outermost frame first.

    The key `i` shows or hides library frames. The innermost frame of a stack is always visible.
    """

    OPEN_AT_MOST: ClassVar[int] = 400
    BINDINGS: ClassVar[list[BindingType]] = [Binding("i", "library_frames", "Library frames", id="stacks.internal")]

    def __init__(self, **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self.guide_depth = 2
        self._whole = self._frame = pd.DataFrame()
        self._all = 0
        self._own_only = True

    def show(self, frame: pd.DataFrame) -> None:
        """Draw the stacks in `frame`, which has a row per frame of the merged stacks of all ranks."""
        self._whole = frame.reset_index(drop=True)
        self._all = len({rank for ranks in frame["ranks"] for rank in ranks})
        self._draw()

    def action_library_frames(self) -> None:
        """Show or hide library frames: the frames of PyTorch and Python."""
        self._own_only = not self._own_only
        self._draw()

    def _draw(self) -> None:
        self._frame = without_libraries(self._whole) if self._own_only else self._whole
        hidden = len(self._whole) - len(self._frame)
        head = f"{quantity(self._all, 'rank')} with a stack" if self._all else "no stacks recorded"
        names = [f"{file}:{line} {name}" for file, line, name in zip(*(self._frame[c] for c in PLACE), strict=True)]
        more = f", {quantity(hidden, 'library frame')} hidden (i)" if hidden else ""
        self.fill(Text(head + more), _parents_of(self._frame["depth"].tolist()), names)

    def label_of(self, row: int) -> Text:
        """Return the line of the frame with the index `row`: function, source line and ranks.

        The ranks are bold if other ranks do not have this frame.
        """
        frame = self._frame.iloc[row]
        ranks = frame["ranks"]
        mark = (f"  {rank_names(ranks)}", "bold") if len(ranks) < self._all else (f"  {rank_ranges(ranks)}", "dim")
        return Text.assemble(clean(frame["name"]), (f"  {clean(frame['place'])}", "dim"), mark)


def _parents_of(depths: Sequence[int]) -> list[int]:
    """Return the index of each row's parent (-1: none); the parent is the last earlier row with a smaller depth.

    >>> parents_of([0, 1, 2, 1])
    [-1, 0, 1, 0]
    """
    above: list[tuple[int, int]] = []
    parents = []
    for row, depth in enumerate(depths):
        while above and above[-1][0] >= depth:
            above.pop()
        parents.append(above[-1][1] if above else -1)
        above.append((depth, row))
    return parents
