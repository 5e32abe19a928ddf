"""Measure the reserved memory that no request can use, and say what to do about it."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from analyzers.columns import Column, Mask
from analyzers.memory.allocator_state import free_ranges
from analyzers.memory.arenas import BlockArenas, enclosing_segments, pool_name
from analyzers.memory.evidence import BATCH, COMMON_POOL, fact, pool_words, ranks_of, saving_by
from analyzers.memory.lifetimes import Replay
from analyzers.memory.model import (
    Device,
    Fragmentation,
    FreeBlocks,
    FreeMemory,
    Moment,
    Oom,
    OomPattern,
    PoolUse,
    Remedy,
)
from analyzers.memory.reading.interning import ArenaTable
from analyzers.memory.snapshot import BlockState, DeviceTrace
from analyzers.report import Evidence, Finding, Severity
from analyzers.words import EXPANDABLE_SEGMENTS, quantity, share, size, uncapitalised

# Measure the reserved memory that is free: how much, in how many blocks, where, and how large the largest block is.
#
# The state at the end of the trace is measured. Whether fragmentation did harm is judged at another moment: when a
# request failed, or at the peak (`_decisive_moment`).

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


_SPLIT_SHARE_AT_LEAST, _SPLIT_BYTES_AT_LEAST = 0.2, 64 << 20
_WORTH_JOINING = 0.1
"""The share of the reserved memory from which on fragmented free memory explains why a request failed."""
_PLACES_SHOWN = 3
_FEWER_SIZES = "Allocate fewer different sizes: pad batches to a few lengths."


def fragmentation_findings(device: Device) -> Iterator[Finding]:
    """Yield a finding if a failed request would have fitted into fragmented memory, or if the peak was fragmented."""
    free = device.fragmentation.decisive
    if free is None:
        return
    match free.moment:
        case Moment.FAILED_REQUEST if device.oom and _is_fragmented(device, device.oom):
            yield _blocked_finding(device, free, device.oom.requested_bytes)
        case Moment.PEAK if free.split_bytes >= max(_SPLIT_BYTES_AT_LEAST, _SPLIT_SHARE_AT_LEAST * free.reserved_bytes):
            yield _split_finding(device, free)


def _would_have_served(free: FreeMemory, request: int) -> bool:
    """Return whether a request fits into all free memory together, but into no single free block.

    All free memory is the free memory in segments that other blocks use, plus the free memory of the device: expandable
    segments could join them.
    """
    return free.largest_bytes < request <= free.split_bytes + (free.device_free_bytes or 0)


def is_served_by_pieces(device: Device, oom: Oom) -> bool:
    """Return whether joining free memory would have satisfied a request, and no estimate contradicts it."""
    saving = saving_by(device, Remedy.EXPANDABLE_SEGMENTS)
    enough = saving is None or saving.frees_bytes + oom.device_free_bytes >= oom.requested_bytes
    return enough and _is_fragmented(device, oom)


def _is_fragmented(device: Device, oom: Oom) -> bool:
    """Return whether free memory was enough for a request but fragmented, and enough to explain the failure.

    Where earlier steps had not needed as much, a few per cent would only move the failure to one of the next requests.
    """
    free = device.fragmentation.decisive
    if free is None or not _would_have_served(free, oom.requested_bytes):
        return False
    return oom.pattern is OomPattern.STEADY or free.split_bytes >= _WORTH_JOINING * free.reserved_bytes


def _blocked_finding(device: Device, free: FreeMemory, request: int) -> Finding:
    """Return the finding that a request failed only because free memory was fragmented."""
    return Finding(
        id="memory.fragmentation",
        severity=Severity.ERROR,
        title=f"A request for {size(request)} failed although {size(free.split_bytes)} of reserved memory was free: the"
        f" largest free block was {size(free.largest_bytes)}",
        why=f"PyTorch's allocator had reserved {size(free.reserved_bytes)}. {size(free.split_bytes)} of it was free,"
        " but fragmented: it lay between blocks in use, so no free block was large enough, and none could be given"
        " back to the device.",
        next=defragment(device),
        ranks=ranks_of(device),
        step=device.step,
        evidence=list(evidence_of(device, free)),
        confidence=0.9,
    )


def _split_finding(device: Device, free: FreeMemory) -> Finding:
    return Finding(
        id="memory.fragmentation",
        severity=Severity.WARNING,
        title=f"{size(free.split_bytes)} of the memory reserved at the peak was free in segments that tensors also use",
        why=f"At the peak PyTorch's allocator had reserved {size(free.reserved_bytes)}. {size(free.split_bytes)} of it"
        f" ({share(free.split_bytes, free.reserved_bytes)}) was free between blocks in use, so it could not be given"
        f" back to the device. The largest free block was {size(free.largest_bytes)}.",
        next=f"A request larger than {size(free.largest_bytes)} may fail although this memory is free."
        f" {defragment(device)}",
        ranks=ranks_of(device),
        step=device.step,
        evidence=list(evidence_of(device, free)),
        confidence=0.7,
    )


def evidence_of(device: Device, free: FreeMemory) -> Iterator[Evidence]:
    """Yield the fragmented bytes at the failed request or the peak, then the pools and segments at the end."""
    yield fact(
        device, f"free in segments in use, after entry {free.entry} of the allocation history: {size(free.split_bytes)}"
    )
    use = device.fragmentation
    for place in [*use.pools[:_PLACES_SHOWN], *use.segments[:_PLACES_SHOWN]]:
        yield fact(device, f"when the snapshot was taken, {_free_place(place)}")


def defragment(device: Device) -> str:
    """Return advice against fragmentation: expandable segments, unless they are in use or would free nothing."""
    if device.fragmentation.expandable:
        return f"{_FEWER_SIZES} Segments are expandable already."
    saving = saving_by(device, Remedy.EXPANDABLE_SEGMENTS)
    if saving and not saving.frees_bytes:
        return f"{_FEWER_SIZES} The allocator's setting expandable_segments would free nothing here ({saving.model})."
    sentence = f"Set {EXPANDABLE_SEGMENTS}."
    if saving is None:
        return sentence
    usable = f" {size(saving.frees_bytes)} would then be usable ({saving.model})."
    return f"{sentence} Of the {size(saving.of_bytes)} that were free like this when the snapshot was taken,{usable}"


def _free_place(free: FreeBlocks) -> str:
    """Return a phrase on the free memory in one pool or segment that cannot be released to the device."""
    where = (
        f"segment {free.segment:#x}" if free.segment is not None else f"{pool_words(free.pool)}, stream {free.stream}"
    )
    return (
        f"{where}: {size(free.split_bytes)} free in segments in use, {quantity(free.count, 'free block')},"
        f" the largest {size(free.largest_bytes)}"
    )


_UNUSED_SHARE_AT_LEAST, _UNUSED_BYTES_AT_LEAST = 0.25, 256 << 20
_EVIDENCE_SHOWN = 4


def unused_memory_findings(device: Device) -> Iterator[Finding]:
    """Yield the findings about reserved memory that is not used; none for a CPU, which has no real segments."""
    if device.fragmentation.made_up_segments:
        return
    if device.retries:
        yield _retries_finding(device)
    if device.idle_threshold:
        yield _threshold_finding(device, device.idle_threshold)
    unused_pools = [pool for pool in device.pools if pool.pool != COMMON_POOL and not pool.allocated_bytes]
    if sum(pool.reserved_bytes for pool in unused_pools) >= _UNUSED_BYTES_AT_LEAST:
        yield _unused_pools_finding(device, unused_pools)
    unused = device.reserved_bytes - device.fragmentation.allocated_bytes
    # If the list of blocks misses some that the history has, what looks unused may hold tensors.
    if device.consistent and unused >= max(_UNUSED_BYTES_AT_LEAST, _UNUSED_SHARE_AT_LEAST * device.reserved_bytes):
        yield _unused_cache_finding(device, unused)


def _retries_finding(device: Device) -> Finding:
    freed = sum(retry.freed_bytes for retry in device.retries)
    return Finding(
        id="memory.retries",
        severity=Severity.WARNING,
        title=f"{quantity(len(device.retries), 'allocation')} had to wait until the allocator freed cached memory",
        why="The device was full. To make room, PyTorch's allocator gave cached memory that no tensor used back to the"
        f" driver, {size(freed)} in total. Each time it first waits until the device has finished all work, which"
        " makes the step longer.",
        next=f"Leave more memory free: use a smaller batch ({BATCH})"
        + ("." if device.fragmentation.expandable else f", or set {EXPANDABLE_SEGMENTS}."),
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(
                device,
                f"before entry {retry.index} of the allocation history: {size(retry.freed_bytes)} given back to the"
                " driver",
            )
            for retry in device.retries[:_EVIDENCE_SHOWN]
        ],
        confidence=0.8,
    )


def _threshold_finding(device: Device, threshold: str) -> Finding:
    return Finding(
        id="memory.idle_threshold",
        severity=Severity.INFO,
        title=f"garbage_collection_threshold:{threshold} has no effect unless the memory of the process is limited",
        why="The allocator compares its reserved memory with this share of what the process may use, and does so only"
        " if that is limited to a fraction of the device. No such limit is in the settings of the snapshot.",
        next="Remove the setting, or call torch.cuda.memory.set_per_process_memory_fraction() with a fraction below 1."
        " It frees cached memory earlier, and gives no memory that the allocator would not find by itself.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"the allocator's settings: garbage_collection_threshold {threshold}")],
        confidence=0.7,
    )


def _unused_pools_finding(device: Device, pools: Sequence[PoolUse]) -> Finding:
    """Return the finding that private memory pools (of CUDA graphs or MemPools) keep segments that no block uses."""
    reserved = sum(pool.reserved_bytes for pool in pools)
    return Finding(
        id="memory.dead_pool",
        severity=Severity.WARNING,
        title=f"{size(reserved)} is reserved in private memory pools that hold no tensor",
        why=f"No block is allocated in {', '.join(pool_words(pool.pool) for pool in pools)}. Private pools belong to"
        " captured CUDA graphs or to torch.cuda.MemPool. They keep their memory, and nothing else can use it.",
        next="Delete the CUDA graph or the torch.cuda.MemPool that owns the pool, then call torch.cuda.empty_cache():"
        f" until then the {size(reserved)} stay reserved. Or capture all graphs into one pool (the pool argument of"
        " torch.cuda.graph).",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(device, f"{pool_words(pool.pool)}: {size(pool.reserved_bytes)} reserved")
            for pool in pools[:_EVIDENCE_SHOWN]
        ],
        confidence=0.7,
    )


def _unused_cache_finding(device: Device, unused: int) -> Finding:
    """Return the finding that much of the reserved memory (`unused` bytes) is not in use at the end of the trace."""
    used = device.fragmentation.allocated_bytes
    return Finding(
        id="memory.reserved",
        severity=Severity.INFO,
        title=f"{size(unused)} of reserved memory was not in use when the snapshot was taken",
        why=f"PyTorch's allocator had reserved {size(device.reserved_bytes)} of the device, but only {size(used)} of it"
        f" ({share(used, device.reserved_bytes)}) held tensors. It keeps the rest for later allocations, so other"
        " processes and libraries cannot use it.",
        next=f"Nothing to do, unless another process or library needs this memory. {_giving_back(device, unused)}",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"most memory reserved at any time: {size(device.peak_reserved_bytes)}")],
        confidence=0.8,
    )


def _giving_back(device: Device, unused: int) -> str:
    """Return the sentences on how to give `unused` bytes back to the device, as far as `empty_cache` can release them.

    `empty_cache` cannot release free memory in segments that also hold tensors.
    """
    kept = device.fragmentation.inactive_split_bytes
    if kept >= unused:
        return (
            "torch.cuda.empty_cache() would give back none of it: all of it is in segments that also hold tensors."
            f" To make it usable for allocations of any size: {uncapitalised(defragment(device))}"
        )
    clause = f", but not the {size(kept)} in segments that also hold tensors" if kept else ""
    return (
        "In that case call torch.cuda.empty_cache() after the memory peak, which would give back"
        f" {size(unused - kept)}{clause}. If the next step needs this memory, it is reserved again."
    )
