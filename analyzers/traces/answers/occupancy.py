"""Compute how well kernels fill the device, from estimates that the recorder writes with each kernel.

The estimates are the occupancy (the share of the device's warps that are busy), and the number of warps and of blocks
per multiprocessor.
"""

from contextlib import suppress

import msgspec
import numpy as np

from analyzers.columns import Column, Floats
from analyzers.traces.columns.work import Work

MEASURES = ("occupancy", "warps_per_sm", "blocks_per_sm")
_MEASURE_AT_MOST = 1e9
# What recorders of different ages call the resources, in one spelling.
LIMITS = {"regs": "registers", "smem": "shared memory", "shared mem": "shared memory", "sharedmem": "shared memory"}
_LIMIT_TEXT_AT_MOST = 100
Occupancy = dict[str, float | str | None]
"""The fields of `Kernel` about occupancy, by name."""


class Occupancies:
    """The recorded occupancy of each event of a device (NaN: not recorded), and the resources that limit it."""

    def __init__(self, work: Work) -> None:
        """Decode each distinct occupancy text once; index 0 of `limits` and `measures` is for events without one."""
        c = work.trace.columns
        texts = c.meta["occupancies"]
        self.limits = ["", *(limits(text) for text in texts)]
        self.measures: Floats = np.array([[np.nan] * len(MEASURES), *(measures(text) for text in texts)])
        of_row = np.zeros(len(c["start"]), np.int32)
        of_row[c["occupancy_row"]] = c["occupancy_text"] + np.int32(1)
        self.text_index: Column = of_row[work.rows]
        self.duration: Column = work.end - work.start

    def mean(self, indices: Column) -> Occupancy:
        """Return the fields of `Kernel` on occupancy: means over some events, weighted by duration, and `limited_by`.

        `indices` are the indices of the events in `work`. `limited_by` has the limiting resources of the event with the
        longest duration. The result is empty if the trace has no occupancies.
        """
        if len(self.measures) == 1:
            return {}
        longest = self.text_index[indices[self.duration[indices].argmax()]]
        means: Occupancy = {name: self.weighted_mean(i, indices) for i, name in enumerate(MEASURES)}
        return means | {"limited_by": self.limits[longest]}

    def weighted_mean(self, measure: int, indices: Column) -> float | None:
        values, duration = self.measures[self.text_index[indices], measure], self.duration[indices]
        known = np.isfinite(values)
        if not known.any():
            return None
        # Kernels of 0 ns, as memory sets may be, count equally.
        weights = duration[known] if duration[known].any() else None
        return round(float(np.average(values[known], weights=weights)), 6)


def parts_of(text: str) -> list[str]:
    """Split the recorded occupancy text of a kernel into its four parts, which are separated by zero bytes.

    The parts are the occupancy, warps and blocks per multiprocessor (`MEASURES`), and the limiting resources.
    """
    return f"{text}\0\0\0".split("\0")[: len(MEASURES) + 1]


def measures(text: str) -> list[float]:
    """Return the recorded `MEASURES` of a kernel; NaN for each that is not known.

    Kineto writes an occupancy of 0 for kernels of which it cannot compute one, such as those with much dynamic shared
    memory. A whole warp on each multiprocessor shows that it is not 0.
    """
    occupancy, warps, blocks = (number(part) for part in parts_of(text)[: len(MEASURES)])
    return [float("nan") if occupancy == 0 and warps >= 1 else occupancy, warps, blocks]


def number(text: str) -> float:
    """Return the number in a JSON text, also if the number is quoted as a string; NaN for any other text."""
    with suppress(msgspec.DecodeError, TypeError, ValueError):
        value = float(msgspec.json.decode(text))
        if 0 <= value < _MEASURE_AT_MOST:
            return value
    return float("nan")


def limits(text: str) -> str:
    """Return the resources that limit a kernel's occupancy, such as `registers, warps`; empty if not recorded.

    `text` is the recorded occupancy text of the kernel; its last part is, for example, `{"limitingFactors":
    "REGS|WARPS"}`.
    """
    with suppress(msgspec.DecodeError):
        recorded = msgspec.json.decode(parts_of(text)[-1])
        factors = recorded.get("limitingFactors") if isinstance(recorded, dict) else None
        if isinstance(factors, str):
            words = (word.strip().lower().replace("_", " ") for word in factors[:_LIMIT_TEXT_AT_MOST].split("|"))
            return ", ".join(LIMITS.get(word, word) for word in words)
    return ""
