"""Which of the operations that wait for a rank is the one that it never came to, where its own dump does not tell.

Its members wait for it in several groups at once, as each stands in the first operation that needs it. Sisters run
the same program, so the operation that comes first in theirs is the one; all others wait because of that.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from analyzers.hangs.graph.wait_graph import At
from analyzers.hangs.model import Job, Op
from analyzers.hangs.reading.p2p import NAME, OTHER_HALF, batch_of, peer_of

SISTERS_ASKED = 16
NOT_YET, LONG_AGO = 1 << 62, -1
"""Positions of operations that a sister has still to issue, or that its dump no longer holds."""


def first_missed(job: Job, rank: int, places: Sequence[At]) -> At | None:
    """The place that most sisters would come to first; None where none of them tells.

    Only those that can put all places in an order are asked, as where one is unknown it may be the first.
    """
    votes: Counter[At] = Counter()
    for sister in sisters(job, rank):
        order = {place: position_of(job, rank, sister, place) for place in places}
        known = {place: position for place, position in order.items() if position is not None}
        if len(known) == len(places) and min(known.values()) < NOT_YET:
            votes[min(known, key=known.__getitem__)] += 1
        if votes.total() == SISTERS_ASKED:
            break
    return votes.most_common(1)[0][0] if votes else None


def sisters(job: Job, rank: int) -> list[int]:
    """Ranks that run the same program: members of a rank's groups, the smallest first, but stages of a pipeline."""
    shared = [number for number, group in enumerate(job.groups) if rank in group.ranks]
    shared.sort(key=lambda number: len(job.groups[number].ranks))
    found = (m for number in shared if not carries_messages(job, number) for m in job.groups[number].ranks)
    return [m for m in dict.fromkeys(found) if m != rank and m in job.ranks]


def carries_messages(job: Job, number: int) -> bool:
    states = (job.ranks[m] for m in job.groups[number].ranks[:SISTERS_ASKED] if m in job.ranks)
    return any(op.p2p and op.group == number for state in states for op in state.ops)


def position_of(job: Job, rank: int, sister: int, place: At) -> int | None:
    """Where a sister's program has what a rank missed, as an index of its operations; None where that is unknown."""
    own = own_group(job, rank, sister, place)
    if own is None:
        return None
    ops = job.ranks[sister].ops
    if place.sender < 0:
        here = (i for i, op in enumerate(ops) if op.group == own and op.seq == place.seq and not op.p2p)
        return next(here, NOT_YET if place.seq > job.ranks[sister].enqueued(own) else LONG_AGO)
    partner = job.groups[own].ranks[job.groups[place.group].ranks.index(place.sender)]
    waits_in = next((op for op in stands_in(job, place.sender) if (peer_of(job, op) or ("", -1))[1] == rank), None)
    return other_half(job, sister, partner, own, waits_in)


def own_group(job: Job, rank: int, sister: int, place: At) -> int | None:
    """The sister's group of the same kind; for messages it must have the same place in it as the rank in its own."""
    ranks = job.groups[place.group].ranks
    if sister in ranks and place.sender < 0:
        return place.group
    own = [i for i in job.ranks[sister].positions if is_alike(job, i, place.group)]
    if place.sender >= 0:
        own = [i for i in own if job.groups[i].ranks.index(sister) == ranks.index(rank)]
    return own[0] if len(own) == 1 else None


def stands_in(job: Job, rank: int) -> list[Op]:
    """The messages of the launch that a rank stands in."""
    state = job.ranks[rank]
    return batch_of(state, state.front) if state.front else []


def is_alike(job: Job, number: int, other: int) -> bool:
    here, there = job.groups[number], job.groups[other]
    return (here.desc, len(here.ranks)) == (there.desc, len(there.ranks))


def other_half(job: Job, sister: int, partner: int, group: int, waits_in: Op | None) -> int | None:
    """Where a sister has its half of the message that its partner issued where the rank's partner stands.

    Halves complete together, so from the last completed pair on they can be counted without knowing the first one.
    """
    found = NAME.fullmatch(job.operation(waits_in)) if waits_in and partner in job.ranks else None
    if waits_in is None or found is None:
        return None
    theirs = named(job, partner, group, found[0])
    mine = named(job, sister, group, OTHER_HALF[found["verb"]].format(**found.groupdict()))
    at = next((i for i, op in enumerate(theirs) if op.p2p_seq == waits_in.p2p_seq), len(theirs))
    index = at - completed(theirs) + completed(mine)
    if index >= len(mine):
        return NOT_YET
    return job.ranks[sister].ops.index(mine[index]) if index >= 0 else None


def named(job: Job, rank: int, group: int, name: str) -> list[Op]:
    return [op for op in job.ranks[rank].ops if op.p2p and op.group == group and job.operation(op) == name]


def completed(ops: Iterable[Op]) -> int:
    return sum(op.done for op in ops)
