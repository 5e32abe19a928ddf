"""Compute tables of the waiting in collectives: which rank waits for which, for how long, and at what cost."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import numpy as np

from analyzers.columns import Integers, Mask
from analyzers.traces.clocks import Clock, MatchedCollectives, clocks, match_collectives
from analyzers.traces.collectives import bus_factor, element_bytes
from analyzers.traces.columns import HOST_PHASES
from analyzers.traces.lateness import Lateness, Replay
from analyzers.traces.loading import Recording

_SIMULATED_AT_ONCE = 1 << 17
"""The number of clocks that are simulated together; the simulation needs a few times as many integers of memory."""
_BY_CHANCE = 3.0
"""The multiple of the scatter of the other ranks' work up to which a difference from them counts as chance."""
_SCATTER_AT_LEAST = 0.02
"""The least scatter of work, as a share of the median work: the clocks and the scheduling of a host vary by as much."""
_TO_STANDARD_DEVIATION = 1.4826
"""What turns the median absolute deviation of normally distributed values into their standard deviation."""
STEPS_AT_LEAST = 5
"""The fewest steps without a fault from which a rank's usual distance from the others can be determined."""


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
    order = np.lexsort((values, group))
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    size = np.diff(np.append(first, len(order)))
    median = np.empty_like(values)
    median[order] = np.repeat(values[order[first + (size - 1) // 2]], size)
    return median


def _count_by(group: Integers, mask: Mask) -> Integers:
    return np.bincount(group, weights=mask).astype(np.int64)[group]


# Estimate the time that the job would save if one thing were faster, by simulating the matched collectives again.
#
# Example: two ranks wait 20 ms each for their data before each of 4 all_reduces. If only one of them loads faster,
# nothing is saved, because it then waits for the other; if both do, 80 ms are saved.

WORTH, _COLLECTIVES_AT_MOST = 0.01, 3
"""The share of the time from which on an answer is listed, and the most kinds of collectives that are simulated."""


class Change(StrEnum):
    """The assumption of a what-if question: what would be faster.

    `rank_as_others`: one rank works only as long as the others. `without_phase`: a phase of the host takes no time.
    `collective_twice_as_fast`: the transfers of a collective take half as long. `stage_as_others`: a pipeline stage
    computes only as long as the others.
    """

    RANK_AS_OTHERS = "rank_as_others"
    WITHOUT_PHASE = "without_phase"
    COLLECTIVE_TWICE_AS_FAST = "collective_twice_as_fast"
    STAGE_AS_OTHERS = "stage_as_others"


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The time that the recorded part of the job would save if one thing were faster, found by simulation.

    `change` says what is assumed. `window_ns` is the simulated time from the first work to the end of the last
    collective, over `steps` recorded steps; with the change it would be `saved_ns` shorter. `name` is the phase (such
    as `data`) or the collective that is assumed to be faster (empty: neither). `rank` is the rank that is assumed to be
    faster (None: not a single one). `stage` (from 0) is the pipeline stage that is assumed to compute faster, and
    `ranks` are its ranks.
    """

    change: Change
    name: str
    rank: int | None
    steps: int
    window_ns: int
    saved_ns: int
    stage: int | None = None
    ranks: list[int] = []


def what_ifs(lateness: Lateness, window_ns: int, saved_by_rank: dict[int, int]) -> list[WhatIf]:
    """Return the assumed changes that would save more than 1 % of the time, the largest saving first.

    `window_ns` is the simulated time from the first work to the end of the last collective. `saved_by_rank` has, for
    each rank, the ns saved if it worked only as long as the others.
    """
    steps = max(1, len(set(lateness.matched.column("step").tolist())))

    def answer(change: Change, name: str, rank: int | None, saved_ns: int) -> WhatIf:
        return WhatIf(change=change, name=name, rank=rank, steps=steps, window_ns=window_ns, saved_ns=saved_ns)

    rows = [answer(Change.RANK_AS_OTHERS, "", rank, saved) for rank, saved in saved_by_rank.items()]
    rows += [answer(Change.WITHOUT_PHASE, phase, None, saved) for phase, saved in _without_phases(lateness, window_ns)]
    rows += [
        answer(Change.COLLECTIVE_TWICE_AS_FAST, name, None, saved)
        for name, saved in _faster_collectives(lateness, window_ns)
    ]
    return sorted((row for row in rows if row.saved_ns > WORTH * window_ns), key=lambda row: -row.saved_ns)


def _without_phases(lateness: Lateness, window_ns: int) -> Iterator[tuple[str, int]]:
    """Yield (phase, ns saved if the phase took no time on any rank) for each longer phase of the host.

    A phase counts as longer if it takes more than 1 % of `window_ns` on some rank. `window_ns` is the simulated time
    from the first work to the last collective.
    """
    replay, work = Replay(lateness), lateness.matched.column("work_ns")
    overlap = lateness.matched.column("overlap_ns")
    for phase in HOST_PHASES:
        spent = np.minimum(lateness.matched.column(f"{phase}_ns"), work)
        # What no rank spends on a phase cannot be saved, so only few have to be played.
        if lateness.sum_by_rank(spent).max() > WORTH * window_ns:
            yield phase, max(0, window_ns - replay.duration(work - spent, overlap))


def _faster_collectives(lateness: Lateness, window_ns: int) -> Iterator[tuple[str, int]]:
    """Yield (name, ns saved if their transfers took half as long) for the collectives with the longest transfers.

    Only the three names with the most transfer time are tried, if it is more than 1 % of `window_ns`.
    """
    matched, replay = lateness.matched, Replay(lateness)
    work, overlap = matched.column("work_ns"), matched.column("overlap_ns")
    names = np.array([matched.text(row, "name") for row in matched.first_row.tolist()])
    total = {name: int(lateness.transfer[names == name].sum()) for name in dict.fromkeys(names.tolist())}
    for name in sorted(total, key=lambda name: -total[name])[:_COLLECTIVES_AT_MOST]:
        if total[name] > WORTH * window_ns:
            transfer = np.where(names == name, lateness.transfer // 2, lateness.transfer)
            yield name, max(0, window_ns - replay.duration(work, overlap, transfer))


_LONGEST_WAITS_AT_MOST = 50


class RankWaits(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting of one rank in all collectives that were recorded on all of their ranks; times are in ns.

    `collectives` is the number of these collectives. `wait_ns` is how long the rank waited for others, and `caused_ns`
    how long others waited in the `last_arrivals` collectives where this rank arrived last. `excess_ns` is how much
    longer than the others the rank worked before its arrivals. `window_ns` is the simulated time from the first work to
    the end of the last collective, and `saved_ns` is how much shorter it would be without the rank's excess.
    """

    rank: int
    collectives: int
    wait_ns: int
    caused_ns: int
    last_arrivals: int
    excess_ns: int
    saved_ns: int
    window_ns: int


class CollectiveWait(msgspec.Struct, frozen=True, kw_only=True):
    """One collective over all of its ranks, divided into waiting for the last rank and the transfer; times are in ns.

    `group` is the name of its process group, `group_desc` its description in the job, and `sequence` the number of the
    collective in the group (None: not recorded). `late_ns` is how long after the median rank the last rank
    (`last_rank`) arrived. `wait_ns` is the sum of the waiting of all ranks, and `longest_wait_ns` the longest waiting
    of one rank. `transfer_ns` is the time from the last arrival to the median end. `bytes` is the size of one rank's
    input or output, whichever is larger. `bus_bytes_per_s` is the bandwidth on the links, as nccl-tests defines it.
    `start_ns` is the first arrival (Unix time in ns, by the first rank's clock).
    """

    name: str
    group: str
    group_desc: str = ""
    sequence: int | None
    step: int | None
    ranks: list[int]
    last_rank: int
    late_ns: int
    wait_ns: int
    longest_wait_ns: int
    transfer_ns: int
    bytes: int
    bus_bytes_per_s: float
    start_ns: int


class GroupWaits(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting in all collectives of one process group; times are in ns.

    `desc` is the description of the group in the job, such as `mesh_tp`. `wait_ns` is the sum of the waiting of all of
    its ranks, and `transfer_ns` the sum of the transfers. `last_rank` is the rank for which the others waited most, and
    `last_rank_share` is the share of all this waiting that was for this rank (0 to 1).
    """

    name: str
    desc: str
    ranks: list[int]
    collectives: int
    wait_ns: int
    transfer_ns: int
    last_rank: int
    last_rank_share: float


class AxisWaits(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting in all process groups along one dimension of the device mesh; times are in ns.

    `desc` is the description that these groups share, such as `mesh_tp`, and `groups` is the number of the groups.
    `wait_ns` is the sum of the waiting of all ranks, and `transfer_ns` the sum of the transfers. `worst_ranks`,
    `worst_wait_ns` and `worst_last_rank` are the ranks of the group with most waiting, its waiting, and the rank for
    which its members waited most.
    """

    desc: str
    groups: int
    collectives: int
    wait_ns: int
    transfer_ns: int
    worst_ranks: list[int]
    worst_wait_ns: int
    worst_last_rank: int


@dataclass(frozen=True)
class RankComparison:
    """The result of comparing ranks by the collectives that they share, for recordings of the same part of a run."""

    lateness: Lateness
    waits: list[RankWaits]
    groups: list[GroupWaits]
    longest_waits: list[CollectiveWait]
    clocks: list[Clock]
    what_ifs: list[WhatIf]


def compare_ranks(recordings: Sequence[Recording]) -> RankComparison | None:
    """Return the comparison of ranks by their shared collectives; None if no two ranks recorded the same collective.

    `recordings` are the recordings of all ranks for the same part of the run.
    """
    matched = match_collectives(recordings)
    if matched is None:
        return None
    lateness = Lateness(matched, clocks(matched)).in_order()
    waits, groups, longest = _rank_waits(lateness), _group_waits(lateness), longest_waits(lateness)
    saved = {row.rank: row.saved_ns for row in waits}
    answers = what_ifs(lateness, waits[0].window_ns, saved)
    return RankComparison(lateness, waits, groups, longest, list(lateness.clocks), answers)


def _rank_waits(lateness: Lateness) -> list[RankWaits]:
    matched = lateness.matched
    wait, excess = lateness.sum_by_rank(lateness.wait), lateness.sum_by_rank(lateness.excess())
    last_rank = matched.rank_index[lateness.last_row]
    last_arrivals = np.bincount(last_rank, minlength=len(matched.ranks))
    caused = np.zeros(len(matched.ranks), np.int64)
    np.add.at(caused, last_rank, _waiting_of_all(lateness))
    collectives = np.bincount(matched.rank_index, minlength=len(matched.ranks))
    window, saved = savings(lateness)
    return [
        RankWaits(
            rank=rank,
            collectives=int(collectives[i]),
            wait_ns=int(wait[i]),
            caused_ns=int(caused[i]),
            last_arrivals=int(last_arrivals[i]),
            excess_ns=int(excess[i]),
            saved_ns=saved[i],
            window_ns=window,
        )
        for i, rank in enumerate(matched.ranks)
    ]


def _waiting_of_all(lateness: Lateness) -> Integers:
    return np.add.reduceat(lateness.wait, lateness.matched.first_row)


def longest_waits(lateness: Lateness) -> list[CollectiveWait]:
    waited = _waiting_of_all(lateness)
    order = np.argsort(-waited, kind="stable")[:_LONGEST_WAITS_AT_MOST]
    return [_collective_wait(lateness, collective, int(waited[collective])) for collective in order.tolist()]


def _collective_wait(lateness: Lateness, collective: int, waited: int) -> CollectiveWait:
    matched, rows = lateness.matched, np.flatnonzero(lateness.matched.collective == collective)
    first, last = int(rows[0]), int(lateness.last_row[collective])
    sequence, step, members, elements = (
        int(matched.column(name)[first]) for name in ("sequence", "step", "members", "elements")
    )
    size = max(elements, 0) * element_bytes(matched.text(first, "dtype"))
    transfer, name, group = (
        int(lateness.transfer[collective]),
        matched.text(first, "name"),
        matched.text(first, "group"),
    )
    return CollectiveWait(
        name=name,
        group=group,
        group_desc=_group_description(matched, group, int(matched.rank_index[first])),
        sequence=sequence if sequence >= 0 else None,
        step=step if step >= 0 else None,
        ranks=[matched.ranks[i] for i in matched.rank_index[rows]],
        last_rank=matched.ranks[matched.rank_index[last]],
        late_ns=int(lateness.lateness[last]),
        wait_ns=waited,
        longest_wait_ns=int(lateness.wait[rows].max()),
        transfer_ns=transfer,
        bytes=size,
        bus_bytes_per_s=round(size / transfer * 1e9 * bus_factor(name, members)) if transfer else 0,
        start_ns=int(lateness.arrival[rows].min()),
    )


def _group_waits(lateness: Lateness) -> list[GroupWaits]:
    """Return the waiting in the collectives of each process group, the group with most waiting first.

    A group is identified by its name and its ranks, because the groups along one mesh axis may all have one name.
    """
    matched = lateness.matched
    collectives_of = defaultdict[tuple[str, tuple[int, ...]], list[int]](list)
    for collective, (row, size) in enumerate(zip(matched.first_row.tolist(), matched.size.tolist(), strict=True)):
        members = tuple(matched.rank_index[row : row + size].tolist())
        collectives_of[matched.text(row, "group"), members].append(collective)
    waited, last = _waiting_of_all(lateness), matched.rank_index[lateness.last_row]
    rows = []
    for (name, members), mine in collectives_of.items():
        total, late = int(waited[mine].sum()), dict.fromkeys(members, 0)
        for rank, ns in zip(last[mine].tolist(), waited[mine].tolist(), strict=True):
            late[rank] += ns
        last_rank = max(late, key=lambda rank: late[rank])
        rows.append(
            GroupWaits(
                name=name,
                desc=_group_description(matched, name, members[0]),
                ranks=[matched.ranks[i] for i in members],
                collectives=len(mine),
                wait_ns=total,
                transfer_ns=int(lateness.transfer[mine].sum()),
                last_rank=matched.ranks[last_rank],
                last_rank_share=round(late[last_rank] / max(1, total), 3),
            )
        )
    return sorted(rows, key=lambda row: -row.wait_ns)


def axis_waits(groups: Sequence[GroupWaits]) -> list[AxisWaits]:
    """Return the waiting along each axis of the device mesh, summed over its process groups, most waiting first.

    `groups` must be sorted by waiting, most first. Groups without a description are left out.
    """
    by_description = defaultdict[str, list[GroupWaits]](list)
    for group in groups:
        by_description[group.desc].append(group)
    rows = [
        AxisWaits(
            desc=desc,
            groups=len(mine),
            collectives=sum(group.collectives for group in mine),
            wait_ns=sum(group.wait_ns for group in mine),
            transfer_ns=sum(group.transfer_ns for group in mine),
            worst_ranks=mine[0].ranks,
            worst_wait_ns=mine[0].wait_ns,
            worst_last_rank=mine[0].last_rank,
        )
        for desc, mine in by_description.items()
        if desc
    ]
    return sorted(rows, key=lambda row: -row.wait_ns)


def _group_description(matched: MatchedCollectives, name: str, rank_index: int) -> str:
    """Return the job's description of the process group `name`, such as `mesh_tp`; empty if the trace has none.

    The description is read from the trace of the rank with index `rank_index`.
    """
    listed = matched.recordings[rank_index].trace.header.get("groups", [])
    return next((group["desc"] for group in listed if group["name"] == name), "")


def summed_waits(comparisons: Sequence[RankComparison]) -> list[RankWaits]:
    """Return the waiting of each rank, summed over comparisons of recordings at different steps of the run."""
    total: dict[int, RankWaits] = {}
    for row in (row for comparison in comparisons for row in comparison.waits):
        total[row.rank] = _with_added(total[row.rank], row) if row.rank in total else row
    return [total[rank] for rank in sorted(total)]


def _with_added(row: RankWaits, other: RankWaits) -> RankWaits:
    sums = {name: getattr(row, name) + getattr(other, name) for name in RankWaits.__struct_fields__ if name != "rank"}
    return msgspec.structs.replace(row, **sums)
