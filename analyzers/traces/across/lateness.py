"""Who keeps the others waiting, for how long, and what would be without: the arithmetic over matched collectives."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column
from analyzers.traces.across.clocks import Clock
from analyzers.traces.across.matching import MEASURES, MatchedCollectives
from analyzers.traces.columns.work import NO_STEP


@dataclass(frozen=True)
class Lateness:
    """Matched collectives on one clock; every column has a row for each rank of each collective, in ns."""

    met: MatchedCollectives
    clocks: Sequence[Clock]

    def shifted(self, name: str) -> Column:
        """A column of moments on the first rank's clock."""
        shown = self.met.column(name)
        ahead = np.zeros(len(shown), np.int64)
        for place, clock in enumerate(self.clocks):
            mine = self.met.rank == place
            ahead[mine] = clock.ahead(shown[mine])
        return shown - ahead

    def in_order(self) -> "Lateness":
        """The same with the collectives in the order in which they ended, which only a common clock can tell."""
        return Lateness(self.met.sorted_by(self.middle(self.end)), self.clocks)

    @cached_property
    def arrival(self) -> Column:
        return self.shifted("start")

    @cached_property
    def end(self) -> Column:
        return self.shifted("end")

    @cached_property
    def last(self) -> Column:
        """For each collective the arrival of the last rank."""
        return np.maximum.reduceat(self.arrival, self.met.first)

    @cached_property
    def wait(self) -> Column:
        """How long each rank waited for the last one, in no case beyond its own end."""
        length = self.met.column("end") - self.met.column("start")
        found: Column = np.clip(self.last[self.met.which] - self.arrival, 0, length)
        return found

    @cached_property
    def transfer(self) -> Column:
        """For each collective its length without waiting: from the last arrival to the middle one of the ends."""
        found: Column = np.maximum(self.middle(self.end) - self.last, 0)
        return found

    @cached_property
    def lateness(self) -> Column:
        """How much later each rank came than the middle one."""
        found: Column = self.arrival - self.middle(self.arrival)[self.met.which]
        return found

    @cached_property
    def latest(self) -> Column:
        """The row of the last rank of each collective."""
        order = np.lexsort((self.arrival, self.met.which))
        found: Column = order[np.append(self.met.first[1:], len(order)) - 1]
        return found

    def middle(self, values: Column) -> Column:
        """The (lower) median of each collective's ranks."""
        order = np.lexsort((values, self.met.which))
        size = np.diff(np.append(self.met.first, len(values)))
        found: Column = values[order[self.met.first + (size - 1) // 2]]
        return found

    def beyond_others(self, values: Column) -> Column:
        """Each rank's value less the (lower) median of the others in its collective."""
        which, first = self.met.which, self.met.first
        order = np.lexsort((values, which))
        position = np.empty(len(values), np.int64)
        position[order] = np.arange(len(values)) - first[which[order]]
        size = np.diff(np.append(first, len(values)))[which]
        middle = (size - 2) // 2
        other = order[first[which] + np.where(position > middle, middle, middle + 1)]
        found: Column = values - values[other]
        return found

    def excess(self, name: str = "work_ns") -> Column:
        """What each rank did more than the others before each collective."""
        return self.beyond_others(self.met.column(name))

    def by_rank(self, values: Column) -> Column:
        """The sum over all collectives of each rank."""
        found = np.zeros(len(self.met.ranks), np.int64)
        np.add.at(found, self.met.rank, values)
        return found

    def excess_by_step(self) -> Column:
        """[rank, step] what each rank did more than the others in each recorded step."""
        step = self.met.column("step")
        inside = step != NO_STEP
        numbers, place = np.unique(step[inside], return_inverse=True)
        found = np.zeros((len(self.met.ranks), len(numbers)), np.int64)
        np.add.at(found, (self.met.rank[inside], place), self.excess()[inside])
        return found

    def excess_by_rank(self) -> dict[str, Column]:
        """Of each measure, what each rank had more of than the others, in all."""
        return {name: self.by_rank(self.excess(name)) for name in MEASURES}


@dataclass(frozen=True)
class Replay:
    """The matched collectives once more, with other work between them."""

    late: Lateness

    @cached_property
    def begin(self) -> Column:
        """When each rank's work for its first collective began."""
        first = np.unique(self.late.met.rank, return_index=True)[1]
        found: Column = self.late.shifted("since")[first]
        return found

    @cached_property
    def held(self) -> Column:
        """Whether a rank stood still for the collective."""
        return np.asarray(self.late.met.column("blocked_ns") > 0)

    def took(self, work: Column, overlap: Column) -> int:
        """From the first beginning to the last collective's end, in ns, if each rank's own work took so long.

        A rank goes on beside a collective for `overlap`, stands still until its end where it did so, and comes to the
        next collective after the rest of its work. What a collective itself takes stays as it was.
        """
        met, clock = self.late.met, self.begin.copy()
        went_on, finished = np.zeros(len(clock), np.int64), clock.copy()
        bounds = np.append(met.first, len(met.which))
        for which in range(met.count):
            rows = slice(bounds[which], bounds[which + 1])
            ranks = met.rank[rows]
            arrival = clock[ranks] + np.maximum(work[rows] - went_on[ranks], 0)
            ends = int(arrival.max() + self.late.transfer[which])
            clock[ranks] = np.where(self.held[rows], np.maximum(arrival + overlap[rows], ends), arrival + overlap[rows])
            went_on[ranks] = overlap[rows]
            finished[ranks] = np.maximum(clock[ranks], ends)
        return int(finished.max() - self.begin.min())


def spared(late: Lateness) -> tuple[int, list[int]]:
    """(ns the recorded collectives take, for each rank ns less if its work took as long as the others') by replay."""
    met, again = late.met, Replay(late)
    real = met.column("work_ns"), met.column("overlap_ns")
    typical = [values - late.beyond_others(values) for values in real]
    now, found = again.took(*real), []
    for rank in range(len(met.ranks)):
        mine = met.rank == rank
        then = again.took(*(np.where(mine, other, own) for own, other in zip(real, typical, strict=True)))
        found.append(max(now - then, 0))
    return now, found
