"""A searchable tree that creates the children of a node when the node is opened."""

from collections.abc import Sequence
from typing import ClassVar, Unpack

from rich.text import Text
from textual.binding import BindingType
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from workbench.tui.widgets.key_bindings import CURSOR_KEYS, SEARCH_KEYS
from workbench.tui.widgets.widget_options import WidgetOptions


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
        """Return the text of the node of row `row`."""
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
        """Return the index of the parent of row `row`; -1 if the row is on the first level."""
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
        """Return the name of the row under the cursor; empty on the root."""
        at = self.cursor_node.data if self.cursor_node is not None else None
        return "" if at is None else self._names[at]

    def _node(self, row: int) -> TreeNode[int]:
        """Return the node of a row, after opening the nodes above it."""
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
