"""What is held at an instant as a tree, small enough to be drawn."""

from collections.abc import Mapping

import pandas as pd

from analyzers.memory.categories.grouping import Held, Path

NODES_AT_MOST = 500


def tree(held: Mapping[Path, Held], depth: int | None = None) -> pd.DataFrame:
    """The largest nodes, each after its parent; a node counts all below it, also what is not shown.

    Columns: node (its number), parent (-1: none), depth, name, bytes, blocks, path (names from the root, tuple).
    """
    found = totals(held, depth)
    # A parent holds no less than its children and is shorter, so whoever is shown has its parent shown before it.
    largest = sorted(found, key=lambda path: (-found[path].bytes, len(path), path))[:NODES_AT_MOST]
    number = {path: place for place, path in enumerate(largest)}
    rows = [
        (place, number.get(path[:-1], -1), len(path), path[-1], found[path].bytes, found[path].blocks, path)
        for path, place in number.items()
    ]
    return pd.DataFrame(rows, columns=["node", "parent", "depth", "name", "bytes", "blocks", "path"])


def totals(held: Mapping[Path, Held], depth: int | None) -> dict[Path, Held]:
    """What each node holds, down to `depth` (1: only the first names)."""
    found: dict[Path, Held] = {}
    for path, amount in held.items():
        for end in range(1, min(len(path), depth or len(path)) + 1):
            found[path[:end]] = found.get(path[:end], Held()) + amount
    return found
