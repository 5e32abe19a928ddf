"""Draw each segment as a row of cells, each with the category of most of its bytes; find what is at an address."""

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from analyzers.columns import Column, Floats, Integers
from analyzers.memory.replay.simulator import UNIT, round_up

if TYPE_CHECKING:
    import pandas as pd

_NO_BLOCK = -1


def block_map(segments: "pd.DataFrame", blocks: "pd.DataFrame", cells: int, rows: int | None = None) -> "pd.DataFrame":
    """Return a table of the segments, the largest first, with the contents of each in `cells` parts of equal size.

    `segments` and `blocks` are tables of `views.segments` and `views.live_blocks`; at most `rows` segments are
    returned. Columns: address, bytes, used (requested bytes of the segment's blocks), count (number of these blocks),
    owners (a list with the category that fills most of each cell; "" if free), filled (a list with the row in
    `blocks` of the block that has the most bytes in each cell; -1: free).
    """
    import pandas as pd  # late, as the door of this room offers this function to reports that need no tables

    largest = segments.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)
    largest = largest.head(rows or len(segments))
    inside = blocks[blocks["segment"].isin(largest["address"])]
    usage = inside.groupby("segment")["requested"].agg(["sum", "count"]).reindex(largest["address"], fill_value=0)
    largest[["used", "count"]] = usage.to_numpy()
    category, block = _owners_of_cells(largest, inside, cells)
    largest["owners"] = pd.Series(category.tolist(), dtype=object)
    largest["filled"] = pd.Series(block.tolist(), dtype=object)
    return largest


def _owners_of_cells(segments: "pd.DataFrame", blocks: "pd.DataFrame", cells: int) -> tuple[Column, Column]:
    """Return two arrays [segment, cell]: the category with the most bytes in each cell, and the largest block in it.

    Each segment is cut into `cells` equal parts. A free cell has the category "" and the block -1. A block is given by
    its row label in `blocks`. `segments` and `blocks` are tables of `views.segments` and `views.live_blocks`.
    """
    start, total = segments["address"].to_numpy(np.uint64), segments["bytes"].to_numpy(float)
    # Offsets from the lowest address: floats hold these exactly, but not addresses beyond 2**53.
    base = start.min(initial=2**63)
    # Rows of edges in order of address, so that one pass over the blocks serves all segments.
    order = np.argsort(start, kind="stable")
    edges = (start - base).astype(float)[order, None] + total[order, None] * np.linspace(0, 1, cells + 1)
    most, owner = np.zeros((len(segments), cells)), np.full((len(segments), cells), "", object)
    block = np.full(owner.shape, _NO_BLOCK)
    for name, part in blocks.groupby("category"):
        amount = np.diff(_bytes_below(part, base, edges))
        more = amount > most
        owner[more], block[more] = str(name), _largest_block_of_cells(part, base, edges)[more]
        most = np.maximum(most, amount)
    restore = np.argsort(order)
    return owner[restore], block[restore]


def _bytes_below(blocks: "pd.DataFrame", base: np.uint64, offsets: Floats) -> Floats:
    """Return, for each address, how many bytes of blocks lie below it; addresses are given as `offsets` from `base`.

    The blocks are sorted by address and do not overlap, so the result grows linearly inside a block and is constant
    between blocks. Interpolating between the ends of blocks is therefore exact.
    """
    start = (blocks["address"].to_numpy(np.uint64) - base).astype(float)
    size = blocks["requested"].to_numpy(float)
    after = size.cumsum()
    knots = np.stack([start, start + size], axis=1).ravel()
    below: Floats = np.interp(offsets, knots, np.stack([after - size, after], axis=1).ravel())
    return below


def _largest_block_of_cells(blocks: "pd.DataFrame", base: np.uint64, edges: Floats) -> Integers:
    """Return, for each cell of each segment, the row label in `blocks` of the block with the most bytes; -1: none.

    `edges` holds the borders of the cells, as address offsets from `base`: an array (segment, border).
    """
    start = (blocks["address"].to_numpy(np.uint64) - base).astype(float)
    end = start + blocks["requested"].to_numpy(float)
    # Between two neighbouring cuts everything belongs to one block, or is free, and lies in one cell.
    cuts = np.unique(np.concatenate([start, edges.ravel()]))
    row = np.searchsorted(start, cuts, side="right") - 1
    stop = np.where(row < 0, -np.inf, end[row])
    length = np.minimum(stop, np.append(cuts[1:], cuts[-1])) - cuts
    cell = np.searchsorted(edges.ravel(), cuts, side="right") - 1
    order = np.lexsort((length, cell))  # the longest piece of a cell comes last, and so stays
    block = np.full(edges.size, _NO_BLOCK)
    block[cell[order]] = np.where(length[order] > 0, blocks.index.to_numpy()[row[order]], _NO_BLOCK)
    return block.reshape(edges.shape)[:, :-1]


class AddressContent(NamedTuple):
    """The content of memory at an address: a block or a free range, with its address, bytes and segment address.

    `block` is the row of the block in the table of blocks (-1: free memory). `before` and `after` are the rows of the
    neighbouring blocks in the segment (-1: none).
    """

    block: int
    address: int
    bytes: int
    segment: int
    before: int
    after: int


def content_at(segments: "pd.DataFrame", blocks: "pd.DataFrame", address: int) -> AddressContent | None:
    """Return the block or the free range that contains an address; None if the address is in no segment.

    `segments` and `blocks` are tables of `views.segments` and `views.live_blocks`. The bytes added by rounding a
    request up count as part of the block.
    """
    ranges = zip(segments["address"].tolist(), segments["bytes"].tolist(), strict=True)
    enclosing = next(((low, low + length) for low, length in ranges if low <= address < low + length), None)
    if enclosing is None:
        return None
    segment, segment_end = enclosing
    inside = blocks[blocks["segment"] == segment]
    requested = inside["requested"].tolist()
    # With a sentinel at both sides, neighbour k of the address is rows[k] before it and rows[k + 1] after it.
    rows, start = [_NO_BLOCK, *inside.index, _NO_BLOCK], [*inside["address"].tolist(), segment_end]
    stop = [segment, *(at + round_up(size, UNIT) for at, size in zip(start, requested, strict=False))]
    k = bisect_right(start, address)  # so many blocks begin at or before it
    if k and address < min(stop[k], start[k]):
        return AddressContent(rows[k], start[k - 1], requested[k - 1], segment, rows[k - 1], rows[k + 1])
    return AddressContent(_NO_BLOCK, stop[k], start[k] - stop[k], segment, rows[k], rows[k + 1])
