"""A tree of the calls in a trace, by operator, module or function."""

from typing import ClassVar, Unpack

import pandas as pd
from rich.text import Text

from analyzers.words import duration_ns
from workbench.console import clean
from workbench.present.bar import bar
from workbench.tui.widgets.trees.lazy_tree import LazyTree
from workbench.tui.widgets.widget_options import WidgetOptions

_ENGINE = "autograd::engine::"
"""The namespace of all calls of the backward pass, which would leave no room for their names on a narrow screen."""


class CallTree(LazyTree):
    """A tree of calls from `traces.views.tree`, with the device time of each call; without a device, its host time."""

    IN_COLUMNS: ClassVar[bool] = True
    OPENS_LARGEST: ClassVar[bool] = True

    def __init__(self, **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self._frame = pd.DataFrame()
        self._clock = "host_ns"

    def show(self, frame: pd.DataFrame) -> None:
        """Draw the tree of calls in `frame`; calls with the same parent are sorted by time, longest first."""
        self._clock = "device_ns" if frame["device_ns"].any() else "host_ns"
        self._frame = frame.set_index("node")
        rows = {node: row for row, node in enumerate(frame["node"].tolist())}
        parents = [rows.get(parent, -1) for parent in frame["parent"].tolist()]
        where = self._clock.removesuffix("_ns")
        head = f"{len(frame)} calls, by time on the {where}" if len(frame) else "no calls of this kind were recorded"
        self.fill(Text(head), parents, [str(name) for name in frame["name"]])

    def children_of(self, row: int) -> list[int]:
        """Return the indices of the rows whose parent is `row`, longest call first."""
        return sorted(super().children_of(row), key=lambda child: -int(self._frame[self._clock].iloc[child]))

    def label_of(self, row: int) -> Text:
        """Return the line of the call with the index `row`: bar, time, count and name.

        Bars are relative to the longest call with the same parent.
        """
        entry = self._frame.iloc[row]
        spent = int(entry[self._clock])
        longest = int(self._frame[self._clock].iloc[self.children_of(self.parent_of(row))[0]])
        count, name = int(entry["count"]), clean(entry["name"]).removeprefix(_ENGINE)
        return Text(f"{bar(spent, longest, 8):<8} {duration_ns(spent):>9} {count:>7} x  {name}")
