"""Who holds memory, as a tree that is filled where it is opened, with a search."""

from typing import Any, ClassVar

import pandas as pd
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from workbench.console import clean
from workbench.palette import CATEGORIES
from workbench.present.units import bar, share, size


class Holders(Tree[int]):
    """A tree as `memory.views.tree` gives it. A node's data is its row; children come when it is opened."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "found(1)", "Next match", id="holders.next", show=False),
        Binding("N", "found(-1)", "Previous match", id="holders.previous", show=False),
    ]
    DEFAULT_CSS = "Holders { height: 1fr; }"

    def __init__(self, **options: Any) -> None:
        super().__init__("nothing is alive", **options)
        self._frame = pd.DataFrame()
        self._children: dict[int, list[int]] = {}
        self._text = ""

    def show(self, frame: pd.DataFrame) -> None:
        """Draw another tree, its first level open."""
        self._frame = frame
        self._children = {}
        for row, parent in enumerate(frame["parent"].tolist()):
            self._children.setdefault(parent, []).append(row)
        roots = self._children.get(-1, [])
        total = int(frame["bytes"].iloc[roots].sum()) if roots else 0
        self.reset(Text(f"{size(total)} alive"))
        self._fill(self.root, roots)
        self.root.expand()

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[int]) -> None:
        self._open(event.node)

    def search(self, text: str) -> None:
        """Go to the first node whose name holds the text; `n` and `N` go on from there."""
        self._text = text.casefold()
        self.action_found(1)

    def action_found(self, by: int) -> None:
        rows = [row for row, name in enumerate(self._frame.get("name", ())) if self._text in str(name).casefold()]
        if not self._text or not rows:
            self.app.notify("nothing is called that", markup=False)
            return
        at = self.cursor_node.data if self.cursor_node is not None else None
        place = rows.index(at) + by if at in rows else 0
        # What was just opened has no line yet to which the cursor could go.
        self.call_after_refresh(self.move_cursor, self._node(rows[place % len(rows)]))

    def _node(self, row: int) -> TreeNode[int]:
        """The node of a row; those above it are opened."""
        parent = int(self._frame["parent"].iloc[row])
        above = self.root if parent < 0 else self._node(parent)
        self._open(above)
        above.expand()
        return next(child for child in above.children if child.data == row)

    def _open(self, node: TreeNode[int]) -> None:
        if node.data is not None and not node.children:
            self._fill(node, self._children.get(node.data, []))

    def _fill(self, node: TreeNode[int], rows: list[int]) -> None:
        whole = int(self._frame["bytes"].iloc[rows[0]]) if rows else 0
        for row in rows:
            node.add(self._label(row, whole), data=row, allow_expand=row in self._children)

    def _label(self, row: int, largest: int) -> Text:
        """Bar, bytes, blocks and name; bars are relative to the largest neighbour."""
        entry = self._frame.iloc[row]
        name, held = str(entry["name"]), int(entry["bytes"])
        meter = bar(held, largest, 8).ljust(8)
        return Text.assemble(
            (meter, CATEGORIES.get(name, "")),
            f" {size(held):>10} {share(held, self._total()):>7} {int(entry['blocks']):>6}  ",
            clean(name),
        )

    def _total(self) -> int:
        return int(self._frame["bytes"].iloc[self._children[-1]].sum())
