"""Segments as rows of cells, each cell named after what fills it most: an allocator's state at any width."""

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
import pandas as pd

from analyzers.columns import Column
from analyzers.memory.replay.simulator import UNIT


def block_map(segments: pd.DataFrame, blocks: pd.DataFrame, cells: int, rows: int | None = None) -> pd.DataFrame:
    """The segments of `views.segments`, largest first, with the blocks of `views.state` in `cells` equal parts.

    Columns: address, bytes, used (requested bytes of its blocks), count (of them), owners (a list of `cells`
    categories; "" where nothing is alive), filled (of each cell the row in `blocks` that has the most bytes in it; -1:
    free). At most `rows` rows.
    """
    largest = segments.sort_values("bytes", ascending=False, kind="stable", ignore_index=True).head(
        rows or len(segments)
    )
    inside = blocks[blocks["segment"].isin(largest["address"])]
    held = inside.groupby("segment")["requested"].agg(["sum", "count"]).reindex(largest["address"], fill_value=0)
    largest[["used", "count"]] = held.to_numpy()
    owner, block = owners(largest, inside, cells)
    largest["owners"], largest["filled"] = (pd.Series(one.tolist(), dtype=object) for one in (owner, block))
    return largest


def owners(segments: pd.DataFrame, blocks: pd.DataFrame, cells: int) -> tuple[Column, Column]:
    """Of each cell of each segment the category that has the most bytes in it, and the largest block of that one."""
    start, total = segments["address"].to_numpy(np.uint64), segments["bytes"].to_numpy(float)
    base = start.min(initial=2**63)
    # Rows of edges in order of address, so that one pass over the blocks serves all segments.
    order = np.argsort(start, kind="stable")
    edges = (start - base).astype(float)[order, None] + total[order, None] * np.linspace(0, 1, cells + 1)
    most, owner = np.zeros((len(segments), cells)), np.full((len(segments), cells), "", object)
    block = np.full(owner.shape, -1)
    for name, part in blocks.groupby("category"):
        amount = np.diff(below(part, base, edges))
        more = amount > most
        owner[more], block[more] = str(name), fills(part, base, edges)[more]
        most = np.maximum(most, amount)
    back = np.argsort(order)
    return owner[back], block[back]


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


def fills(blocks: pd.DataFrame, base: np.uint64, edges: Column) -> Column:
    """Of each cell between two edges the block, by its label, that has the most bytes in it; -1: none."""
    start = (blocks["address"].to_numpy(np.uint64) - base).astype(float)
    end = start + blocks["requested"].to_numpy(float)
    # What lies between two neighbouring cuts is of one block, or free, and in one cell.
    cuts = np.unique(np.concatenate([start, edges.ravel()]))
    row = np.searchsorted(start, cuts, side="right") - 1
    stop = np.where(row < 0, -np.inf, end[row])
    length = np.minimum(stop, np.append(cuts[1:], cuts[-1])) - cuts
    cell = np.searchsorted(edges.ravel(), cuts, side="right") - 1
    order = np.lexsort((length, cell))  # the longest of a cell comes last, and stays
    found = np.full(edges.size, -1)
    found[cell[order]] = np.where(length[order] > 0, blocks.index.to_numpy()[row[order]], -1)
    return found.reshape(edges.shape)[:, :-1]


class Spot(NamedTuple):
    """What lies at an address: the block in the row `block` of the state, or a free piece (-1) of `bytes` bytes.

    `before` and `after` are the rows of the blocks beside it in its segment; -1 where there is none.
    """

    block: int
    address: int
    bytes: int
    segment: int
    before: int
    after: int


def spot(segments: pd.DataFrame, blocks: pd.DataFrame, address: int) -> Spot | None:
    """What lies at an address in the segments of `views.segments`; None outside of them.

    What a block was given beyond its request is part of it: the allocator hands out whole units.
    """
    ranges = zip(segments["address"].tolist(), segments["bytes"].tolist(), strict=True)
    around = next(((start, start + length) for start, length in ranges if start <= address < start + length), None)
    if around is None:
        return None
    mine = blocks[blocks["segment"] == around[0]]
    rows, start = [-1, *mine.index, -1], [*mine["address"].tolist(), around[1]]
    stop = [
        around[0],
        *(at + -(-held // UNIT) * UNIT for at, held in zip(start, mine["requested"].tolist(), strict=False)),
    ]
    at = bisect_right(start, address)  # so many blocks begin at or before it
    if at and address < min(stop[at], start[at]):
        return Spot(rows[at], start[at - 1], int(mine["requested"].iloc[at - 1]), around[0], rows[at - 1], rows[at + 1])
    return Spot(-1, stop[at], start[at] - stop[at], around[0], rows[at], rows[at + 1])
