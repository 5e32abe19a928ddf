"""Map trace entries to training steps, so that a range selected in one chart can be shown in another."""

import numpy as np
import pandas as pd

from analyzers.columns import Integers
from analyzers.memory.reading.snapshot import DeviceTrace
from analyzers.memory.replay.phases import annotated_steps

_POINTS = 32
"""The number of (trace entry, step) points for each training step.

Between two points, the same time is assumed to pass at each trace entry.
"""

StepTimes = tuple[int, int, int]
"""A training step, as (number, time in µs at which it begins, time in µs at which it ends)."""


def step_clock(trace: DeviceTrace, logged: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return a table that maps trace entries to training steps: points (entry, step) to interpolate between.

    A step of 6.25 means that a quarter of the time of step 6 has passed. Both columns ascend. Steps come from the
    trace's annotations; if there are none, from the wall-clock times in `logged` (columns step, start_ns, end_ns).
    The table is empty if neither shows a step.
    """
    # Files that were edited or merged may step back in time; interpolation needs ascending times.
    time = np.maximum.accumulate(trace.entry("time").astype(np.int64))
    spans = _annotated_times(trace, time) or ([] if logged is None or not len(time) else _logged_times(logged, time))
    return _points_of(spans, time) if spans else pd.DataFrame(columns=["entry", "step"])


def _annotated_times(trace: DeviceTrace, time: Integers) -> list[StepTimes]:
    """Return the training steps marked by annotations, with their times; `time` has the µs of each trace entry.

    A step without an end (memory ran out, for example) lasts to the last trace entry.
    """
    last = len(time) - 1
    spans = ((s.number, s.start, last if s.end is None else min(s.end, last)) for s in annotated_steps(trace))
    return [(number, int(time[start]), int(time[end])) for number, start, end in spans if start <= end]


def _logged_times(logged: pd.DataFrame, time: Integers) -> list[StepTimes]:
    """Return (step, start µs, end µs) of each training step of a step log that overlaps the trace in time.

    `logged` has the columns step, start_ns and end_ns; `time` has the µs of each trace entry.
    """
    begin, end = (logged[name].to_numpy() // 1000 for name in ("start_ns", "end_ns"))
    overlaps = (end >= time[0]) & (begin <= time[-1])
    return list(zip(logged["step"][overlaps].tolist(), begin[overlaps].tolist(), end[overlaps].tolist(), strict=True))


def _points_of(spans: list[StepTimes], time: Integers) -> pd.DataFrame:
    """Return up to `_POINTS` rows (trace entry, step) per training step; a step number has a fraction, such as 6.25.

    `spans` has (step, start µs, end µs) of each step; `time` has the µs of each trace entry.
    """
    number, begin, end = np.array(spans, np.int64).reshape(-1, 3, 1).transpose(1, 0, 2)
    entries = np.linspace(np.searchsorted(time, begin), np.searchsorted(time, end), _POINTS, axis=1)[:, :, 0]
    entries = np.sort(entries.astype(np.int64), axis=1)
    elapsed = (time[np.minimum(entries, len(time) - 1)] - begin) / np.maximum(1, end - begin)
    is_new = np.diff(entries, axis=1, prepend=-1) > 0
    return pd.DataFrame({"entry": entries[is_new], "step": (number + elapsed.clip(0, 1))[is_new]})
