"""Segments as rows of cells, each cell named after what fills it most: an allocator's state at any width."""

import numpy as np
import pandas as pd

from analyzers.memory.tables import Column


def block_map(segments: pd.DataFrame, blocks: pd.DataFrame, cells: int, rows: int | None = None) -> pd.DataFrame:
    """The segments of `views.segments`, largest first, with the blocks of `views.state` in `cells` equal parts.

    Columns: address, bytes, used (requested bytes of its blocks), owners (a list of `cells` categories; "" where
    nothing is alive). At most `rows` rows.
    """
    largest = segments.sort_values("bytes", ascending=False, kind="stable", ignore_index=True).head(
        rows or len(segments)
    )
    inside = blocks[blocks["segment"].isin(largest["address"])]
    used = inside.groupby("segment")["requested"].sum()
    largest["used"] = used.reindex(largest["address"], fill_value=0).to_numpy()
    largest["owners"] = pd.Series(owners(largest, inside, cells).tolist(), dtype=object)
    return largest


def owners(segments: pd.DataFrame, blocks: pd.DataFrame, cells: int) -> Column:
    """Of each cell of each segment the category that has the most bytes in it; "" where nothing is alive."""
    start, total = segments["address"].to_numpy(np.uint64), segments["bytes"].to_numpy(float)
    base = start.min(initial=2**63)
    # Rows of edges in order of address, so that one pass over the blocks serves all segments.
    order = np.argsort(start, kind="stable")
    edges = (start - base).astype(float)[order, None] + total[order, None] * np.linspace(0, 1, cells + 1)
    most, owner = np.zeros((len(segments), cells)), np.full((len(segments), cells), "", object)
    for name, part in blocks.groupby("category"):
        amount = np.diff(below(part, base, edges))
        owner[amount > most] = str(name)
        most = np.maximum(most, amount)
    found = np.empty_like(owner)
    found[order] = owner
    return found


def below(blocks: pd.DataFrame, base: np.uint64, offsets: Column) -> Column:
    """Bytes of these blocks, which come by address, below some offsets from `base`.

    Blocks do not overlap, so these grow linearly inside a block and stay level between two: interpolating between their
    ends is exact, however many there are.
    """
    start = (blocks["address"].to_numpy(np.uint64) - base).astype(float)
    size = blocks["requested"].to_numpy(float)
    after = size.cumsum()
    knots = np.stack([start, start + size], axis=1).ravel()
    found: Column = np.interp(offsets, knots, np.stack([after - size, after], axis=1).ravel())
    return found
