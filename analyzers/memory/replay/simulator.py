"""PyTorch's caching allocator for CUDA, without memory: what would be reserved for the same requests.

By what its source (c10/cuda/CUDACachingAllocator.cpp) says of sizes, best fit, splitting and joining; without limits on
splitting, garbage collection and pressure. Blocks that are older than a recording are laid down first, by address.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

import numpy as np

from analyzers.memory.replay.arenas import Placed
from analyzers.memory.replay.lifetimes import Replay

MIB = 1 << 20
UNIT, SMALL = 512, MIB
SMALL_SEGMENT, LARGE_SEGMENT, LARGE_REQUEST = 2 * MIB, 20 * MIB, 10 * MIB


@dataclass
class Block:
    """Part of a segment; blocks of one segment are linked."""

    start: int
    size: int
    free: bool = True
    before: "Block | None" = None
    after: "Block | None" = None

    @property
    def key(self) -> tuple[int, int]:
        return self.size, self.start


@dataclass
class Pool:
    """The small or the large blocks of one stream."""

    small: bool
    expands: bool
    free: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[int, Block] = field(default_factory=dict)
    segments: list[tuple[int, int]] = field(default_factory=list)
    last: int = 0
    """Start of the block at the end of the one segment that expands."""

    @property
    def handle(self) -> int:
        """Bytes that an expandable segment maps at once."""
        return SMALL_SEGMENT if self.small else LARGE_SEGMENT

    def take(self, size: int) -> Block:
        block = self.fitting(size) or self.more(size)
        self.leave(block)
        rest = block.size - size
        if rest >= UNIT if self.small or self.expands else rest > SMALL:
            tail = Block(block.start + size, rest, before=block, after=block.after)
            if block.after:
                block.after.before = tail
            block.size, block.after = size, tail
            self.enter(tail)
        block.free = False
        return block

    def fitting(self, size: int) -> Block | None:
        """The smallest free block that is large enough; what can still grow comes last."""
        place = bisect_left(self.free, (size, 0))
        found = [self.blocks[start] for _, start in self.free[place : place + 2]]
        if self.expands and found and not found[0].after:
            found.reverse()  # only the last block of the one segment can grow
        return found[0] if found else None

    def more(self, size: int) -> Block:
        """A new segment, or more of the one that grows."""
        if not self.expands or not self.segments:
            wanted = -(-size // self.handle) * self.handle if self.expands else segment_size(size)
            block = Block(len(self.segments) << 44, wanted)
            self.segments.append((block.start, wanted))
            self.enter(block)
            return block
        start, mapped = self.segments[0]
        last = self.blocks[self.last]
        if last.free:
            self.leave(last)
        else:
            last.after = Block(start + mapped, 0, before=last)
            last = last.after
        grown = -(-(size - last.size) // self.handle) * self.handle
        last.size += grown
        self.segments[0] = start, mapped + grown
        self.enter(last)
        return last

    def enter(self, block: Block) -> None:
        self.blocks[block.start] = block
        if not block.after:
            self.last = block.start
        insort(self.free, block.key)

    def leave(self, block: Block) -> None:
        del self.free[bisect_left(self.free, block.key)]

    def give(self, block: Block) -> None:
        """Free a block, and join it with free neighbours."""
        block.free = True
        if block.before and block.before.free:
            self.leave(block.before)
            block = self.join(block.before, block)
        if block.after and block.after.free:
            self.leave(block.after)
            block = self.join(block, block.after)
        self.enter(block)

    def join(self, low: Block, high: Block) -> Block:
        self.blocks.pop(high.start, None)
        low.size += high.size
        low.after = high.after
        if high.after:
            high.after.before = low
        return low

    def loose(self) -> int:
        """Bytes that can be given back: free segments, or of one that expands the free handles."""
        sizes = dict(self.segments)
        if not self.expands:
            return sum(size for size, start in self.free if sizes.get(start) == size)
        handle = self.handle
        return sum(max((start + size) // handle - -(-start // handle), 0) * handle for size, start in self.free)


def segment_size(size: int) -> int:
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < LARGE_REQUEST else -(-size // SMALL_SEGMENT) * SMALL_SEGMENT


@dataclass(frozen=True)
class Outcome:
    """Bytes reserved in the end, and those of them that can be given back."""

    reserved: int
    loose: int


def allocated(replay: Replay, *, expands: bool) -> Outcome:
    """What the allocator would reserve for what was asked of it in a recording, nothing being given back."""
    pools: dict[tuple[int, bool], Pool] = {}
    held: dict[int, tuple[Pool, Block]] = {}
    for stream, size, number in changes_of(replay):
        if not size:
            pool, block = held.pop(number)
            pool.give(block)
            continue
        rounded = max(-(-size // UNIT) * UNIT, UNIT)
        pool = pools.setdefault((stream, rounded <= SMALL), Pool(rounded <= SMALL, expands))
        held[number] = pool, pool.take(rounded)
    every = pools.values()
    return Outcome(sum(size for pool in every for _, size in pool.segments), sum(pool.loose() for pool in every))


def changes_of(replay: Replay) -> list[tuple[int, int, int]]:
    """(stream, bytes, number) of allocations in order, bytes 0 of frees; what is older than the trace comes first."""
    lives, placed = replay.lifetimes, Placed(replay)
    streams, count = placed.streams[placed.of_life], len(replay.trace)
    order = np.argsort(lives.addr, kind="stable")
    order = order[lives.size[order] > 0]
    ended = order[lives.died[order] < count]
    moments = np.concatenate([lives.born[order], lives.died[ended]])
    numbers = np.concatenate([order, ended])
    sizes = np.concatenate([lives.size[order], np.zeros(len(ended), np.int64)])
    by_time = np.argsort(moments, kind="stable")
    columns = (streams[numbers[by_time]], sizes[by_time], numbers[by_time])
    return list(zip(*(column.tolist() for column in columns), strict=True))
