"""Find the stream and memory pool of each block, and compute the live bytes of each (stream, pool) pair over time.

A (stream, pool) pair is called an arena. The allocator reuses a freed block only within its arena, so a request in one
arena cannot use free memory of another.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column, Integers
from analyzers.memory.lifetimes import BEFORE, Replay
from analyzers.memory.model import PoolUse, StreamUse
from analyzers.memory.reading.interning import ArenaTable
from analyzers.memory.snapshot import BlockState, DeviceTrace

_POOLS_AT_MOST = 32
_UNKNOWN_POOL = "?"
"""The name of a memory pool that is not known.

Trace entries do not record the pool before torch 2.12, and a segment that was released is no longer in the snapshot to
show it.
"""
_NO_ARENA = -1


@dataclass(frozen=True)
class UsageCurve:
    """The live bytes of a set of blocks over the trace.

    `live_bytes[i]` is their sum after trace entry `entries[i]`, and `start` is their sum before the trace. `entries`
    has only the trace entries that allocate or free one of these blocks, in order.
    """

    start: int
    entries: Integers
    live_bytes: Integers

    @property
    def peak(self) -> tuple[int, int]:
        """The highest live bytes, and the index of the first trace entry after which they are reached.

        The index is -1 if the live bytes never exceed the bytes before the trace.
        """
        if not len(self.live_bytes) or self.live_bytes.max() <= self.start:
            return self.start, BEFORE
        position = int(self.live_bytes.argmax())
        return int(self.live_bytes[position]), int(self.entries[position])

    @property
    def end(self) -> int:
        return int(self.live_bytes[-1]) if len(self.live_bytes) else self.start

    def after(self, instants: Integers) -> Integers:
        levels = np.concatenate([[self.start], self.live_bytes])
        return levels[np.searchsorted(self.entries, instants, side="right")]


@dataclass(frozen=True)
class BlockArenas:
    """The arena, a (stream, pool) pair of the allocator, of each block and of each trace entry of one device.

    An arena is given as an index: its row in the snapshot's columns `arena_stream` and `arena_pool`, and in `pools`,
    `streams` and the names of this class.
    """

    replay: Replay

    @cached_property
    def by_block(self) -> Column:
        """The index of each block's arena, in the order of the rows of `Lifetimes`; -1 if it is not known.

        The trace entry that allocated a block records its stream and, since torch 2.12, its pool. Without a recorded
        pool, the arena is taken from the segment that contains the block's address at the end of the trace, if there is
        one.
        """
        trace = self.replay.trace
        if trace.is_digested:
            return trace.lifetime("arena")
        lives, recorded = self.replay.lifetimes, trace.entry("arena")
        entry = np.where(lives.born != BEFORE, lives.born, lives.died)  # of an older block, the entry that freed it
        known = entry < len(recorded)
        arena = np.full(len(entry), _NO_ARENA, np.int32)
        arena[known] = recorded[entry[known]]
        without_pool = np.ones(len(arena), bool)
        without_pool[known] = self.pools[arena[known], 0] == ArenaTable.UNKNOWN_POOL[0]
        segment = enclosing_segments(trace, lives.addr)
        in_segment = without_pool & (segment >= 0)
        arena[in_segment] = trace.snapshot.columns["segment_arena"][segment[in_segment]]
        return arena

    @cached_property
    def by_entry(self) -> Column:
        """The index of the arena of the block that each trace entry allocates or frees; -1 for other entries."""
        if self.replay.trace.is_digested:
            return self.replay.trace.entry("entry_arena")
        lives, count = self.replay.lifetimes, len(self.replay.trace)
        arena = np.full(count + 1, _NO_ARENA, np.int32)
        # Blocks alive at the end "die" at entry `count`: that slot takes their arena and is cut off.
        arena[lives.died] = self.by_block
        inside = lives.born != BEFORE
        arena[lives.born[inside]] = self.by_block[inside]
        return arena[:count]

    @property
    def pools(self) -> Integers:
        """The pool of each arena as two numbers, with one row per arena."""
        return self.replay.trace.snapshot.columns["arena_pool"]

    @property
    def streams(self) -> Integers:
        """The number of the CUDA stream of each arena, with one row per arena."""
        return self.replay.trace.snapshot.columns["arena_stream"]

    @cached_property
    def pool_names(self) -> Column:
        return np.array([pool_name(*pool) for pool in self.pools.tolist()], object)

    @cached_property
    def stream_names(self) -> Column:
        """The name of each arena's CUDA stream, such as `stream 0`, with one row per arena."""
        return np.array([f"stream {stream}" for stream in self.streams.tolist()], object)

    def usage(self, arenas: Integers) -> UsageCurve:
        """Return the live bytes over time of all blocks in the given arenas together."""
        lives = self.replay.lifetimes
        wanted = np.zeros(len(self.streams) + 1, bool)  # one more, for NO_ARENA = -1
        wanted[arenas] = True
        entries = np.flatnonzero(wanted[self.by_entry])
        older = (lives.born == BEFORE) & wanted[self.by_block]
        start = int(lives.size[older].sum())
        return UsageCurve(start, entries, start + np.cumsum(self.replay.changes[entries]))

    @cached_property
    def used(self) -> Integers:
        """The indexes of the arenas in which this device has segments or blocks, at most `_POOLS_AT_MOST`.

        Arenas come in descending order of their bytes (segments, and all blocks that ever lived).
        """
        trace, lives, count = self.replay.trace, self.replay.lifetimes, len(self.streams)
        arena = np.concatenate([trace.segment("arena"), self.by_block])
        size = np.concatenate([trace.segment("total"), lives.size])
        # Shifted by one, so that NO_ARENA = -1 counts as 0 and is cut off.
        total = np.bincount(arena + 1, size, count + 1)[1:]
        occurring = np.flatnonzero(np.bincount(arena + 1, minlength=count + 1)[1:])
        return occurring[np.argsort(-total[occurring], kind="stable")][:_POOLS_AT_MOST]


def pool_name(first: int, second: int) -> str:
    """Return the name of a memory pool from the two numbers that identify it.

    `0.0` is the default pool, `n.0` the pool of a captured CUDA graph, `0.n` the pool of a user's torch.cuda.MemPool,
    and `?` an unknown pool.
    """
    return _UNKNOWN_POOL if (first, second) == ArenaTable.UNKNOWN_POOL else f"{first}.{second}"


def enclosing_segments(trace: DeviceTrace, addresses: Column) -> Integers:
    """Return, for each address, the segment that contains it at the end of the trace; -1 if none does.

    A segment is given as its row in the columns `segment_*`.
    """
    c = trace.snapshot.columns
    order = trace.segments[np.argsort(trace.segment("address"), kind="stable")]
    if not len(order):
        return np.full(len(addresses), -1)
    position = np.searchsorted(c["segment_address"][order], addresses, side="right") - 1
    segment = order[np.maximum(position, 0)]
    offset, total = addresses - c["segment_address"][segment], c["segment_total"][segment].astype(np.uint64)
    return np.where((position >= 0) & (offset < total), segment, -1)


def stream_uses(arenas: BlockArenas) -> list[StreamUse]:
    uses = [_stream_use(arenas, stream) for stream in np.unique(arenas.streams[arenas.used]).tolist()]
    return sorted(uses, key=lambda use: (-use.peak_bytes, use.stream))[:_POOLS_AT_MOST]


def _stream_use(arenas: BlockArenas, stream: int) -> StreamUse:
    """Return the memory use of one CUDA stream, over all its pools."""
    curve = arenas.usage(np.flatnonzero(arenas.streams == stream))
    peak, index = curve.peak
    return StreamUse(stream=stream, start_bytes=curve.start, peak_bytes=peak, peak_index=index, end_bytes=curve.end)


def pool_uses(arenas: BlockArenas) -> list[PoolUse]:
    return sorted(_each_pool(arenas), key=lambda pool: (-pool.reserved_bytes, pool.pool, pool.stream))[:_POOLS_AT_MOST]


def _each_pool(arenas: BlockArenas) -> Iterator[PoolUse]:
    """Yield the memory use of each arena in `arenas.used`; an arena is a (stream, pool) pair."""
    trace, c = arenas.replay.trace, arenas.replay.trace.snapshot.columns
    active = trace.block("state") != BlockState.INACTIVE
    for arena in arenas.used.tolist():
        segments = trace.segments[trace.segment("arena") == arena]
        curve = arenas.usage(np.array([arena]))
        peak, index = curve.peak
        yield PoolUse(
            pool=pool_name(*arenas.pools[arena].tolist()),
            stream=int(arenas.streams[arena]),
            segments=len(segments),
            reserved_bytes=int(c["segment_total"][segments].sum()),
            allocated_bytes=int(trace.block("size")[active & np.isin(trace.block("segment"), segments)].sum()),
            start_bytes=curve.start,
            peak_bytes=peak,
            peak_index=index,
            end_bytes=curve.end,
        )
