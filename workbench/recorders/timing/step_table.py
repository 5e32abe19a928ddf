"""The table of where the time of a step goes, out of the lines that the step recorder writes anyway."""

from collections import deque
from collections.abc import Iterator, Mapping
from statistics import fmean, median
from typing import Any, NamedTuple

STEPS_AT_MOST = 10_000
"""Older steps are forgotten, so that a long run does not grow."""
APART = frozenset(("first", "compile", "profile", "snapshot"))
"""Tags of steps that tell nothing of the usual ones."""
OTHER, WHOLE = "other", "step"
MS = 1e6


class Row(NamedTuple):
    """A component of the step in ms: by the wall clock, of the processor, of the device (None: not by events)."""

    name: str
    middle: float
    mean: float
    largest: float
    processor: float | None
    device: float | None


class Timing:
    """Collects steps; `table` tells of those since the one before."""

    def __init__(self) -> None:
        self._steps: deque[Mapping[str, Any]] = deque(maxlen=STEPS_AT_MOST)

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in a finished line of the step log."""
        if not APART.intersection(line["tags"]):
            self._steps.append(line)

    def table(self) -> str:
        """A row a component, the longest first, the rest and the whole; forgets the steps."""
        if not self._steps:
            return "Timing breakdown: no step but first, profiled or snapshot ones"
        first, last, count = self._steps[0]["step"], self._steps[-1]["step"], len(self._steps)
        rows = list(self.rows())
        whole = rows[-1].mean
        lines = [f"Timing breakdown of {count} steps from {first} to {last}, in ms:", HEAD]
        lines += [formatted(row, row.mean / whole if whole else 0.0) for row in rows]
        self._steps.clear()
        return "\n".join(lines)

    def rows(self) -> Iterator[Row]:
        """The components by what they take on average, then what is none of them, then the step."""
        names = dict.fromkeys(name for line in self._steps for name in line["phases"])
        yield from sorted((self._row(name) for name in names), key=lambda row: -row.mean)
        yield measured(OTHER, [line["residual_ns"] for line in self._steps])
        yield measured(WHOLE, [line["dur_ns"] for line in self._steps])

    def _row(self, name: str) -> Row:
        wall, cpu, device = ([line[key].get(name, 0) for line in self._steps] for key in CLOCKS)
        row = measured(name, wall)
        return row._replace(processor=fmean(cpu) / MS, device=fmean(device) / MS if any(device) else None)


CLOCKS = ("phases", "cpu_ns", "device_ns")
HEAD = f"  {'component':<12}{'median':>10}{'mean':>10}{'largest':>10}{'share':>8}{'processor':>11}{'device':>10}"


def measured(name: str, ns: list[int]) -> Row:
    return Row(name, median(ns) / MS, fmean(ns) / MS, max(ns) / MS, None, None)


def formatted(row: Row, share: float) -> str:
    times = "".join(f"{value:>10.3f}" for value in (row.middle, row.mean, row.largest))
    processor, device = ("-" if value is None else f"{value:.3f}" for value in (row.processor, row.device))
    return f"  {row.name:<12}{times}{share:>8.1%}{processor:>11}{device:>10}"
