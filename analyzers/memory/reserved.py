"""What the allocator took from the device, over time: segments, streams, pools, and when it had to give back."""

from collections.abc import Iterator

import numpy as np

from analyzers.memory.model import DeviceTrace, Pool, Retry
from analyzers.memory.read import ACTION_OF
from analyzers.memory.replay import Lifetimes, Replay
from analyzers.memory.tables import Column

GROWS = [ACTION_OF[name] for name in ("segment_alloc", "segment_map")]
SHRINKS = [ACTION_OF[name] for name in ("segment_free", "segment_unmap")]
SEGMENT_FREE = ACTION_OF["segment_free"]
POOLS_AT_MOST = 32


def reserved(trace: DeviceTrace) -> Column:
    """Reserved bytes after each entry: the segments at the end, less what changed since."""
    action = trace.entry("action")
    grown: Column = np.isin(action, GROWS).astype(np.int64) - np.isin(action, SHRINKS)
    total = np.cumsum(grown * trace.entry("size"))
    curve: Column = total + (trace.reserved_bytes - (total[-1] if len(total) else 0))
    return curve


def retries(trace: DeviceTrace) -> list[Retry]:
    """When an allocation only came about, or failed, after cached segments had been given back for it.

    The allocator writes both in one breath: `segment_free`s and what they made room for share one stack, which those
    of `empty_cache` do not.
    """
    action, stack = trace.entry("action"), trace.entry("stack")
    wanted = np.flatnonzero(np.isin(action, [ACTION_OF["segment_alloc"], ACTION_OF["oom"]]))
    wanted = wanted[wanted > 0]
    after = wanted[(action[wanted - 1] == SEGMENT_FREE) & (stack[wanted - 1] == stack[wanted]) & (stack[wanted] != 0)]
    return [Retry(index=int(index), freed_bytes=freed_before(trace, int(index))) for index in after]


def freed_before(trace: DeviceTrace, index: int) -> int:
    """Bytes of the segments given back directly before an entry."""
    others = np.flatnonzero(trace.entry("action")[:index] != SEGMENT_FREE)
    start = int(others[-1]) + 1 if len(others) else 0
    return int(trace.entry("size")[start:index].sum())


def pools(replay: Replay) -> list[Pool]:
    """Each (pool, stream) that has segments at the end, the largest first; pool 0.0 is the common one."""
    found = list(each_pool(replay))
    return sorted(found, key=lambda pool: (-pool.reserved_bytes, pool.pool, pool.stream))[:POOLS_AT_MOST]


def each_pool(replay: Replay) -> Iterator[Pool]:
    trace, c = replay.trace, replay.trace.snapshot.columns
    keys = np.column_stack([c["segment_pool"], c["segment_stream"]])[trace.segments]
    known, inverse = np.unique(keys, axis=0, return_inverse=True)
    owner = owners(trace, replay.lifetimes, inverse.reshape(-1))
    for number, (first, second, stream) in enumerate(known.tolist()):
        rows = trace.segments[inverse.reshape(-1) == number]
        mine = np.isin(trace.block("segment"), rows)
        active = mine & (trace.block("state") > 0)
        yield Pool(
            pool=f"{first}.{second}",
            stream=stream,
            segments=len(rows),
            reserved_bytes=int(c["segment_total"][rows].sum()),
            allocated_bytes=int(trace.block("size")[active].sum()),
            peak_bytes=peak_of(replay, np.flatnonzero(owner == number)),
        )


def owners(trace: DeviceTrace, lives: Lifetimes, group: Column) -> Column:
    """The group of the segment around each block that ever lived; -1 where the segment is gone."""
    c = trace.snapshot.columns
    address = c["segment_address"][trace.segments]
    order = np.argsort(address)
    if not len(order):
        return np.full(len(lives.addr), -1)
    place = np.searchsorted(address[order], lives.addr, side="right") - 1
    segment = order[np.maximum(place, 0)]
    inside = (place >= 0) & (
        lives.addr - address[segment] < c["segment_total"][trace.segments][segment].astype(np.uint64)
    )
    return np.where(inside, group[segment], -1)


def peak_of(replay: Replay, rows: Column) -> int:
    """The most bytes that some blocks held together."""
    lives, count = replay.lifetimes, len(replay.trace)
    change = np.zeros(count + 2, np.int64)
    np.add.at(change, lives.born[rows] + 1, lives.size[rows])
    np.subtract.at(change, lives.died[rows] + 1, lives.size[rows])
    return int(np.cumsum(change)[: count + 1].max(initial=0))
