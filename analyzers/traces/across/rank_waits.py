"""Compute tables of the waiting in collectives: which rank waits for which, for how long, and at what cost."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from analyzers.columns import Integers
from analyzers.traces.across.clocks import Clock, clocks
from analyzers.traces.across.lateness import Lateness
from analyzers.traces.across.matching import MatchedCollectives, match_collectives
from analyzers.traces.across.savings import savings
from analyzers.traces.across.what_if import WhatIf, what_ifs
from analyzers.traces.answers.collectives import bus_factor, element_bytes
from analyzers.traces.loading import Recording

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
    """Return, for each collective, the waiting time summed over all of its ranks, in ns."""
    return np.add.reduceat(lateness.wait, lateness.matched.first_row)


def longest_waits(lateness: Lateness) -> list[CollectiveWait]:
    """Return the collectives with the longest waiting, summed over their ranks, the longest first."""
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
