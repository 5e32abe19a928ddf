"""Simulate PyTorch's CUDA caching allocator without using memory: how much would it reserve for recorded requests?

The simulation follows the allocator's source (c10/cuda/CUDACachingAllocator.cpp): rounding of sizes, best fit,
splitting and merging of blocks. It leaves out limits on splitting, garbage collection, and releasing segments when
memory runs out. Blocks that are older than the trace are allocated first, in order of address.

Worked example, ordinary segments, one stream. A request of 3 MiB is above 1 MiB, so it goes to the pool of large
blocks; below 10 MiB it gets a segment of 20 MiB, which is split into 3 MiB and a free 17 MiB. A request of 12 MiB
takes 12 of these 17 MiB and leaves 5 MiB free; a request of 6 MiB does not fit there and needs another 20 MiB: 40 MiB
are reserved for 21 MiB of requests. When the first two blocks are freed, all of the first segment merges into one
free block of 20 MiB that can be released to the device. With expandable segments the pool has one segment that grows
in steps of 20 MiB: the 6 MiB take the free 5 MiB at its end and the first part of the next 20 MiB.
"""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from analyzers.columns import Column, Floats, Integers
from analyzers.memory.arenas import BlockArenas
from analyzers.memory.lifetimes import Replay

if TYPE_CHECKING:
    import pandas as pd


MIB = 1 << 20
# Names in CUDACachingAllocator.cpp: kMinBlockSize, kSmallSize, kSmallBuffer, kLargeBuffer, kMinLargeAlloc.
UNIT, _SMALL_REQUEST = 512, MIB
SMALL_SEGMENT, LARGE_SEGMENT, _LARGE_REQUEST = 2 * MIB, 20 * MIB, 10 * MIB
_SEGMENT_SPACING_BITS = 44
"""Simulated segments start 16 TiB apart, so that no two ever touch."""


@dataclass
class Block:
    """A part of a simulated segment; `before` and `after` are its neighbours (None at the segment's ends)."""

    start: int
    size: int
    free: bool = True
    before: "Block | None" = None
    after: "Block | None" = None

    @property
    def key(self) -> tuple[int, int]:
        """The sort key of free blocks: size, then address. The allocator uses the same order."""
        return self.size, self.start


@dataclass
class BlockPool:
    """All small or all large blocks of one CUDA stream, with their segments, in the simulated allocator.

    `free` has the keys of the free blocks, sorted; `blocks` maps addresses to blocks; `segments` has (address, size).
    `expands`: the pool has one expandable segment instead of ordinary ones.
    """

    small: bool
    expands: bool
    free: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[int, Block] = field(default_factory=dict)
    segments: list[tuple[int, int]] = field(default_factory=list)
    last: int = 0
    """The address of the last block in the expandable segment."""

    @property
    def granularity(self) -> int:
        """The bytes by which an expandable segment grows at a time."""
        return SMALL_SEGMENT if self.small else LARGE_SEGMENT

    def allocate(self, size: int) -> Block:
        """Return a block for a request of `size` bytes: the best fitting free block, or newly reserved memory.

        The block is split if enough bytes would be left over. If it is not split, it may be larger than the request.
        """
        block = self.best_fit(size) or self.reserve(size)
        self.remove_free(block)
        rest = block.size - size
        # should_split() in the source: large blocks of ordinary segments keep a rest of up to 1 MiB.
        if rest >= UNIT if self.small or self.expands else rest > _SMALL_REQUEST:
            self.split(block, size)
        block.free = False
        return block

    def split(self, block: Block, size: int) -> None:
        """Cut a block down to `size` bytes, and add the rest as a new free block."""
        tail = Block(block.start + size, block.size - size, before=block, after=block.after)
        if block.after:
            block.after.before = tail
        block.size, block.after = size, tail
        self.add_free(tail)

    def best_fit(self, size: int) -> Block | None:
        """Return the smallest free block of at least `size` bytes; None if no free block is that large.

        The last block of an expandable segment, which can still grow, is taken only if no other block fits.
        """
        position = bisect_left(self.free, (size, 0))
        fitting = [self.blocks[start] for _, start in self.free[position : position + 2]]
        if self.expands and fitting and not fitting[0].after:
            fitting.reverse()  # only the last block of the one segment can grow
        return fitting[0] if fitting else None

    def reserve(self, size: int) -> Block:
        """Return a free block of at least `size` bytes from a new segment, or grow the expandable segment to get it."""
        if self.expands and self.segments:
            return self.expand(size)
        total = round_up(size, self.granularity) if self.expands else _segment_size(size)
        block = Block(len(self.segments) << _SEGMENT_SPACING_BITS, total)
        self.segments.append((block.start, total))
        self.add_free(block)
        return block

    def expand(self, size: int) -> Block:
        """Grow the expandable segment until its last block is free and has at least `size` bytes; return that block."""
        start, mapped = self.segments[0]
        last = self.blocks[self.last]
        if last.free:
            self.remove_free(last)
        else:
            last.after = Block(start + mapped, 0, before=last)
            last = last.after
        added = round_up(size - last.size, self.granularity)
        last.size += added
        self.segments[0] = start, mapped + added
        self.add_free(last)
        return last

    def add_free(self, block: Block) -> None:
        """Add a block to the pool's sorted list of free blocks."""
        self.blocks[block.start] = block
        if not block.after:
            self.last = block.start
        insort(self.free, block.key)

    def remove_free(self, block: Block) -> None:
        del self.free[bisect_left(self.free, block.key)]

    def release(self, block: Block) -> None:
        block.free = True
        if block.before and block.before.free:
            self.remove_free(block.before)
            block = self.merge(block.before, block)
        if block.after and block.after.free:
            self.remove_free(block.after)
            block = self.merge(block, block.after)
        self.add_free(block)

    def merge(self, low: Block, high: Block) -> Block:
        """Merge two neighbouring blocks: extend `low` by `high`, which follows it, and return `low`."""
        self.blocks.pop(high.start, None)
        low.size += high.size
        low.after = high.after
        if high.after:
            high.after.before = low
        return low

    def releasable_bytes(self) -> int:
        """Return the bytes that the allocator could give back to the device.

        These are segments that are free as a whole; of an expandable segment, free parts of `granularity` bytes.
        """
        if not self.expands:
            sizes = dict(self.segments)
            return sum(size for size, start in self.free if sizes.get(start) == size)
        unit = self.granularity
        return sum(max((start + size) // unit - -(-start // unit), 0) * unit for size, start in self.free)


def round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _segment_size(size: int) -> int:
    """Return the bytes that the allocator reserves on the device for a request of `size` bytes if no free block fits.

    This is get_allocation_size() in the allocator's source.
    """
    if size <= _SMALL_REQUEST:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < _LARGE_REQUEST else round_up(size, SMALL_SEGMENT)


@dataclass(frozen=True)
class SimulatedMemory:
    """The bytes reserved at the end of a simulation, and how many of them could be given back to the device."""

    reserved: int
    releasable: int


def simulate(replay: Replay, *, expandable: bool) -> SimulatedMemory:
    """Return how much memory the allocator would reserve for the allocations and frees of a trace.

    The simulated allocator releases no segment before the end. `expandable`: use expandable segments instead of
    ordinary ones.
    """
    pools: dict[tuple[int, bool], BlockPool] = {}
    used: dict[int, tuple[BlockPool, Block]] = {}
    for stream, size, row in _requests_of(replay):
        if not size:
            pool, block = used.pop(row)
            pool.release(block)
            continue
        rounded = max(round_up(size, UNIT), UNIT)
        small = rounded <= _SMALL_REQUEST
        pool = pools.setdefault((stream, small), BlockPool(small, expandable))
        used[row] = pool, pool.allocate(rounded)
    return SimulatedMemory(
        reserved=sum(size for pool in pools.values() for _, size in pool.segments),
        releasable=sum(pool.releasable_bytes() for pool in pools.values()),
    )


def _requests_of(replay: Replay) -> list[tuple[int, int, int]]:
    """Return (stream, bytes, row in `Lifetimes`) of each allocation and free, in order of time; a free has 0 bytes.

    Blocks that are older than the trace come first, by address, so that they lie side by side as in the snapshot.
    """
    lives, arenas = replay.lifetimes, BlockArenas(replay)
    # Blocks of one stream never serve another's requests, so each stream has its own pools.
    streams, count = arenas.streams[arenas.by_block], len(replay.trace)
    order = np.argsort(lives.addr, kind="stable")
    # Requests of no bytes get no memory; size 0 also marks a free here.
    order = order[lives.size[order] > 0]
    ended = order[lives.died[order] < count]
    entries = np.concatenate([lives.born[order], lives.died[ended]])
    rows = np.concatenate([order, ended])
    sizes = np.concatenate([lives.size[order], np.zeros(len(ended), np.int64)])
    by_time = np.argsort(entries, kind="stable")
    columns = (streams[rows[by_time]], sizes[by_time], rows[by_time])
    return list(zip(*(column.tolist() for column in columns), strict=True))


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
