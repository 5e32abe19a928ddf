"""Find ranks whose memory use grows step after step, which suggests a leak."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzers.steps.table import Steps

STEPS_AT_LEAST = 6
GROWTH = 0.1
"""Memory may leak if it grows by at least this share of its first value; `_RISING` and `_LATE_GROWTH` must hold,
too."""
_RISING = 0.7
"""Memory that leaks rises in at least this share of the steps."""
_LATE_GROWTH = 0.25
"""Memory that leaks gains at least this share of its growth in the second half of the steps."""


@dataclass(frozen=True)
class Growth:
    """The growth of a rank's memory from `step` on, by `bytes_per_step` on average."""

    rank: int
    step: int
    bytes_per_step: float


def memory_growth(steps: Steps) -> list[Growth]:
    """Return a `Growth` for each rank whose memory rises in nearly every step.

    Two kinds of steps do not count: warm-up steps, and steps in which this project's recorders were active, because
    their buffers are part of the process's memory.
    """
    # A profiler that records four steps looks like a leak of four steps.
    recording = steps.recorder_s > 0
    rows = steps.table[["rank", "step", "memory_bytes"]][~steps.table["warmup"] & ~recording]
    growing = []
    for rank, own in rows.groupby("rank"):
        memory = own.set_index("step")["memory_bytes"].astype(float)
        if growth := _growth_of(int(str(rank)), memory[memory > 0]):
            growing.append(growth)
    return growing


def _growth_of(rank: int, memory: "pd.Series[float]") -> Growth | None:
    """Return a `Growth` for a rank, with the speed of the growth; None if it does not look like a leak.

    `memory` is in bytes, by step.
    """
    if len(memory) < STEPS_AT_LEAST:
        return None
    rises = np.diff(memory.to_numpy())
    gained = float(memory.iloc[-1] - memory.iloc[0])
    gained_late = float(memory.iloc[-1] - memory.iloc[len(memory) // 2])
    # Caches and pools fill and then stay; a leak goes on.
    if gained < GROWTH * memory.iloc[0] or (rises > 0).mean() < _RISING or gained_late < _LATE_GROWTH * gained:
        return None
    return Growth(rank, int(memory.index[0]), gained / (len(memory) - 1))
