"""Sends and receives: which have met their other half on the peer.

An entry's name holds ranks within the group: `send 0->1` on its rank 0, `recv 1<-0` on its rank 1.
"""

import re
from collections import Counter
from enum import StrEnum
from typing import NamedTuple

from analyzers.hangs.model import Job, Op, RankState

NAME = re.compile(r"(?P<verb>send|recv) (?P<me>\d+)(?:->|<-)(?P<peer>\d+)")


class Half(StrEnum):
    """One half of a message, which takes a send on one rank and a recv on the other."""

    SEND = "send"
    RECV = "recv"

    @property
    def other(self) -> "Half":
        """The half that this one needs: a recv for a send, and the reverse."""
        return Half.RECV if self is Half.SEND else Half.SEND

    def name_between(self, rank: str | int, peer: str | int) -> str:
        """Return the name of an entry for this half of a message: `send 0->1`, `recv 1<-0`."""
        return f"{self} {rank}{'->' if self is Half.SEND else '<-'}{peer}"


class Peer(NamedTuple):
    """The half of a message that a rank issued, and the global rank that must issue the other half."""

    half: Half
    rank: int


def other_half_name(match: re.Match[str]) -> str:
    """Return the name of the entry for the other half of a message, whose own name `match` (of `NAME`) has."""
    return Half(match["verb"]).other.name_between(match["peer"], match["me"])


def peer_of(job: Job, op: Op) -> Peer | None:
    """Return the half and the peer of a send or recv; None for other operations, or if the peer is not in the group."""
    match = NAME.fullmatch(job.operation(op))
    members = job.groups[op.group].ranks
    # A group whose members were inferred may lack some.
    if not match or int(match["peer"]) >= len(members):
        return None
    return Peer(Half(match["verb"]), members[int(match["peer"])])


def find_absent_peers(job: Job, front: Op) -> list[int]:
    """Return the peers that a launch of messages waits for: those without the matching half or a complete batch.

    NCCL completes a batch as a whole, so a peer that has met this rank may still wait for a third one. `front` is an
    operation of the launch.
    """
    if lacking := find_unmet_peers(job, front):
        return lacking
    fronts = {peer.rank: job.ranks[peer.rank].front for peer in count_peers(job, front)}
    return sorted(rank for rank, other in fronts.items() if other and find_unmet_peers(job, other))


def find_unmet_peers(job: Job, front: Op) -> list[int]:
    """Return the peers that have not launched the matching send or recv for every message in the launch of `front`."""
    wanted = count_peers(job, front)
    return sorted({peer.rank for peer, count in wanted.items() if count_halves(job, front, peer) < count})


def count_peers(job: Job, front: Op) -> Counter[Peer]:
    """Return how many messages the launch of `front` has for each peer and half."""
    return Counter(peer for op in find_batch(job.ranks[front.rank], front) if (peer := peer_of(job, op)))


def count_halves(job: Job, front: Op, peer: Peer) -> int:
    """Return how many messages in the launch of `peer.rank` are the other half of one that the rank of `front` issued.

    `peer` has the half that the rank of `front` issued; a send needs a recv, and the reverse. 0 if the peer is in no
    message of this process group.
    """
    state = job.ranks.get(peer.rank)
    if state is None or state.front is None or not state.front.p2p or state.front.group != front.group:
        return 0
    wanted = Peer(peer.half.other, front.rank)
    return sum(peer_of(job, op) == wanted for op in find_batch(state, state.front))


def find_other_half(job: Job, front: Op, peer: Peer) -> Op | None:
    """Return the operation of `peer` that is the other half of `front`; None where its launch has none."""
    state = job.ranks[peer.rank]
    wanted = Peer(peer.half.other, front.rank)
    return next((op for op in find_batch(state, state.pending[0]) if peer_of(job, op) == wanted), None)


def find_batch(state: RankState, front: Op) -> list[Op]:
    """Return the rank's pending sends and receives launched together with `front`: they share a p2p sequence number."""
    return [op for op in state.pending if op.p2p and (op.group, op.p2p_seq) == (front.group, front.p2p_seq)]


def all_in_messages(job: Job, ranks: list[int]) -> bool:
    """Return whether all of these ranks that left a dump are in a send or recv; False if none left one."""
    fronts = [job.ranks[rank].front for rank in ranks if rank in job.ranks]
    return bool(fronts) and all(front is not None and front.p2p for front in fronts)
