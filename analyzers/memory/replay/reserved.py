"""Compute the reserved bytes after each trace entry, and find requests for which the allocator released segments."""

import numpy as np

from analyzers.columns import Integers
from analyzers.memory.model import Retry
from analyzers.memory.reading.schema import RESERVING, RETURNING, Action
from analyzers.memory.reading.snapshot import DeviceTrace


def reserved_bytes(trace: DeviceTrace) -> Integers:
    """Return the bytes that the allocator has reserved on the device after each trace entry.

    They are computed backwards from the segments in the snapshot, because the value before the first trace entry is
    not recorded.
    """
    action = trace.entry("action")
    sign = np.isin(action, RESERVING).astype(np.int64) - np.isin(action, RETURNING)
    change = np.cumsum(sign * trace.entry("size"))
    return change + (trace.reserved_bytes - (change[-1] if len(change) else 0))


def retries(trace: DeviceTrace) -> list[Retry]:
    """Return the requests for which the allocator first released cached segments; they succeeded or ended in an OOM.

    They are recognised by their stacks: the allocator records the `segment_free` entries with the same stack as the
    `segment_alloc` or `oom` that follows. The entries of `torch.cuda.empty_cache` have a different stack.
    """
    action, stack = trace.entry("action"), trace.entry("stack")
    request = np.flatnonzero(np.isin(action, (Action.SEGMENT_ALLOC, Action.OOM)))
    request = request[request > 0]
    previous = request - 1
    after_free = (action[previous] == Action.SEGMENT_FREE) & (stack[previous] == stack[request]) & (stack[request] != 0)
    return [Retry(index=index, freed_bytes=_freed_before(trace, index)) for index in request[after_free].tolist()]


def _freed_before(trace: DeviceTrace, index: int) -> int:
    """Return the bytes of the segments that were released directly before the trace entry with this index."""
    others = np.flatnonzero(trace.entry("action")[:index] != Action.SEGMENT_FREE)
    start = int(others[-1]) + 1 if len(others) else 0
    return int(trace.entry("size")[start:index].sum())
