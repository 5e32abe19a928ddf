"""Reserved memory that is free, and of what use it is: in how many pieces, where, and how large the largest is."""

import numpy as np

from analyzers.columns import Column
from analyzers.memory.model import DeviceTrace, Fragmentation, FreePieces, Oom
from analyzers.memory.replay.arenas import Placed, pool_name, used

SEGMENTS_AT_MOST = 8


def fragmentation(placed: Placed, oom: Oom | None) -> Fragmentation:
    """How the segments are used at the end of the trace."""
    trace = placed.replay.trace
    size, active = trace.block("size"), trace.block("state") > 0
    split = split_blocks(trace)
    real = not trace.snapshot.made_up_segments
    return Fragmentation(
        reserved_bytes=trace.reserved_bytes,
        allocated_bytes=int(size[active].sum()),
        rounding_bytes=int((size - trace.block("requested"))[active].sum()),
        inactive_split_bytes=int(size[split].sum()),
        largest_free_block_bytes=int(size[~active].max(initial=0)),
        request_bytes=oom.requested_bytes if oom else None,
        made_up_segments=not real,
        pools=by_pool(placed, split) if real else [],
        segments=by_segment(placed, split) if real else [],
    )


def split_blocks(trace: DeviceTrace) -> Column:
    """Whether each block is free in a segment that others still use, so that it cannot be given back."""
    segment, active = trace.block("segment"), trace.block("state") > 0
    found: Column = ~active & np.isin(segment, segment[active])
    return found


def by_pool(placed: Placed, split: Column) -> list[FreePieces]:
    """Of each pool and stream, as only its own blocks are used again: the most free first."""
    trace = placed.replay.trace
    place = trace.snapshot.columns["segment_place"][trace.block("segment")]
    found = [pieces(placed, split, int(one), place == one) for one in used(placed)]
    return sorted((one for one in found if one.pieces), key=lambda one: (-one.free_bytes, one.pool, one.stream))


def by_segment(placed: Placed, split: Column) -> list[FreePieces]:
    """The segments in use with the most free."""
    trace = placed.replay.trace
    c, segment = trace.snapshot.columns, trace.block("segment")
    free = np.bincount(segment[split], trace.block("size")[split], len(c["segment_total"]))
    worst = [number for number in np.argsort(-free, kind="stable")[:SEGMENTS_AT_MOST].tolist() if free[number]]
    return [
        pieces(placed, split, int(c["segment_place"][one]), segment == one, int(c["segment_address"][one]))
        for one in worst
    ]


def pieces(placed: Placed, split: Column, place: int, chosen: Column, segment: int | None = None) -> FreePieces:
    """What is free of some blocks, which lie in one place."""
    trace = placed.replay.trace
    sizes = trace.block("size")[chosen & (trace.block("state") == 0)]
    return FreePieces(
        pool=pool_name(*placed.pools[place].tolist()),
        stream=int(placed.streams[place]),
        segment=segment,
        free_bytes=int(sizes.sum()),
        split_bytes=int(trace.block("size")[chosen & split].sum()),
        pieces=len(sizes),
        largest_bytes=int(sizes.max(initial=0)),
    )
