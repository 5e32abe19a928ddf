"""Compute which rank keeps the others waiting, for how long, and how much time would be saved without that.

Example: rank 3 works 20 ms longer than rank 2 before an all_reduce of the pair (2, 3). Rank 2 waits there, and is 20
ms late in its next all_gather with rank 0. The *lateness* of rank 3 is 20 ms in the pair, that of rank 2 is 20 ms in
the all_gather. But only rank 3 has an *excess* of 20 ms, because waiting is no work. Excess is counted once, where it
arose; lateness alone would also blame rank 2, which is a victim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Integers, Mask
from analyzers.traces.across.clocks import Clock
from analyzers.traces.across.matching import MEASURES, MatchedCollectives
from analyzers.traces.reading.trace import NO_STEP


@dataclass(frozen=True)
class Lateness:
    """The arrival times and waiting of ranks at matched collectives, on one clock; all values are in ns.

    Unless a docstring says otherwise, arrays have one entry for each row of `matched`: for each collective and each of
    its ranks.
    """

    matched: MatchedCollectives
    clocks: Sequence[Clock]

    def on_first_clock(self, name: str) -> Integers:
        """Return a column of `matched` that holds times, converted to the first rank's clock (Unix ns).

        `name` is `start` or `end` (of the collective on each rank) or `since` (when the rank's work for it began).
        """
        shown = self.matched.column(name)
        ahead = np.zeros(len(shown), np.int64)
        for index, clock in enumerate(self.clocks):
            mine = self.matched.rank_index == index
            ahead[mine] = clock.ahead(shown[mine])
        return shown - ahead

    def in_order(self) -> "Lateness":
        """Return a copy with the collectives numbered in the order of their ends on the common clock."""
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

        It is at most the duration of the collective on this rank, as clocks are not exact.
        """
        duration = self.matched.column("end") - self.matched.column("start")
        wait: Integers = np.clip(self.last_arrival[self.matched.collective] - self.arrival, 0, duration)
        return wait

    @cached_property
    def transfer(self) -> Integers:
        """For each collective, the ns from the last rank's arrival to the median end: its duration without waiting."""
        return (self.median(self.end) - self.last_arrival).clip(min=0)

    @cached_property
    def lateness(self) -> Integers:
        """For each row of `matched`, the ns by which the rank arrived at the collective after the median rank.

        The value is negative if the rank arrived earlier.
        """
        return self.arrival - self.median(self.arrival)[self.matched.collective]

    @cached_property
    def last_row(self) -> Integers:
        """For each collective, the row of `matched` with the rank that arrived last."""
        order = np.lexsort((self.arrival, self.matched.collective))
        last: Integers = order[np.append(self.matched.first_row[1:], len(order)) - 1]
        return last

    def median(self, values: Integers) -> Integers:
        """Return, for each collective, the lower median of `values` over its ranks.

        `values` has one entry for each row of `matched` (each collective and rank).
        """
        order = np.lexsort((values, self.matched.collective))
        median: Integers = values[order[self.matched.first_row + (self.matched.size - 1) // 2]]
        return median

    def beyond_others(self, values: Integers) -> Integers:
        """Return, for each collective and rank, the rank's value minus the lower median of the other ranks' values.

        `values` has one entry for each row of `matched` (each collective and rank). The rank itself is left out of the
        median; otherwise, of two ranks one would be compared with itself.
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
        """Return, for each collective and rank, how much more work (ns) the rank did before it than the other ranks.

        `name` is the column of `matched` that is compared, one of `MEASURES`: all work, or one part of it.
        """
        return self.beyond_others(self.matched.column(name))

    def sum_by_rank(self, values: Integers) -> Integers:
        """Return, for each rank, the sum of its values over all collectives.

        `values` has one entry for each row of `matched` (each collective and rank).
        """
        total = np.zeros(len(self.matched.ranks), np.int64)
        np.add.at(total, self.matched.rank_index, values)
        return total

    def excess_by_step(self) -> Integers:
        """Return int64[rank, step]: how much more work (ns) each rank did than the others in each recorded step."""
        step = self.matched.column("step")
        inside = step != NO_STEP
        numbers, column = np.unique(step[inside], return_inverse=True)
        total = np.zeros((len(self.matched.ranks), len(numbers)), np.int64)
        np.add.at(total, (self.matched.rank_index[inside], column), self.excess()[inside])
        return total

    def excess_by_measure(self) -> dict[str, Integers]:
        """Return, for each column in `MEASURES`, such as `compute_ns`, the sum of each rank's excess in it."""
        return {name: self.sum_by_rank(self.excess(name)) for name in MEASURES}


@dataclass(frozen=True)
class Replay:
    """A simulation of the matched collectives with other amounts of work between them, for what-if questions.

    Example: two ranks work 50 and 70 ms before each of 4 all_reduces of 1 ms. Simulated as recorded they take 4 * 71
    ms = 284 ms; with rank 1's work cut to 50 ms they take 204 ms, so without its excess the job would save 80 ms. The
    simulation is needed because the saving can be less than the excess: if another rank is nearly as late, little is
    saved.
    """

    lateness: Lateness

    @cached_property
    def begin(self) -> Integers:
        """The time at which each rank's work for its first collective began (Unix ns)."""
        first = np.unique(self.lateness.matched.rank_index, return_index=True)[1]
        return self.lateness.on_first_clock("since")[first]

    @cached_property
    def blocked(self) -> Mask:
        """For each collective and rank, whether the rank did nothing for some time before its next collective."""
        return self.lateness.matched.column("blocked_ns") > 0

    def duration(self, work: Integers, overlap: Integers, transfer: Integers | None = None) -> int:
        """Simulate all collectives and return the ns from the first begin of work to the end of the last collective.

        `work` and `overlap` have a duration (ns) for each row of `matched`, a collective and rank. The rank works for
        `work` before it arrives at the collective, and continues to work for `overlap` after its arrival. If it was
        blocked in the recording (`blocked`), it then waits for the end of the collective. `transfer` has, for each
        collective, the ns from the arrival of its last rank to its end (None: as recorded).
        """
        transfer = self.lateness.transfer if transfer is None else transfer
        matched, clock = self.lateness.matched, self.begin.copy()
        done_beside, finished = np.zeros(len(clock), np.int64), clock.copy()
        bounds = np.append(matched.first_row, len(matched.collective))
        for collective in range(matched.count):
            rows = slice(bounds[collective], bounds[collective + 1])
            ranks = matched.rank_index[rows]
            arrival = clock[ranks] + np.maximum(work[rows] - done_beside[ranks], 0)
            ends = int(arrival.max() + transfer[collective])
            went_on = arrival + overlap[rows]
            clock[ranks] = np.where(self.blocked[rows], np.maximum(went_on, ends), went_on)
            done_beside[ranks] = overlap[rows]
            finished[ranks] = np.maximum(clock[ranks], ends)
        return int(finished.max() - self.begin.min())


def savings(lateness: Lateness) -> tuple[int, list[int]]:
    """Return the ns from the first work to the last collective, and for each rank the ns that it could save.

    A rank saves time if its work takes only as long as that of the median of the other ranks. All numbers are
    simulated, so that they can be compared: the recorded duration also has parts that no rank's work explains.
    """
    matched, replay = lateness.matched, Replay(lateness)
    recorded = matched.column("work_ns"), matched.column("overlap_ns")
    typical = [values - lateness.beyond_others(values) for values in recorded]
    as_recorded, saved = replay.duration(*recorded), []
    for index in range(len(matched.ranks)):
        mine = matched.rank_index == index
        work, overlap = (np.where(mine, other, own) for own, other in zip(recorded, typical, strict=True))
        saved.append(max(as_recorded - replay.duration(work, overlap), 0))
    return as_recorded, saved
