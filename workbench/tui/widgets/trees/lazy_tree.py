"""Trees that are filled where they are opened, with a search."""

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import BindingType
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from workbench.tui.widgets.key_bindings import CURSOR, FOUND


class LazyTree(Tree[int]):
    """A tree of rows, each with the row of its parent (-1: none), which comes before it. A node's data is its row.

    Trees of no more than `OPEN_AT_MOST` rows are shown open.
    """

    OPEN_AT_MOST: ClassVar[int] = 0
    BINDINGS: ClassVar[list[BindingType]] = [*CURSOR, *FOUND]
    DEFAULT_CSS = "LazyTree { height: 1fr; }"

    def __init__(self, **options: Any) -> None:
        super().__init__("", **options)
        self._children: dict[int, list[int]] = {}
        self._names: Sequence[str] = ()
        self._parents: Sequence[int] = ()
        self._text = ""

    def label_of(self, row: int) -> Text:
        """The line of a row."""
        raise NotImplementedError

    def fill(self, root: Text, parents: Sequence[int], names: Sequence[str]) -> None:
        """Draw other rows."""
        self._parents, self._names, self._children = parents, names, {}
        for row, parent in enumerate(parents):
            self._children.setdefault(parent, []).append(row)
        self.reset(root)
        self._add(self.root, -1)
        self.root.expand()
        if len(parents) <= self.OPEN_AT_MOST:
            self._open_all(self.root)

    def children_of(self, row: int) -> list[int]:
        """The rows below a row; -1 for the first level."""
        return self._children.get(row, [])

    def parent_of(self, row: int) -> int:
        """The row above a row; -1 at the first level."""
        return self._parents[row]

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[int]) -> None:
        self._open(event.node)

    def search(self, text: str) -> None:
        """Go to the first node whose name holds the text; `n` and `N` go on from there."""
        self._text = text.casefold()
        self.action_found(1)

    def action_found(self, by: int) -> None:
        rows = [row for row, name in enumerate(self._names) if self._text in name.casefold()]
        if not self._text or not rows:
            self.app.notify("nothing is called that", markup=False)
            return
        at = self.cursor_node.data if self.cursor_node is not None else None
        place = rows.index(at) + by if at in rows else 0
        # What was just opened has no line yet to which the cursor could go.
        self.call_after_refresh(self.move_cursor, self._node(rows[place % len(rows)]))

    def chosen(self) -> str:
        """The name under the cursor."""
        at = self.cursor_node.data if self.cursor_node is not None else None
        return "" if at is None else self._names[at]

    def _node(self, row: int) -> TreeNode[int]:
        """The node of a row; those above it are opened."""
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

    def _add(self, node: TreeNode[int], row: int) -> None:
        for child in self.children_of(row):
            node.add(self.label_of(child), data=child, allow_expand=child in self._children)
