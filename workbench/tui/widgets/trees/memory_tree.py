"""A tree of allocated memory, by module, source line, stack or category."""

from typing import ClassVar, Unpack

import pandas as pd
from rich.text import Text

from analyzers.words import share, size
from workbench.colours import CATEGORIES
from workbench.console import clean
from workbench.present.bar import bar
from workbench.tui.widgets.trees.lazy_tree import LazyTree
from workbench.tui.widgets.widget_options import WidgetOptions


class MemoryTree(LazyTree):
    """A tree of live memory, drawn from the table that `memory.views.tree` returns."""

    IN_COLUMNS: ClassVar[bool] = True
    OPENS_LARGEST: ClassVar[bool] = True

    def __init__(self, **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self._frame = pd.DataFrame()
        self._total = 0

    def show(self, frame: pd.DataFrame) -> None:
        """Draw the tree in `frame`, which has a row per node."""
        self._frame = frame
        roots = frame["parent"] < 0
        self._total = int(frame["bytes"][roots].sum())
        self.fill(
            Text(f"{size(self._total)} allocated"), frame["parent"].tolist(), [str(name) for name in frame["name"]]
        )

    def label_of(self, row: int) -> Text:
        """Return the line of the node with the index `row`: bar, bytes, share of all bytes, blocks and name.

        Bars are relative to the largest node with the same parent.
        """
        entry = self._frame.iloc[row]
        name, count = str(entry["name"]), int(entry["bytes"])
        largest = int(self._frame["bytes"].iloc[self.children_of(self.parent_of(row))[0]])
        return Text.assemble(
            (bar(count, largest, 8).ljust(8), CATEGORIES.get(name, "")),
            f" {size(count):>10} {share(count, self._total):>7} {int(entry['blocks']):>6}  ",
            clean(name),
        )
