"""Measure the reserved memory that is free: how much, in how many blocks, where, and how large the largest block is.

The state at the end of the trace is measured. Whether fragmentation did harm is judged at another moment: when a
request failed, or at the peak (`_decisive_moment`).
"""

import msgspec
import numpy as np

from analyzers.columns import Column, Mask
from analyzers.memory.answers.allocator_state import free_ranges
from analyzers.memory.model import Fragmentation, FreeBlocks, FreeMemory, Moment, Oom
from analyzers.memory.reading.interning import ArenaTable
from analyzers.memory.reading.schema import BlockState
from analyzers.memory.reading.snapshot import DeviceTrace
from analyzers.memory.replay.arenas import BlockArenas, enclosing_segments, pool_name
from analyzers.memory.replay.lifetimes import Replay

SEGMENTS_AT_MOST = 8
_SMALL_REQUEST, SMALL_SEGMENT = 1 << 20, 2 << 20
"""The largest size of a small request in bytes, and the size of the segments that only such requests use.

They are kSmallSize and kSmallBuffer in the CUDA allocator.
"""


def fragmentation(arenas: BlockArenas, oom: Oom | None) -> Fragmentation:
    """Return how much of the reserved memory is free at the end of the trace, where, and in which blocks.

    `oom` is the last failed request of the trace, None if none failed.
    """
    trace = arenas.replay.trace
    size, active = trace.block("size"), trace.block("state") != BlockState.INACTIVE
    split = _is_inactive_split(trace)
    real = not trace.snapshot.made_up_segments
    return Fragmentation(
        reserved_bytes=trace.reserved_bytes,
        allocated_bytes=int(size[active].sum()),
        rounding_bytes=int((size - trace.block("requested"))[active].sum()),
        inactive_split_bytes=int(size[split].sum()),
        largest_free_block_bytes=int(size[~active].max(initial=0)),
        request_bytes=oom.requested_bytes if oom else None,
        made_up_segments=not real,
        pools=_free_by_pool(arenas, split) if real else [],
        segments=_free_by_segment(arenas, split) if real else [],
        decisive=_decisive_moment(arenas.replay, oom) if real else None,
        expandable=bool(trace.segment("expandable").any()) or msgspec.UNSET,
    )


def _decisive_moment(replay: Replay, oom: Oom | None) -> FreeMemory | None:
    """Return the free memory at the moment at which fragmentation is judged; None if it is not known.

    This is the moment when the last request failed (`oom`), or the peak if none failed.
    """
    index = oom.index if oom else replay.peak[1]
    reserved = int(replay.reserved[index]) if index >= 0 else replay.trace.reserved_bytes
    live = int(replay.live_bytes[index]) if index >= 0 else replay.start
    # Less reserved than allocated: the segments of that time are not all known.
    if not replay.trace.has_history or reserved < live:
        return None
    free = free_ranges(replay, index)
    size, usable = free["bytes"], np.ones(len(free["bytes"]), bool)
    if oom:
        usable = _may_serve(replay, oom, free["address"], free["segment_bytes"])
    return FreeMemory(
        moment=Moment.FAILED_REQUEST if oom else Moment.PEAK,
        entry=index,
        reserved_bytes=reserved,
        split_bytes=int(size[usable & free["split"]].sum()),
        largest_bytes=int(size[usable].max(initial=0)),
        device_free_bytes=oom.device_free_bytes if oom else None,
    )


def _may_serve(replay: Replay, oom: Oom, addresses: Column, segment_bytes: Column) -> Mask:
    """Return a mask of the free blocks that the failed request could use: same stream and pool, fitting segment size.

    `addresses` and `segment_bytes` are the address of each free block and the size of its segment. If the segment no
    longer exists at the end of the trace, its stream and pool are not known, and the block counts as usable.
    """
    trace, c = replay.trace, replay.trace.snapshot.columns
    row = enclosing_segments(trace, addresses)
    own, of_block = int(trace.entry("arena")[oom.index]), c["segment_arena"][row]
    same: Mask = c["arena_stream"][of_block] == c["arena_stream"][own]
    if tuple(c["arena_pool"][own]) != ArenaTable.UNKNOWN_POOL:
        same &= (c["arena_pool"][of_block] == c["arena_pool"][own]).all(axis=1)
    small: Mask = (segment_bytes <= SMALL_SEGMENT) & (oom.requested_bytes > _SMALL_REQUEST)
    return (same | (row < 0)) & ~small


def _is_inactive_split(trace: DeviceTrace) -> Mask:
    """Return a mask of the snapshot's free blocks whose segments cannot be released because other blocks use them."""
    segment = trace.block("segment")
    active: Mask = trace.block("state") != BlockState.INACTIVE
    return ~active & np.isin(segment, segment[active])


def _free_by_pool(arenas: BlockArenas, split: Mask) -> list[FreeBlocks]:
    """Return the free blocks of each (pool, stream) pair, the pair with the most free bytes first.

    The allocator reuses a free block only for requests of the same pool and stream. `split` is the mask of
    `_is_inactive_split`.
    """
    trace = arenas.replay.trace
    arena = trace.snapshot.columns["segment_arena"][trace.block("segment")]
    groups = [_free_blocks(arenas, split, number, arena == number) for number in arenas.used.tolist()]
    return sorted((group for group in groups if group.count), key=lambda g: (-g.free_bytes, g.pool, g.stream))


def _free_by_segment(arenas: BlockArenas, split: Mask) -> list[FreeBlocks]:
    """Return the free memory in segments that also hold live blocks, for the segments with the most free memory.

    `split` is the mask of `_is_inactive_split`.
    """
    trace = arenas.replay.trace
    c, segment = trace.snapshot.columns, trace.block("segment")
    # Counted over the rows of all devices' segments, as block_segment holds those rows.
    free = np.bincount(segment[split], trace.block("size")[split], len(c["segment_total"]))
    worst = [number for number in np.argsort(-free, kind="stable")[:SEGMENTS_AT_MOST].tolist() if free[number]]
    return [
        _free_blocks(arenas, split, int(c["segment_arena"][row]), segment == row, int(c["segment_address"][row]))
        for row in worst
    ]


def _free_blocks(
    arenas: BlockArenas, split: Mask, arena: int, selected: Mask, segment: int | None = None
) -> FreeBlocks:
    """Return the number, the bytes and the largest size of the free blocks among some of the snapshot's blocks.

    `selected` is a mask of these blocks, which all belong to the arena with the index `arena`; an arena is a (stream,
    pool) pair. `split` is the mask of `_is_inactive_split`; `segment` is the address of the segment if all are in the
    same one.
    """
    trace = arenas.replay.trace
    sizes = trace.block("size")[selected & (trace.block("state") == BlockState.INACTIVE)]
    return FreeBlocks(
        pool=pool_name(*arenas.pools[arena].tolist()),
        stream=int(arenas.streams[arena]),
        segment=segment,
        free_bytes=int(sizes.sum()),
        split_bytes=int(trace.block("size")[selected & split].sum()),
        count=len(sizes),
        largest_bytes=int(sizes.max(initial=0)),
    )
