"""How well kernels fill the device: occupancy, warps and blocks a multiprocessor, as the recorder notes them."""

from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from analyzers.traces.table import Column
from analyzers.traces.work import Work

MEASURES = ("occupancy", "warps_per_sm", "blocks_per_sm")
AT_MOST = 1e9
Filling = dict[str, float | None]


class Fillings:
    """The measures of each piece of work, NaN where nothing is noted: `noted`, and the number there of each."""

    def __init__(self, work: Work) -> None:
        c = work.trace.columns
        texts = c.meta["fillings"]
        of_row = np.full(len(c["start"]), len(texts), np.int32)
        of_row[c["filling_row"]] = c["filling_text"]
        self.noted: Column = np.array([*map(parsed, texts), [np.nan] * len(MEASURES)])
        self.which: Column = of_row[work.rows]
        self.length: Column = work.end - work.start

    def mean(self, places: Column) -> Filling:
        """The means of some pieces of work, weighted by how long each took."""
        return {name: self.weighed(i, places) for i, name in enumerate(MEASURES)} if len(self.noted) > 1 else {}

    def weighed(self, measure: int, places: Column) -> float | None:
        values, length = self.noted[self.which[places], measure], self.length[places]
        known = np.isfinite(values)
        if not known.any():
            return None
        weights = length[known] if length[known].any() else None
        return round(float(np.average(values[known], weights=weights)), 6)


def parsed(text: str) -> list[float]:
    """The numbers of a text of `Table.fillings`."""
    return [number(part) for part in f"{text}\0\0".split("\0")[: len(MEASURES)]]


def number(text: str) -> float:
    """A number, also one in a string; NaN for what recorders do not write."""
    with suppress(msgspec.DecodeError, TypeError, ValueError):
        value: Any = float(msgspec.json.decode(text))
        if 0 <= value < AT_MOST:
            return float(value)
    return float("nan")
