"""How much memory the allocator had reserved after each entry, and when it had to give segments back for a request."""

import numpy as np

from analyzers.columns import Integers
from analyzers.memory.model import Retry
from analyzers.memory.reading.schema import RESERVING, RETURNING, Action
from analyzers.memory.reading.snapshot import DeviceTrace


def reserved_bytes(trace: DeviceTrace) -> Integers:
    """Return the reserved bytes after each entry.

    The segments of the snapshot give the value at the end, from which the entries are summed backwards: a trace that
    begins late does not know its start.
    """
    action = trace.entry("action")
    sign = np.isin(action, RESERVING).astype(np.int64) - np.isin(action, RETURNING)
    change = np.cumsum(sign * trace.entry("size"))
    return change + (trace.reserved_bytes - (change[-1] if len(change) else 0))


def retries(trace: DeviceTrace) -> list[Retry]:
    """Return the allocations that succeeded, or failed, only after cached segments had been given back for them.

    The allocator writes both at once: the `segment_free`s and the `segment_alloc` or `oom` that they made room for have
    the same stack; the frees of `torch.cuda.empty_cache` have a different one.
    """
    action, stack = trace.entry("action"), trace.entry("stack")
    request = np.flatnonzero(np.isin(action, (Action.SEGMENT_ALLOC, Action.OOM)))
    request = request[request > 0]
    previous = request - 1
    after_free = (action[previous] == Action.SEGMENT_FREE) & (stack[previous] == stack[request]) & (stack[request] != 0)
    return [Retry(index=index, freed_bytes=freed_before(trace, index)) for index in request[after_free].tolist()]


def freed_before(trace: DeviceTrace, index: int) -> int:
    """Return the bytes of the segments that were given back directly before entry `index`."""
    others = np.flatnonzero(trace.entry("action")[:index] != Action.SEGMENT_FREE)
    start = int(others[-1]) + 1 if len(others) else 0
    return int(trace.entry("size")[start:index].sum())
