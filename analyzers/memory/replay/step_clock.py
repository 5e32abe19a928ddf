"""Which entries of a trace lie in which step of training, so that a window of one face can be found on another."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from analyzers.memory.model import DeviceTrace
from analyzers.memory.replay.phases import steps

POINTS = 32
"""Between so many of a step's entries time passes evenly enough."""


def step_clock(trace: DeviceTrace, logged: pd.DataFrame | None = None) -> pd.DataFrame:
    """Columns: entry, step (6.25: a quarter of the time of step 6 has gone); both ascend.

    By the trace's own marks, else by the wall clock of `logged` (step, start_ns, end_ns); empty where neither tells.
    """
    time = np.maximum.accumulate(trace.entry("time").astype(np.int64))
    marks = own(trace, time) or ([] if logged is None or not len(time) else inside(logged, time))
    points = [point for mark in marks for point in along(mark, time)]
    return pd.DataFrame(points, columns=["entry", "step"])


Mark = tuple[int, int, int]
"""A step, and the microseconds at which it begins and ends."""


def own(trace: DeviceTrace, time: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> list[Mark]:
    """The annotated steps; one in which the memory ran out never ends."""
    last = len(time) - 1
    found = ((one.number, one.start, last if one.end is None else min(one.end, last)) for one in steps(trace))
    return [(number, int(time[start]), int(time[end])) for number, start, end in found if start <= end]


def inside(logged: pd.DataFrame, time: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> list[Mark]:
    """The logged steps that the trace saw something of."""
    begin, end = (logged[name].to_numpy() // 1000 for name in ("start_ns", "end_ns"))
    seen = (end >= time[0]) & (begin <= time[-1])
    return list(zip(logged["step"][seen].tolist(), begin[seen].tolist(), end[seen].tolist(), strict=True))


def along(mark: Mark, time: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Iterable[tuple[int, float]]:
    """(entry, step) at some entries of a step."""
    number, begin, end = mark
    first, last = np.searchsorted(time, (begin, end))
    entries = np.unique(np.linspace(first, last, POINTS).astype(np.int64))
    gone = (time[np.minimum(entries, len(time) - 1)] - begin) / max(1, end - begin)
    return zip(entries.tolist(), (number + gone.clip(0, 1)).tolist(), strict=True)
