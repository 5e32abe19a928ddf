"""Trees that fetch the children of a node when it is opened: calls, memory by stack, and stacks of ranks."""

from collections.abc import Sequence
from typing import ClassVar, Unpack

import pandas as pd
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from analyzers.hangs.views import without_libraries
from analyzers.words import duration_ns, quantity, rank_names, rank_ranges, share, size
from workbench.colours import CATEGORIES
from workbench.console import clean
from workbench.present.figure import bar
from workbench.tui.widgets.common import CURSOR_KEYS, SEARCH_KEYS, WidgetOptions


class LazyTree(Tree[int]):
    """A tree of the rows of a table; the node of a row is created when its parent node is opened.

    Each node holds the index of its row. The row of a parent comes before the rows of its children. A tree with at most
    `OPEN_AT_MOST` rows is opened completely.
    """

    OPEN_AT_MOST: ClassVar[int] = 0
    IN_COLUMNS: ClassVar[bool] = False
    """Whether the labels begin with columns; nodes without children then keep them, although they have no arrow."""
    OPENS_LARGEST: ClassVar[bool] = False
    """Whether a new tree opens the first node of each level, which is the largest, while all lines fit."""
    BINDINGS: ClassVar[list[BindingType]] = [*CURSOR_KEYS, *SEARCH_KEYS]
    DEFAULT_CSS = "LazyTree { height: 1fr; }"

    def __init__(self, **options: Unpack[WidgetOptions]) -> None:
        super().__init__("", **options)
        self._children: dict[int, list[int]] = {}
        self._names: Sequence[str] = ()
        self._parents: Sequence[int] = ()
        self._text = ""

    def label_of(self, row: int) -> Text:
        raise NotImplementedError

    def fill(self, root: Text, parents: Sequence[int], names: Sequence[str]) -> None:
        """Draw a tree below the text `root`.

        `parents` has the index of each row's parent (-1: none), and `names` the searchable text of each row.
        """
        self._parents, self._names, self._children = parents, names, {}
        for row, parent in enumerate(parents):
            self._children.setdefault(parent, []).append(row)
        self.reset(root)
        self._add(self.root, -1)
        self.root.expand()
        if len(parents) <= self.OPEN_AT_MOST:
            self._open_all(self.root)
        elif self.OPENS_LARGEST:
            self._open_largest()

    def children_of(self, row: int) -> list[int]:
        """Return the indices of the rows whose parent is `row`; -1 stands for the root."""
        return self._children.get(row, [])

    def parent_of(self, row: int) -> int:
        return self._parents[row]

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[int]) -> None:
        self._open(event.node)

    def search(self, text: str) -> None:
        """Move the cursor to the first node whose name contains the text.

        The keys `n` and `N` find the next and the previous node.
        """
        self._text = text.casefold()
        self.action_next_match(1)

    def action_next_match(self, by: int) -> None:
        rows = [row for row, name in enumerate(self._names) if self._text in name.casefold()]
        if not self._text or not rows:
            self.app.notify("no match", markup=False)
            return
        at = self.cursor_node.data if self.cursor_node is not None else None
        match = rows.index(at) + by if at in rows else 0
        # A node that was just made has no line yet to which the cursor could go.
        self.call_after_refresh(self.move_cursor, self._node(rows[match % len(rows)]))

    def text_at_cursor(self) -> str:
        at = self.cursor_node.data if self.cursor_node is not None else None
        return "" if at is None else self._names[at]

    def _node(self, row: int) -> TreeNode[int]:
        parent = self._parents[row]
        above = self.root if parent < 0 else self._node(parent)
        self._open(above)
        above.expand()
        return next(child for child in above.children if child.data == row)

    def _open(self, node: TreeNode[int]) -> None:
        if node.data is not None and not node.children:
            self._add(node, node.data)

    def _open_all(self, node: TreeNode[int]) -> None:
        self._open(node)
        node.expand()
        for child in node.children:
            self._open_all(child)

    def _open_largest(self) -> None:
        """Open the first node of each level as long as all lines of the tree fit into the widget."""
        node, lines = self.root, 1 + len(self.root.children)
        while node.children:
            node = node.children[0]
            lines += len(self.children_of(-1 if node.data is None else node.data))
            if lines > self.size.height:
                return
            self._open(node)
            node.expand()

    def _add(self, node: TreeNode[int], row: int) -> None:
        for child in self.children_of(row):
            has_children = child in self._children
            arrow = "" if has_children or not self.IN_COLUMNS else " " * len(self.ICON_NODE)
            node.add(Text.assemble(arrow, self.label_of(child)), data=child, allow_expand=has_children)


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


_PLACE = ("filename", "line", "name")


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
        self._whole = frame.reset_index(drop=True)
        self._all = len({rank for ranks in frame["ranks"] for rank in ranks})
        self._draw()

    def action_library_frames(self) -> None:
        self._own_only = not self._own_only
        self._draw()

    def _draw(self) -> None:
        self._frame = without_libraries(self._whole) if self._own_only else self._whole
        hidden = len(self._whole) - len(self._frame)
        head = f"{quantity(self._all, 'rank')} with a stack" if self._all else "no stacks recorded"
        names = [f"{file}:{line} {name}" for file, line, name in zip(*(self._frame[c] for c in _PLACE), strict=True)]
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

    >>> _parents_of([0, 1, 2, 1])
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
