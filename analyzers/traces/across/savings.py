"""Compute for each rank how much time the job would save if this rank worked only as long as the others.

A straggler that is mended does not work exactly as long as the others in each step: like every rank it has its own
delays by chance, for which the others wait. A saving that is computed without them is too large, on a busy machine by
several per cent of the step.

Example: rank 1 works 20, 22, 71 and 19 ms before the first all_reduce of four steps, the other ranks 20, 21, 20 and
20 ms. Its 71 ms are far beyond what the others' work varies by, and become 20 ms. The other three steps stay as they
are.
"""

import numpy as np

from analyzers.columns import Integers, Mask
from analyzers.traces.across.lateness import Lateness, Replay
from analyzers.traces.across.matching import MatchedCollectives

_SIMULATED_AT_ONCE = 1 << 17
"""The number of clocks that are simulated together; the simulation needs a few times as many integers of memory."""
_BY_CHANCE = 3.0
"""The multiple of the scatter of the other ranks' work up to which a difference from them counts as chance."""
_SCATTER_AT_LEAST = 0.02
"""The least scatter of work, as a share of the median work: the clocks and the scheduling of a host vary by as much."""
_TO_STANDARD_DEVIATION = 1.4826
"""What turns the median absolute deviation of normally distributed values into their standard deviation."""
STEPS_AT_LEAST = 5
"""The fewest steps without a fault from which a rank's usual distance from the others can be told."""


def savings(lateness: Lateness) -> tuple[int, list[int]]:
    """Return the simulated duration of the job, and for each rank the ns saved if it worked only as long as the others.

    "As long as the others" is the median of the other ranks' work, with the rank's own delays by chance. The duration
    (ns) is from the first work to the end of the last collective. It is simulated, too, so that it can be compared with
    the savings: the recorded duration also has parts that no rank's work explains.
    """
    matched, replay = lateness.matched, Replay(lateness)
    recorded = matched.column("work_ns"), matched.column("overlap_ns")
    work, overlap = levelled_work(lateness, "work_ns"), levelled_work(lateness, "overlap_ns")
    as_recorded = replay.duration(*recorded)
    ranks = range(len(matched.ranks))
    together = max(1, _SIMULATED_AT_ONCE // len(ranks))
    saved = [
        max(as_recorded - duration, 0)
        for first in ranks[::together]
        for duration in replay.durations(recorded, (work, overlap), ranks[first : first + together]).tolist()
    ]
    return as_recorded, saved


def levelled_work(lateness: Lateness, name: str) -> Integers:
    """Return, for each row of `lateness.matched`, the work (ns) if the rank worked about as long as the others.

    `name` is the column of work, `work_ns` or `overlap_ns`. A collective is compared with those at the same place in
    the other steps. Work that differs from the others' only by chance stays as it is, except that the rank's usual
    distance from them at this place is taken off. All other work becomes the lower median of the other ranks' work.
    """
    matched = lateness.matched
    work = matched.column(name)
    beyond = lateness.beyond_others(work)
    others = work - beyond
    place = places(matched)
    middle = _grouped_median(others, place)
    scatter = _TO_STANDARD_DEVIATION * _grouped_median(np.abs(others - middle), place) + _SCATTER_AT_LEAST * middle
    usual = _grouped_median(beyond, place)
    near_others, near_usual = np.abs(beyond) <= _BY_CHANCE * scatter, np.abs(beyond - usual) <= _BY_CHANCE * scatter
    # A rank that is late in most steps is compared with itself.
    is_late_mostly = 2 * _count_by(place, near_others) < np.bincount(place)[place]
    by_chance = np.where(is_late_mostly, near_usual, near_others)
    by_chance &= _count_by(place, by_chance) >= STEPS_AT_LEAST
    level = np.zeros_like(work)
    level[by_chance] = _grouped_median(beyond[by_chance], place[by_chance])
    levelled: Integers = np.where(by_chance, np.maximum(work - level, 0), others)
    return levelled


def places(matched: MatchedCollectives) -> Integers:
    """Return, for each row of `matched`, a number that rows of one rank at the same place in their steps share.

    The place is how many collectives of the rank there are before it in the step.
    """
    step = matched.column("step")
    order = np.lexsort((matched.collective, step, matched.rank_index))
    is_first = np.diff(step[order], prepend=-2) != 0
    is_first |= np.diff(matched.rank_index[order], prepend=-1) != 0
    first = np.flatnonzero(is_first)
    before = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    place = np.empty(len(order), np.int64)
    place[order] = before * len(matched.ranks) + matched.rank_index[order]
    return np.unique(place, return_inverse=True)[1]


def _grouped_median(values: Integers, group: Integers) -> Integers:
    """Return, for each value, the lower median of all values of its group."""
    order = np.lexsort((values, group))
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    size = np.diff(np.append(first, len(order)))
    median = np.empty_like(values)
    median[order] = np.repeat(values[order[first + (size - 1) // 2]], size)
    return median


def _count_by(group: Integers, mask: Mask) -> Integers:
    """Return, for each element of a mask, how many elements of its group are true."""
    return np.bincount(group, weights=mask).astype(np.int64)[group]
