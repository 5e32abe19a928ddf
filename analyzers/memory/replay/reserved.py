"""What the allocator took from the device, over time, and when it had to give back."""

import numpy as np

from analyzers.columns import Column
from analyzers.memory.model import DeviceTrace, Retry
from analyzers.memory.reading.reader import ACTION_OF

GROWS = [ACTION_OF[name] for name in ("segment_alloc", "segment_map")]
SHRINKS = [ACTION_OF[name] for name in ("segment_free", "segment_unmap")]
SEGMENT_FREE = ACTION_OF["segment_free"]


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
