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
    inside = {int(address): part for address, part in blocks.groupby("segment")}  # type: ignore[arg-type]  # numbers
    parts = [inside.get(int(address), blocks[:0]) for address in largest["address"]]
    largest["used"] = [int(part["requested"].sum()) for part in parts]
    spans = zip(parts, largest["address"], largest["bytes"], strict=True)
    largest["owners"] = pd.Series(
        [owners(part, int(start), int(total), cells) for part, start, total in spans], dtype=object
    )
    return largest


def owners(blocks: pd.DataFrame, base: int, total: int, cells: int) -> list[str]:
    """Of each cell of a segment the category that has the most bytes in it; "" where nothing is alive."""
    edges = np.linspace(0, total, cells + 1)
    found = {str(name): held(rows, base, edges) for name, rows in blocks.groupby("category")}
    names, amounts = ["", *found], np.array([np.zeros(cells), *found.values()])
    return [names[most] for most in amounts.argmax(axis=0)]


def held(blocks: pd.DataFrame, base: int, edges: Column) -> Column:
    """Bytes of these blocks between neighbouring edges (offsets into the segment).

    Blocks do not overlap and come by address, so the bytes below an offset grow linearly inside a block and stay level
    between two: interpolating between their ends is exact, however many there are.
    """
    start = (blocks["address"].to_numpy(np.uint64) - np.uint64(base)).astype(float)
    sizes = blocks["requested"].to_numpy(float)
    below = sizes.cumsum()
    knots = np.stack([start, start + sizes], axis=1).ravel()
    amount: Column = np.diff(np.interp(edges, knots, np.stack([below - sizes, below], axis=1).ravel()))
    return amount
