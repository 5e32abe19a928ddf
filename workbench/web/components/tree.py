"""An icicle chart of a tree, such as live memory or the calls of a trace, with the part of a node in its parent."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from workbench.colours import text_colour
from workbench.web.components.figure import plain_layout, theme
from workbench.web.query import NO_NODE

LEVELS, _LEVEL_PX = 12, 28
"""The most levels of a tree that are shown at once, and the height of a level in pixels."""
NODES = 500
"""The most nodes of a tree that are drawn: Plotly takes seconds for some thousands."""
FRAMES = (("0", "hide library frames"), ("1", "show library frames"))
"""The switch of trees of stacks: (value in the address, text)."""


@dataclass(frozen=True)
class Tree:
    """The nodes of a tree, each with what is drawn for it; parents come before their children.

    `nodes` are their numbers, `parents` the numbers of their parents (-1: none), `sizes` include those of their
    children. `names`, `hovers` and `colours` are texts that may be drawn as they are.
    """

    nodes: Sequence[int]
    parents: Sequence[int]
    sizes: Sequence[int]
    names: Sequence[str]
    hovers: Sequence[str]
    colours: Sequence[str]

    @property
    def total(self) -> int:
        return sum(size for size, parent in zip(self.sizes, self.parents, strict=True) if parent < 0)


def icicle(tree: Tree, title: str, up: int = NO_NODE, levels: int = LEVELS) -> go.Figure:
    """Return an icicle chart of a tree below a root named `title`; at most `levels` levels are shown.

    A click on a node selects this node, but a click on the chart's root selects the node `up`; the first item of a
    node's `customdata` is the node to select. The browser shortens the names to the width that the chart has there.
    """
    colours = [theme().hues["empty"], *tree.colours]
    figure = go.Figure(
        go.Icicle(
            ids=["all", *map(str, tree.nodes)],
            labels=[title, *tree.names],
            textinfo="text",
            parents=["", *("all" if parent < 0 else str(parent) for parent in tree.parents)],
            values=[tree.total, *tree.sizes],
            customdata=[[up, ""], *zip(tree.nodes, tree.hovers, strict=True)],
            marker={"colors": colours, "line": {"width": 1, "color": theme().hues["page"]}},
            leaf={"opacity": 1},
            # A node's size includes those of its children; by default Plotly would add the children once more.
            branchvalues="total",
            tiling={"orientation": "v"},
            textfont={"color": [text_colour(colour) for colour in colours]},
            hovertemplate="%{customdata[1]}<extra></extra>",
            maxdepth=levels,
        ),
        layout=plain_layout(),
    )
    height = 20 + _LEVEL_PX * min(levels, 1 + _depth_of(tree))
    return figure.update_layout(height=height, margin={"l": 0, "r": 0, "t": 10, "b": 10})


def with_room_for_children(frame: pd.DataFrame, value: str) -> pd.DataFrame:
    """Return a tree in which no node's `value` is less than the sum of its children, for which Plotly draws nothing.

    Events of a damaged trace may overlap those that enclose them. Parents come before their children in `frame`.
    """
    least: dict[int, int] = {}
    grown = []
    columns = (frame[name].tolist()[::-1] for name in ("node", "parent", value))
    for node, parent, own in zip(*columns, strict=True):
        grown.append(max(own, least.get(node, 0)))
        least[parent] = least.get(parent, 0) + grown[-1]
    return frame.assign(**{value: grown[::-1]})


def _depth_of(tree: Tree) -> int:
    depths: dict[int, int] = {}
    for node, parent in zip(tree.nodes, tree.parents, strict=True):
        depths[node] = 1 + depths.get(parent, 0)
    return max(depths.values(), default=0)


def subtree(frame: pd.DataFrame, node: int, value: str) -> tuple[pd.DataFrame, int]:
    """Return `node` with the largest nodes below it (at most `NODES` in all), and the parent of `node`.

    `frame` has the columns `node`, `parent` and `value`, the size. The chart draws the first of the two; the second is
    where a click on its root leads, one level up. The result has no node without its parent, because a parent is at
    least as large as each of its children.
    """
    if node not in set(frame["node"]):
        return frame.nlargest(NODES, value, keep="first"), NO_NODE
    parents = dict(zip(frame["node"], frame["parent"], strict=True))
    inside = {node}
    for child, parent in parents.items():
        # Parents come before their children, so one pass finds the whole subtree.
        if parent in inside:
            inside.add(child)
    kept = frame[frame["node"].isin(inside)].nlargest(NODES, value, keep="first")
    return kept.assign(parent=kept["parent"].where(kept["node"] != node, NO_NODE)), parents[node]
