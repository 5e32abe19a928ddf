"""The stacks of all ranks merged: where ranks part, the tree branches."""

from collections.abc import Sequence
from typing import Any, ClassVar

import pandas as pd
from rich.text import Text
from textual.binding import Binding, BindingType

from analyzers.words import rank_names, rank_ranges
from workbench.console import clean
from workbench.tui.widgets.trees.lazy_tree import LazyTree

PLACE = ("filename", "line", "name")


class StackTree(LazyTree):
    """A frame of stacks as `hangs.views.stacks` gives it, outermost first. `i` shows and hides what is not the user's.

    The last line of a stack stays in any case.
    """

    OPEN_AT_MOST: ClassVar[int] = 400
    BINDINGS: ClassVar[list[BindingType]] = [Binding("i", "internal", "Framework lines", id="stacks.internal")]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.guide_depth = 2
        self._whole = self._frame = pd.DataFrame()
        self._all = 0
        self._own_only = True

    def show(self, frame: pd.DataFrame) -> None:
        """Draw other stacks."""
        self._whole = frame.reset_index(drop=True)
        self._all = len({rank for ranks in frame["ranks"] for rank in ranks})
        self._draw()

    def action_internal(self) -> None:
        """Show the lines of PyTorch and Python, or hide them."""
        self._own_only = not self._own_only
        self._draw()

    def _draw(self) -> None:
        parents = parents_of(self._whole["depth"].tolist())
        inner = set(parents)
        kept = [r for r, own in enumerate(self._whole["own"]) if own or r not in inner or not self._own_only]
        self._frame = self._whole.iloc[kept].reset_index(drop=True)
        hidden = len(self._whole) - len(kept)
        told = f"{self._all} ranks with a stack" if self._all else "no stacks recorded"
        names = [f"{file}:{line} {name}" for file, line, name in zip(*(self._frame[c] for c in PLACE), strict=True)]
        more = f", {hidden} lines of PyTorch and Python hidden (i)" if hidden else ""
        self.fill(Text(told + more), lifted(parents, kept), names)

    def label_of(self, row: int) -> Text:
        """Function, place, and the ranks where not all are here."""
        frame = self._frame.iloc[row]
        ranks = frame["ranks"]
        mark = (f"  {rank_names(ranks)}", "bold") if len(ranks) < self._all else (f"  {rank_ranges(ranks)}", "dim")
        return Text.assemble(clean(frame["name"]), (f"  {clean(frame['place'])}", "dim"), mark)


def lifted(parents: Sequence[int], kept: Sequence[int]) -> list[int]:
    """The parents among the rows that are kept: the nearest one above."""
    place = {row: number for number, row in enumerate(kept)}
    place[-1] = -1
    found = []
    for row in kept:
        above = parents[row]
        while above not in place:
            above = parents[above]
        found.append(place[above])
    return found


def parents_of(depths: Sequence[int]) -> list[int]:
    """The row of each row's parent: the last one before it that is less deep."""
    above: list[tuple[int, int]] = []
    parents = []
    for row, depth in enumerate(depths):
        while above and above[-1][0] >= depth:
            above.pop()
        parents.append(above[-1][1] if above else -1)
        above.append((depth, row))
    return parents
