"""Arrange the memory that is alive after a trace entry as a tree of groups that is small enough to be drawn."""

from collections.abc import Mapping

import pandas as pd

from analyzers.memory.categories.grouping import GroupPath, Usage

_NODES_AT_MOST = 500


def owner_tree(groups: Mapping[GroupPath, Usage], depth: int | None = None) -> pd.DataFrame:
    """Return a table of the `_NODES_AT_MOST` largest nodes of a tree of groups of blocks, parents first.

    `groups` maps the path of each group, such as ("layers", "3", "wq"), to its live bytes and blocks. The nodes of the
    tree are all beginnings of these paths: ("layers",), ("layers", "3") and so on. Levels below `depth` are left out
    (None: all are kept). The bytes of a node include those of all nodes below it, shown or not. Columns: node (its
    number), parent (number of its parent; -1: none), depth (1: top level), name, bytes, blocks, path (tuple of the
    names from the root).
    """
    usage = _usage_of_nodes(groups, depth)
    # A parent has at least the bytes of each child and a shorter path, so every node shown comes after its parent.
    largest = sorted(usage, key=lambda path: (-usage[path].bytes, len(path), path))[:_NODES_AT_MOST]
    number = {path: position for position, path in enumerate(largest)}
    rows = [
        (node, number.get(path[:-1], -1), len(path), path[-1], usage[path].bytes, usage[path].blocks, path)
        for path, node in number.items()
    ]
    return pd.DataFrame(rows, columns=["node", "parent", "depth", "name", "bytes", "blocks", "path"])


def _usage_of_nodes(groups: Mapping[GroupPath, Usage], depth: int | None) -> dict[GroupPath, Usage]:
    """Return the live bytes and blocks of each node of the tree, by path; a node includes all groups below it.

    `groups` maps the path of each group to its usage. Only the first `depth` levels have nodes (None: all levels).
    """
    usage: dict[GroupPath, Usage] = {}
    for path, amount in groups.items():
        for end in range(1, min(len(path), depth or len(path)) + 1):
            usage[path[:end]] = usage.get(path[:end], Usage()) + amount
    return usage
