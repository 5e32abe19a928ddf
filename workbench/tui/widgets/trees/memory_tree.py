"""Who holds memory, as a tree."""

from typing import Any

import pandas as pd
from rich.text import Text

from analyzers.words import share, size
from workbench.colours import CATEGORIES
from workbench.console import clean
from workbench.present.bar import bar
from workbench.tui.widgets.trees.lazy_tree import LazyTree


class Holders(LazyTree):
    """A tree as `memory.views.tree` gives it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._frame = pd.DataFrame()
        self._total = 0

    def show(self, frame: pd.DataFrame) -> None:
        """Draw another tree."""
        self._frame = frame
        roots = frame["parent"] < 0
        self._total = int(frame["bytes"][roots].sum())
        self.fill(Text(f"{size(self._total)} alive"), frame["parent"].tolist(), [str(name) for name in frame["name"]])

    def label_of(self, row: int) -> Text:
        """Bar, bytes, blocks and name; bars are relative to the largest neighbour."""
        entry = self._frame.iloc[row]
        name, held = str(entry["name"]), int(entry["bytes"])
        largest = int(self._frame["bytes"].iloc[self.children_of(self.parent_of(row))[0]])
        return Text.assemble(
            (bar(held, largest, 8).ljust(8), CATEGORIES.get(name, "")),
            f" {size(held):>10} {share(held, self._total):>7} {int(entry['blocks']):>6}  ",
            clean(name),
        )
