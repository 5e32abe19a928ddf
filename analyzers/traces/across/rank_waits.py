"""What the traces of several ranks say together: who waits for whom, since when, why, and what it costs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from analyzers.traces.across.clocks import Clock, clocks
from analyzers.traces.across.lateness import Lateness, spared
from analyzers.traces.across.matching import MatchedCollectives, match_collectives
from analyzers.traces.answers.collectives import ELEMENT_BYTES, bus_factor
from analyzers.traces.loading import Recording

MEETINGS_AT_MOST = 50


class RankWaits(msgspec.Struct, frozen=True, kw_only=True):
    """A rank in the collectives that all of their members recorded.

    `wait_ns` it waited for others; `caused_ns` others waited in those where it came last; `excess_ns` is what it did
    more than the others before its arrivals; `saved_ns` by how much the `window_ns` would shrink without that.
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
    """One collective on all its ranks, split into waiting for the last one and the transfer.

    `late_ns` is the last rank's arrival after the middle one's, `wait_ns` the waiting of all ranks together.
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
    """The collectives of one process group: which of its ranks the others wait for, by the time waited."""

    name: str
    desc: str
    ranks: list[int]
    collectives: int
    wait_ns: int
    transfer_ns: int
    last_rank: int
    last_rank_share: float


class AxisWaits(msgspec.Struct, frozen=True, kw_only=True):
    """The process groups that have one description, such as `mesh_tp`, all together; and the one that waits longest."""

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
    """The matched collectives of one step's recordings, and what follows from them."""

    late: Lateness
    waits: list[RankWaits]
    groups: list[GroupWaits]
    meetings: list[CollectiveWait]
    clocks: list[Clock]


def compare_ranks(recordings: Sequence[Recording]) -> RankComparison | None:
    """None where fewer than two ranks were recorded, or none of their collectives can be matched."""
    met = match_collectives(recordings)
    if met is None:
        return None
    late = Lateness(met, clocks(met)).in_order()
    return RankComparison(late, rank_waits(late), group_waits(late), longest_waits(late), list(late.clocks))


def rank_waits(late: Lateness) -> list[RankWaits]:
    met = late.met
    wait, excess = late.by_rank(late.wait), late.by_rank(late.excess())
    told = np.bincount(met.rank[late.latest], minlength=len(met.ranks))
    caused = np.zeros(len(met.ranks), np.int64)
    np.add.at(caused, met.rank[late.latest], np.add.reduceat(late.wait, met.first))
    took = np.bincount(met.rank, minlength=len(met.ranks))
    window, less = spared(late)
    return [
        RankWaits(
            rank=rank,
            collectives=int(took[i]),
            wait_ns=int(wait[i]),
            caused_ns=int(caused[i]),
            last_arrivals=int(told[i]),
            excess_ns=int(excess[i]),
            saved_ns=less[i],
            window_ns=window,
        )
        for i, rank in enumerate(met.ranks)
    ]


def longest_waits(late: Lateness) -> list[CollectiveWait]:
    """The collectives in which ranks waited longest, all together."""
    waited = np.add.reduceat(late.wait, late.met.first)
    order = np.argsort(-waited, kind="stable")[:MEETINGS_AT_MOST]
    return [collective_wait(late, int(which), int(waited[which])) for which in order]


def collective_wait(late: Lateness, which: int, waited: int) -> CollectiveWait:
    met, rows = late.met, np.flatnonzero(late.met.which == which)
    first, last = int(rows[0]), int(late.latest[which])
    sequence, step, members, elements = (
        int(met.column(name)[first]) for name in ("sequence", "step", "members", "elements")
    )
    size = max(elements, 0) * ELEMENT_BYTES.get(met.told(first, "dtype").lower(), 0)
    transfer, name, group = int(late.transfer[which]), met.told(first, "name"), met.told(first, "group")
    return CollectiveWait(
        name=name,
        group=group,
        group_desc=group_description(met, group, int(met.rank[first])),
        sequence=sequence if sequence >= 0 else None,
        step=step if step >= 0 else None,
        ranks=[met.ranks[i] for i in met.rank[rows]],
        last_rank=met.ranks[met.rank[last]],
        late_ns=int(late.lateness[last]),
        wait_ns=waited,
        longest_wait_ns=int(late.wait[rows].max()),
        transfer_ns=transfer,
        bytes=size,
        bus_bytes_per_s=round(size / transfer * 1e9 * bus_factor(name, members)) if transfer else 0,
        start_ns=int(late.arrival[rows].min()),
    )


def group_waits(late: Lateness) -> list[GroupWaits]:
    """Each process group with its ranks, the one with most waiting first."""
    met = late.met
    label = [(met.told(int(row), "group"), tuple(met.rank[met.which == which])) for which, row in labelled(met)]
    found = []
    for name, places in dict.fromkeys(label):
        chosen = np.array([one == (name, places) for one in label])
        waited = np.add.reduceat(late.wait, met.first)[chosen]
        by_last = np.zeros(len(met.ranks), np.int64)
        np.add.at(by_last, met.rank[late.latest[chosen]], waited)
        found.append(
            GroupWaits(
                name=name,
                desc=group_description(met, name, places[0]),
                ranks=[met.ranks[i] for i in places],
                collectives=int(chosen.sum()),
                wait_ns=int(waited.sum()),
                transfer_ns=int(late.transfer[chosen].sum()),
                last_rank=met.ranks[int(by_last.argmax())],
                last_rank_share=round(float(by_last.max() / max(1, waited.sum())), 3),
            )
        )
    return sorted(found, key=lambda one: -one.wait_ns)


def axis_waits(found: Sequence[GroupWaits]) -> list[AxisWaits]:
    """Groups by what they are called, those with most waiting first; the groups come in that order, too."""
    called = defaultdict[str, list[GroupWaits]](list)
    for group in found:
        called[group.desc].append(group)
    together = [
        AxisWaits(
            desc=desc,
            groups=len(mine),
            collectives=sum(one.collectives for one in mine),
            wait_ns=sum(one.wait_ns for one in mine),
            transfer_ns=sum(one.transfer_ns for one in mine),
            worst_ranks=mine[0].ranks,
            worst_wait_ns=mine[0].wait_ns,
            worst_last_rank=mine[0].last_rank,
        )
        for desc, mine in called.items()
        if desc
    ]
    return sorted(together, key=lambda one: -one.wait_ns)


def labelled(met: MatchedCollectives) -> list[tuple[int, int]]:
    return list(enumerate(met.first.tolist()))


def group_description(met: MatchedCollectives, name: str, place: int) -> str:
    listed = met.recordings[place].trace.header.get("groups", [])
    return next((group["desc"] for group in listed if group["name"] == name), "")
