"""Where in a trace the phases of training lie: steps and optimizer as annotated, passes as the stacks show them."""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column
from analyzers.memory.model import DeviceTrace

STEP = re.compile(r"(?:ProfilerStep|step)#(\d+)")
NEVER = np.iinfo(np.int64).max
NO_PHASE, FORWARD, BACKWARD, OPTIMIZER = range(4)


@dataclass(frozen=True)
class Windows:
    """Stretches of entries: entry k lies inside one if `start <= k < end`. Both ascend."""

    start: Column
    end: Column
    name: list[str]

    def inside(self, index: Column) -> Column:
        found: Column = index < self.end_after(index)
        return found & (index >= 0) if len(self.start) else np.zeros(len(index), bool)

    def end_after(self, index: Column) -> Column:
        """The end of the last window that began at or before each entry; -1 where none did."""
        ends = np.concatenate([[-1], self.end])
        found: Column = ends[np.searchsorted(self.start, index, side="right")]
        return found

    def start_after(self, index: Column) -> Column:
        """The start of the first window that begins after each entry; beyond any entry where none does."""
        starts = np.concatenate([self.start, [NEVER]])
        found: Column = starts[np.searchsorted(self.start, index, side="right")]
        return found


@dataclass(frozen=True)
class Phases:
    """The phase of each entry, `NO_PHASE` where its stack shows none; answers for entries -1 to the last."""

    kind: Column

    @property
    def count(self) -> int:
        return len(self.kind)

    @cached_property
    def _last(self) -> Column:
        """The phase of the last entry that shows one, by number of entries seen."""
        shown = np.where(self.kind != NO_PHASE, np.arange(1, self.count + 1), 0)
        found: Column = np.concatenate([[NO_PHASE], self.kind])[np.maximum.accumulate(np.concatenate([[0], shown]))]
        return found

    @cached_property
    def _stretches(self) -> Column:
        return np.cumsum(np.diff(self._last, prepend=self._last[0]) != 0)

    @cached_property
    def _next(self) -> dict[int, Column]:
        return {phase: np.append(self._following(phase), NEVER) for phase in (FORWARD, BACKWARD, OPTIMIZER)}

    def _following(self, phase: int) -> Column:
        """For each entry the first from it on that shows the phase; `NEVER` where none does."""
        place = np.where(self.kind == phase, np.arange(self.count), NEVER)
        found: Column = np.minimum.accumulate(place[::-1])[::-1]
        return found

    def at(self, index: Column) -> Column:
        """What the entries themselves show; nothing outside the trace."""
        inside = (index >= 0) & (index < self.count)
        found: Column = np.where(inside, self.kind[index * inside] if self.count else NO_PHASE, NO_PHASE)
        return found

    def last(self, index: Column) -> Column:
        """The phase that was shown last, at or before each entry."""
        found: Column = self._last[index + 1]
        return found

    def stretch(self, index: Column) -> Column:
        """A number that changes whenever another phase begins."""
        found: Column = self._stretches[index + 1]
        return found

    def next(self, phase: int, index: Column) -> Column:
        """The first entry after each that shows the phase; `NEVER` where none does."""
        found: Column = self._next[phase][index + 1]
        return found


@dataclass(frozen=True)
class Step:
    """A training step: its entries are `start <= k < end`; `end` is None if the trace ends first."""

    number: int
    start: int
    end: int | None


def windows(trace: DeviceTrace, prefix: str) -> Windows:
    """The windows of annotations whose name begins with `prefix`; one still open ends with the trace."""
    found: list[tuple[int, int, str]] = []
    begun: dict[str, int] = {}
    for name, is_start, index in notes(trace):
        if not name.startswith(prefix):
            continue
        if is_start:
            begun[name] = index
        elif name in begun:
            found.append((begun.pop(name), index, name))
    found += [(index, len(trace), name) for name, index in begun.items()]
    found.sort()
    bounds = np.array([row[:2] for row in found], np.int64).reshape(-1, 2)
    return Windows(bounds[:, 0], bounds[:, 1], [row[2] for row in found])


def steps(trace: DeviceTrace) -> list[Step]:
    """The steps that the annotations mark, in order."""
    found: dict[int, Step] = {}
    for name, is_start, index in notes(trace):
        if not (matched := STEP.fullmatch(name)):
            continue
        number = int(matched[1])
        begun = found.get(number, Step(number, 0, None))
        found[number] = Step(number, index, None) if is_start else Step(number, begun.start, index)
    return sorted(found.values(), key=lambda step: step.start)


def step_at(trace: DeviceTrace, index: int) -> int | None:
    """The step that entry `index` belongs to, where annotations tell it."""
    for step in reversed(steps(trace)):
        if step.start <= index and (step.end is None or index < step.end):
            return step.number
    return None


def notes(trace: DeviceTrace) -> list[tuple[str, bool, int]]:
    """(name, is START, index of the first entry after it) of this device's annotations."""
    c = trace.snapshot.columns
    rows = np.flatnonzero(c["note_device"] == trace.number)
    rows = rows if len(rows) else np.arange(len(c["note_time"]))
    index = np.searchsorted(trace.entry("time"), c["note_time"][rows], side="left")
    return [
        (trace.snapshot.text(int(c["note_name"][row])), bool(c["note_start"][row]), int(at))
        for row, at in zip(rows, index, strict=True)
    ]
