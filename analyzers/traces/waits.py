"""Who waits for whom in collectives: the rank that waits least is the one the others wait for.

A collective ends on all ranks together, so its length on a rank is the wait plus the transfer, and the shortest length
over the ranks is the transfer. Lengths need no common clock.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from analyzers.traces.intervals import COMMUNICATION
from analyzers.traces.model import RankWaits, Trace
from analyzers.traces.work import NO_STEP, Work

Key = tuple[object, ...]


def waits(works: Sequence[Work]) -> list[RankWaits]:
    """A row a rank over the collectives that all of these ranks recorded; empty where none can be matched.

    Outside the marked steps the first collective is left out: the recordings begin at different moments.
    """
    by_rank = {work.trace.rank: collectives(work) for work in works if work.trace.rank is not None}
    if len(by_rank) < 2:
        return []
    common = [key for key in next(iter(by_rank.values())) if all(key in found for found in by_rank.values())]
    common = common if all(work.trace.steps for work in works) else common[1:]
    if not common:
        return []
    ranks = sorted(rank for rank in by_rank if rank is not None)
    length = np.array([[by_rank[rank][key] for key in common] for rank in ranks], np.int64)
    wait = length - length.min(axis=0)
    last = np.bincount(length.argmin(axis=0), minlength=len(ranks))
    window = {work.trace.rank: window_of(work) for work in works}
    return [
        RankWaits(
            rank=rank,
            collectives=len(common),
            wait_ns=int(wait[i].sum()),
            last_arrivals=int(last[i]),
            window_ns=window[rank],
        )
        for i, rank in enumerate(ranks)
    ]


def window_of(work: Work) -> int:
    """The recorded steps' time, else the span of the work."""
    marks = work.trace.steps
    if marks:
        return sum(end - start for _, start, end in marks)
    return int(work.end.max() - work.start.min()) if len(work.rows) else 0


def collectives(work: Work) -> dict[Key, int]:
    """Length of each collective on this rank, by what identifies it on all ranks, in order of time."""
    trace, c = work.trace, work.trace.columns
    place = np.flatnonzero(work.kind == COMMUNICATION)
    place = place[np.argsort(work.start[place], kind="stable")]
    rows = work.rows[place]
    noted = {int(row): i for i, row in enumerate(c["collective_row"])}
    step, seen = work.step()[place], defaultdict[Key, int](int)
    found: dict[Key, int] = {}
    for row, position in zip(rows.tolist(), step.tolist(), strict=True):
        number = trace.steps[position][0] if position != NO_STEP else NO_STEP
        key = identity(trace, noted.get(row), trace.names[c["name"][row]], number)
        seen[key] += 1
        found[*key, seen[key]] = int(c["end"][row] - c["start"][row])
    return found


def identity(trace: Trace, noted: int | None, name: str, step: int) -> Key:
    """Group and sequence number where the recorder wrote them, else step and name; the order does the rest."""
    if noted is None:
        return (step, name)
    c = trace.columns
    group, sequence = trace.names[c["collective_group"][noted]], int(c["collective_sequence"][noted])
    if sequence >= 0:
        return (group, sequence)
    return (step, group, trace.names[c["collective_name"][noted]], int(c["collective_elements"][noted]))


def straggler(rows: Sequence[RankWaits]) -> tuple[RankWaits, int] | None:
    """The rank that waits least, and how much longer the others wait in the median, in ns."""
    if len(rows) < 2:
        return None
    least = min(rows, key=lambda row: (row.wait_ns, -row.last_arrivals))
    others = sorted(row.wait_ns for row in rows if row is not least)
    return least, others[len(others) // 2] - least.wait_ns
