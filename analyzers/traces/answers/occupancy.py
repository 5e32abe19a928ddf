"""How well kernels fill the device: occupancy, warps and blocks a multiprocessor, as the recorder notes them."""

from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.traces.columns.work import Work

MEASURES = ("occupancy", "warps_per_sm", "blocks_per_sm")
AT_MOST = 1e9
LIMITS = {"regs": "registers", "smem": "shared memory", "shared mem": "shared memory", "sharedmem": "shared memory"}
LIMIT_AT_MOST = 100
Filling = dict[str, Any]


class Fillings:
    """The measures of each piece of work, NaN where nothing is noted, and what limits them."""

    def __init__(self, work: Work) -> None:
        c = work.trace.columns
        texts = c.meta["occupancies"]
        self.limits = ["", *(limits(text) for text in texts)]
        self.noted: Column = np.array([[np.nan] * len(MEASURES), *(parsed(text) for text in texts)])
        of_row = np.zeros(len(c["start"]), np.int32)
        of_row[c["occupancy_row"]] = c["occupancy_text"] + np.int32(1)
        self.which: Column = of_row[work.rows]
        self.length: Column = work.end - work.start

    def mean(self, places: Column) -> Filling:
        """The means of some pieces of work, weighted by how long each took, and what limits the longest."""
        if len(self.noted) == 1:
            return {}
        longest = self.which[places[self.length[places].argmax()]]
        means = {name: self.weighed(i, places) for i, name in enumerate(MEASURES)}
        return means | {"limited_by": self.limits[longest]}

    def weighed(self, measure: int, places: Column) -> float | None:
        values, length = self.noted[self.which[places], measure], self.length[places]
        known = np.isfinite(values)
        if not known.any():
            return None
        weights = length[known] if length[known].any() else None
        return round(float(np.average(values[known], weights=weights)), 6)


def parts(text: str) -> list[str]:
    """Return the parts of a text of `EventTable.occupancies`: one for each of `MEASURES`, and its limits, if any."""
    return f"{text}\0\0\0".split("\0")[: len(MEASURES) + 1]


def parsed(text: str) -> list[float]:
    return [number(part) for part in parts(text)[: len(MEASURES)]]


def number(text: str) -> float:
    """A number, also one in a string; NaN for what recorders do not write."""
    with suppress(msgspec.DecodeError, TypeError, ValueError):
        value: Any = float(msgspec.json.decode(text))
        if 0 <= value < AT_MOST:
            return float(value)
    return float("nan")


def limits(text: str) -> str:
    """`registers, warps` for `{"limitingFactors": "REGS|WARPS"}`; empty where nothing is noted."""
    with suppress(msgspec.DecodeError):
        known = msgspec.json.decode(parts(text)[-1])
        told = known.get("limitingFactors") if isinstance(known, dict) else None
        if isinstance(told, str):
            words = (word.strip().lower().replace("_", " ") for word in told[:LIMIT_AT_MOST].split("|"))
            return ", ".join(LIMITS.get(word, word) for word in words)
    return ""
