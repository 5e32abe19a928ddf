"""Write the memory of devices as counters of the Chrome trace format; Perfetto draws each counter as a track."""

from collections.abc import Callable, Iterator

import numpy as np

from analyzers.columns import Column, Integers
from analyzers.traces.answers.device_allocator import Allocator, allocators
from analyzers.traces.reading.trace import Trace

_POINTS_AT_MOST = 20_000
"""The most points that are written for a device; if there are more, the highest in each time interval are kept."""


def memory_counters(
    trace: Trace,
    pid_of: Callable[[int | None], int],
    to_common_clock: Callable[[Column], Integers],
    window: tuple[int, int] | None,
) -> Iterator[dict[str, object]]:
    """Yield counter events with the allocated and reserved bytes of each device over time.

    `pid_of` is a function that returns the process id of a device (None: the host) in the exported file.
    `to_common_clock` converts times of the trace to the common clock of all ranks. `window` is (start, end) in ns of
    that clock (None: everything).
    """
    for allocator in allocators(trace):
        at, allocated, reserved = points(allocator, trace.origin)
        at = to_common_clock(at)
        first, last = window or (int(at[0]), int(at[-1]) + 1)
        # A counter holds until its next event, so the last one before the window counts, too.
        inside = slice(max(0, int(np.searchsorted(at, first, side="right")) - 1), int(np.searchsorted(at, last)))
        times = np.maximum(at[inside], first).tolist()
        name, pid = f"memory of {allocator.name}", pid_of(None if allocator.on_host else allocator.number)
        for ns, in_use, kept in zip(times, allocated[inside].tolist(), reserved[inside].tolist(), strict=True):
            values = {"allocated": in_use} | ({"reserved": kept} if reserved.any() else {})
            yield {"ph": "C", "name": name, "pid": pid, "ts": ns / 1000, "args": values}


def points(allocator: Allocator, origin: int) -> tuple[Column, Column, Column]:
    """Return the points of a device's memory curve: times (ns of the trace), allocated bytes and reserved bytes.

    The first point, at `origin` (the start of the trace, ns), has the bytes allocated before the first event. With too
    many events for one point each, the points are the maxima in equal intervals of time.
    """
    if len(allocator.at) > _POINTS_AT_MOST:
        edges = np.linspace(allocator.at[0], allocator.at[-1] + 1, _POINTS_AT_MOST + 1).astype(np.int64)
        return edges[:-1], *allocator.most_between(edges)
    begin = min(origin, int(allocator.at[0]))
    return (
        np.append(begin, allocator.at),
        np.append(allocator.before, allocator.allocated),
        np.append(allocator.reserved[0], allocator.reserved),
    )
