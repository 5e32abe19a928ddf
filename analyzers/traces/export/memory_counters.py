"""What devices held, as counters of the Chrome trace format: Perfetto draws a track of each."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from analyzers.columns import Column
from analyzers.traces.answers.device_allocator import Allocator, allocators
from analyzers.traces.model import Trace

POINTS_AT_MOST = 20_000
"""A device; of more the highest of each stretch of time stays."""


def memory_counters(
    trace: Trace,
    pid_of: Callable[[int | None], int],
    common: Callable[[Column], Column],
    window: tuple[int, int] | None,
) -> Iterator[dict[str, Any]]:
    """Allocated and reserved bytes of each device over time.

    `pid_of` tells the process that stands for a device (None: the host), `common` a moment on the common clock.
    """
    for one in allocators(trace):
        at, allocated, reserved = points(one, trace.origin)
        at = common(at)
        first, last = window or (int(at[0]), int(at[-1]) + 1)
        inside = slice(max(0, int(np.searchsorted(at, first, side="right")) - 1), int(np.searchsorted(at, last)))
        times = np.maximum(at[inside], first).tolist()
        for ns, held, kept in zip(times, allocated[inside].tolist(), reserved[inside].tolist(), strict=True):
            told = {"allocated": held} | ({"reserved": kept} if reserved.any() else {})
            name, pid = f"memory of {one.name}", pid_of(None if one.on_host else one.number)
            yield {"ph": "C", "name": name, "pid": pid, "ts": ns / 1000, "args": told}


def points(one: Allocator, origin: int) -> tuple[Column, Column, Column]:
    """(at, allocated, reserved), the first of them what was there before all events."""
    if len(one.at) > POINTS_AT_MOST:
        edges = np.linspace(one.at[0], one.at[-1] + 1, POINTS_AT_MOST + 1).astype(np.int64)
        return edges[:-1], *one.highest(edges)
    begin = min(origin, int(one.at[0]))
    before = begin, one.before, one.reserved[0]
    at, allocated, reserved = (
        np.append(*pair) for pair in zip(before, (one.at, one.allocated, one.reserved), strict=True)
    )
    return at, allocated, reserved
