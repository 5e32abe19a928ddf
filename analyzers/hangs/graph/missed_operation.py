"""Find the first operation that a rank never issued, if other ranks wait for it in several operations.

Members of several process groups may wait for one rank at once, each in its first operation that needs this rank. The
operation that comes first in the program was missed; the other waits are consequences. If the rank's own dump does not
show the order, the order is taken from ranks that run the same program, here called *reference ranks*.

Reference ranks share a process group with the rank, unless the group connects pipeline stages. *Similar groups* have
the same description and size: the tp group {2, 3} is similar to {0, 1}.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from analyzers.hangs.graph.wait_graph import OpNode
from analyzers.hangs.model import Job, Op
from analyzers.hangs.reading.p2p import NAME, find_batch, other_half_name, peer_of

_REFERENCES_ASKED = 16
"""The number of reference ranks that vote; the majority of so few is as reliable as that of thousands."""
_NOT_YET, _LONG_AGO = 1 << 62, -1
"""Positions that stand for operations which a reference has not issued yet, or which its dump no longer holds."""


def find_first_missed(job: Job, rank: int, nodes: Sequence[OpNode]) -> OpNode | None:
    """Return the operation in `nodes` that comes first in the program of `rank`, by a vote of its reference ranks.

    Reference ranks run the same program as `rank`; `nodes` are the operations in which other ranks wait for `rank`. A
    reference rank votes only if its dump shows the position of all of these operations, because an operation with an
    unknown position may be the first. The result is None if no rank votes.
    """
    votes: Counter[OpNode] = Counter()
    for reference in _find_reference_ranks(job, rank):
        order = {node: _find_position(job, rank, reference, node) for node in nodes}
        known = {node: position for node, position in order.items() if position is not None}
        # A reference rank that has issued none of the operations does not show which one comes first.
        if len(known) == len(nodes) and min(known.values()) < _NOT_YET:
            votes[min(known, key=known.__getitem__)] += 1
        if votes.total() == _REFERENCES_ASKED:
            break
    return votes.most_common(1)[0][0] if votes else None


def _find_reference_ranks(job: Job, rank: int) -> list[int]:
    """Return the ranks with a dump that share a group with `rank` and run the same program; small groups first.

    Their dumps show what `rank` should have issued. Groups of pipeline stages do not count.
    """
    shared = [number for number, group in enumerate(job.groups) if rank in group.ranks]
    shared.sort(key=lambda number: len(job.groups[number].ranks))
    members = (m for number in shared if not _carries_messages(job, number) for m in job.groups[number].ranks)
    return [m for m in dict.fromkeys(members) if m != rank and m in job.ranks]


def _carries_messages(job: Job, number: int) -> bool:
    """Return whether ranks send and receive in a group, as pipeline stages do; such members run different programs.

    `number` is an index in `Job.groups`.
    """
    states = (job.ranks[m] for m in job.groups[number].ranks[:_REFERENCES_ASKED] if m in job.ranks)
    return any(op.p2p and op.group == number for state in states for op in state.ops)


def _find_position(job: Job, rank: int, reference: int, node: OpNode) -> int | None:
    """Return the index of the operation that corresponds to `node` among those of rank `reference`; None if unknown.

    Rank `reference` runs the same program as `rank`. The result is `_NOT_YET` if rank `reference` has not issued the
    operation, and `_LONG_AGO` if its dump no longer contains it.
    """
    own = _find_similar_group(job, rank, reference, node)
    if own is None:
        return None
    ops = job.ranks[reference].ops
    if not node.is_p2p:
        same = (i for i, op in enumerate(ops) if op.group == own and op.seq == node.seq and not op.p2p)
        # Not in the dump: the reference is behind, or its ring has lost the operation.
        return next(same, _NOT_YET if node.seq > job.ranks[reference].enqueued(own) else _LONG_AGO)
    partner = job.groups[own].ranks[job.groups[node.group].ranks.index(node.sender)]
    messages = ((op, peer_of(job, op)) for op in _current_batch(job, node.sender))
    current = next((op for op, peer in messages if peer and peer.rank == rank), None)
    return _find_half_position(job, reference, partner, own, current)


def _find_similar_group(job: Job, rank: int, reference: int, node: OpNode) -> int | None:
    """Return the index of the process group of rank `reference` that corresponds to the group of `node`.

    It is the same group, or a group with the same description and size. For sends and receives, `reference` must also
    have the same position in its group as `rank` in the group of `node`. The result is None if no group corresponds, or
    several do.
    """
    ranks = job.groups[node.group].ranks
    if reference in ranks and not node.is_p2p:
        return node.group
    own = [i for i in job.ranks[reference].positions if _are_similar_groups(job, i, node.group)]
    if node.is_p2p:
        own = [i for i in own if job.groups[i].ranks.index(reference) == ranks.index(rank)]
    return own[0] if len(own) == 1 else None


def _current_batch(job: Job, rank: int) -> list[Op]:
    """Return the sends and receives that a rank launched together and waits in now; empty if it is in no operation."""
    state = job.ranks[rank]
    return find_batch(state, state.current) if state.current else []


def _are_similar_groups(job: Job, number: int, other: int) -> bool:
    """Return whether two groups, given by their indexes in `Job.groups`, have the same description and size."""
    a, b = job.groups[number], job.groups[other]
    return (a.desc, len(a.ranks)) == (b.desc, len(b.ranks))


def _find_half_position(job: Job, reference: int, partner: int, group: int, current: Op | None) -> int | None:
    """Return the index, in the operations of rank `reference`, of the send or recv that corresponds to a missing one.

    The missing operation is the counterpart of `current`: a rank (the waiter) waits in `current` for another rank (the
    absent rank), which has not issued the other half. Both belong to a similar group; here `partner` has the waiter's
    position and `reference` the absent rank's position. A send and its recv complete together, so messages between
    `reference` and `partner` are counted from the last completed pair on: the ring buffers may have lost the first
    pairs. The result is `_NOT_YET` if `reference` has not issued the operation, and None if this is not known.
    """
    match = NAME.fullmatch(job.operation(current)) if current and partner in job.ranks else None
    if current is None or match is None:
        return None
    theirs = _messages_named(job, partner, group, match[0])
    mine = _messages_named(job, reference, group, other_half_name(match))
    number = next((i for i, op in enumerate(theirs) if op.p2p_seq == current.p2p_seq), len(theirs))
    index = number - _count_done(theirs) + _count_done(mine)
    if index >= len(mine):
        return _NOT_YET
    return job.ranks[reference].ops.index(mine[index]) if index >= 0 else None


def _messages_named(job: Job, rank: int, group: int, name: str) -> list[Op]:
    """Return a rank's sends or receives named `name` (such as `send 0->1`) in a group, oldest first."""
    return [op for op in job.ranks[rank].ops if op.p2p and op.group == group and job.operation(op) == name]


def _count_done(ops: Iterable[Op]) -> int:
    """Return how many of these operations have completed."""
    return sum(op.done for op in ops)
