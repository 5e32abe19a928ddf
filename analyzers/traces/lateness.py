"""Compute which rank keeps the others waiting, for how long, and how much time would be saved without that.

A rank *arrives* at a collective when the collective starts on this rank. The *lateness* of a rank is the time from the
arrival of the median rank to its own arrival. The *excess* of a rank is how much longer than the other ranks it worked
before its arrival; waiting does not count as work.

Example: rank 3 works 20 ms longer than rank 2 before an all_reduce of the pair (2, 3). Rank 2 waits there, and is 20 ms
late in its next all_gather with rank 0. The lateness of rank 3 is 20 ms in the pair, the lateness of rank 2 is 20 ms in
the all_gather. But only rank 3 has an excess of 20 ms, because rank 2 only waited. Lateness alone would also blame rank
2, which is a victim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Integers, Mask
from analyzers.traces.clocks import MEASURES, Clock, MatchedCollectives
from analyzers.traces.reading.trace import NO_STEP


@dataclass(frozen=True)
class Lateness:
    """When each rank arrived at each matched collective, how late it was and how long it waited, in ns.

    `matched` has a row for each collective and each of its ranks. An array has one entry for each of these rows, unless
    its docstring says otherwise. `clocks` has the clock of each rank, to convert all times to the first rank's clock.
    """

    matched: MatchedCollectives
    clocks: Sequence[Clock]

    def on_first_clock(self, name: str) -> Integers:
        """Return a column of times in `matched`, converted to the first rank's clock (Unix ns)."""
        shown = self.matched.column(name)
        ahead = np.zeros(len(shown), np.int64)
        for mine, clock in zip(self.matched.rows_by_rank, self.clocks, strict=True):
            ahead[mine] = clock.ahead(shown[mine])
        return shown - ahead

    def in_order(self) -> "Lateness":
        """Return a copy with the collectives numbered in the order of their ends on the median rank."""
        return Lateness(self.matched.sorted_by(self.median(self.end)), self.clocks)

    @cached_property
    def arrival(self) -> Integers:
        return self.on_first_clock("start")

    @cached_property
    def end(self) -> Integers:
        return self.on_first_clock("end")

    @cached_property
    def last_arrival(self) -> Integers:
        """For each collective, the time at which its last rank arrived (Unix ns)."""
        return np.maximum.reduceat(self.arrival, self.matched.first_row)

    @cached_property
    def wait(self) -> Integers:
        """For each row of `matched`, the ns that the rank waited in the collective for the last rank to arrive.

        The value is at most the duration of the collective on this rank, because clocks are not exact.
        """
        duration = self.matched.column("end") - self.matched.column("start")
        wait: Integers = np.clip(self.last_arrival[self.matched.collective] - self.arrival, 0, duration)
        return wait

    @cached_property
    def transfer(self) -> Integers:
        """For each collective, the ns from the last rank's arrival to the median end: the duration without waiting."""
        return (self.median(self.end) - self.last_arrival).clip(min=0)

    @cached_property
    def lateness(self) -> Integers:
        """For each row of `matched`, the ns by which the rank arrived at the collective after the median rank.

        The value is negative if the rank arrived earlier.
        """
        return self.arrival - self.median(self.arrival)[self.matched.collective]

    @cached_property
    def last_row(self) -> Integers:
        order = np.lexsort((self.arrival, self.matched.collective))
        last: Integers = order[np.append(self.matched.first_row[1:], len(order)) - 1]
        return last

    def median(self, values: Integers) -> Integers:
        """Return, for each collective, the median of `values` over its ranks (of two middle values, the lower one).

        `values` has one entry for each row of `matched` (each collective and rank).
        """
        order = np.lexsort((values, self.matched.collective))
        median: Integers = values[order[self.matched.first_row + (self.matched.size - 1) // 2]]
        return median

    def beyond_others(self, values: Integers) -> Integers:
        """Return, for each row of `matched`, the rank's value minus the lower median of the other ranks' values.

        `values` has one entry for each row of `matched` (each collective and rank). Example: the values 5, 9 and 6 of
        three ranks give -1, 4 and 1, because the lower medians of the others are 6, 5 and 5.
        """
        collective, first = self.matched.collective, self.matched.first_row
        order = np.lexsort((values, collective))
        position = np.empty(len(values), np.int64)
        position[order] = np.arange(len(values)) - first[collective[order]]
        middle = (self.matched.size[collective] - 2) // 2
        # In the sorted values without the rank itself everything behind it moves up by one.
        other = order[first[collective] + np.where(position > middle, middle, middle + 1)]
        return values - values[other]

    def excess(self, name: str = "work_ns") -> Integers:
        """Return, for each row of `matched`, how much longer (ns) than others the rank worked before the collective."""
        return self.beyond_others(self.matched.column(name))

    def sum_by_rank(self, values: Integers) -> Integers:
        """Return, for each rank, the sum of its values over all collectives.

        `values` has one entry for each row of `matched` (each collective and rank).
        """
        total = np.zeros(len(self.matched.ranks), np.int64)
        np.add.at(total, self.matched.rank_index, values)
        return total

    def excess_by_step(self) -> Integers:
        """Return int64[rank, step]: how much longer (ns) each rank worked than the others in each recorded step.

        The steps are in ascending order of their numbers; collectives outside of steps are left out.
        """
        step = self.matched.column("step")
        inside = step != NO_STEP
        numbers, column = np.unique(step[inside], return_inverse=True)
        total = np.zeros((len(self.matched.ranks), len(numbers)), np.int64)
        np.add.at(total, (self.matched.rank_index[inside], column), self.excess()[inside])
        return total

    def excess_by_measure(self) -> dict[str, Integers]:
        return {name: self.sum_by_rank(self.excess(name)) for name in MEASURES}


@dataclass(frozen=True)
class Replay:
    """A simulation of the matched collectives with other amounts of work between them, for what-if questions.

    Example: two ranks work 50 and 70 ms before each of 4 all_reduces of 1 ms. As recorded, all four take 4 * 71 ms =
    284 ms in the simulation. If rank 1 worked only 50 ms, they would take 204 ms: its excess costs 80 ms. The saving
    can be less than the excess: if another rank is nearly as late, little is saved.
    """

    lateness: Lateness

    @cached_property
    def begin(self) -> Integers:
        """For each rank, when its work before its first collective began (Unix ns of the first rank's clock)."""
        first = np.unique(self.lateness.matched.rank_index, return_index=True)[1]
        return self.lateness.on_first_clock("since")[first]

    @cached_property
    def blocked(self) -> Mask:
        """For each row of `matched`, whether the rank was idle for some time before its next collective."""
        return self.lateness.matched.column("blocked_ns") > 0

    def duration(self, work: Integers, overlap: Integers, transfer: Integers | None = None) -> int:
        """Simulate all collectives; return the ns from the first begin of work to the end of the last collective.

        `work` and `overlap` have a duration (ns) for each row of `matched` (each collective and rank). `work` is how
        long the rank works between its previous arrival and this one. `overlap` is how long the rank goes on working
        after its arrival at this collective; this work already belongs to the next collective. A rank that was idle
        after that in the recording (`blocked`) waits for the end of the collective. `transfer` has, for each
        collective, the ns from the arrival of its last rank to its end (None: as recorded).
        """
        return int(self.durations((work, overlap), (work, overlap), [-1], transfer)[0])

    def durations(
        self,
        durations: tuple[Integers, Integers],
        others: tuple[Integers, Integers],
        ranks: Sequence[int],
        transfer: Integers | None = None,
    ) -> Integers:
        """Simulate all collectives once for each of `ranks`, with other work for only this rank; return the durations.

        `ranks` are indices in the list of ranks; -1 means that no rank gets other work. `durations` are the `work` and
        the `overlap` of all ranks (see `duration`); `others` are the values that replace them for the one rank.
        `transfer` is the argument of `duration`. The result is in ns. All simulations run together as columns of one
        array, because separate runs would be far slower.
        """
        transfer = self.lateness.transfer if transfer is None else transfer
        matched = self.lateness.matched
        clock = np.repeat(self.begin[:, None], len(ranks), axis=1)
        done_beside, finished = np.zeros_like(clock), clock.copy()
        column_of = np.full(len(self.begin), -1)
        column_of[[rank for rank in ranks if rank >= 0]] = [column for column, rank in enumerate(ranks) if rank >= 0]
        bounds = np.append(matched.first_row, len(matched.collective))
        for collective in range(matched.count):
            rows = slice(bounds[collective], bounds[collective + 1])
            here = matched.rank_index[rows]
            changed = np.flatnonzero(column_of[here] >= 0)
            columns = column_of[here[changed]]
            work, overlap = (
                _with_others(values[rows], other[rows], changed, columns, len(ranks))
                for values, other in zip(durations, others, strict=True)
            )
            arrival = clock[here] + np.maximum(work - done_beside[here], 0)
            ends = arrival.max(axis=0) + transfer[collective]
            went_on = arrival + overlap
            clock[here] = np.where(self.blocked[rows, None], np.maximum(went_on, ends), went_on)
            done_beside[here] = overlap
            finished[here] = np.maximum(clock[here], ends)
        longest: Integers = finished.max(axis=0) - self.begin.min()
        return longest


def _with_others(values: Integers, others: Integers, changed: Integers, columns: Integers, count: int) -> Integers:
    """Return int64[row, column]: `count` columns that are copies of `values`, except for single replaced elements.

    The element in row `changed[i]` and column `columns[i]` is `others[changed[i]]`. If nothing is changed, the result
    has a single column.
    """
    if not len(changed):
        return values[:, None]
    table: Integers = np.repeat(values[:, None], count, axis=1)
    table[changed, columns] = others[changed]
    return table
