"""Match each send with the recv on its peer, and each recv with the send.

The name of an operation has the ranks within the process group: rank 0 issues `send 0->1`, rank 1 issues `recv 1<-0`.
"""

import re
from collections import Counter
from enum import StrEnum
from typing import NamedTuple

from analyzers.hangs.model import Job, Op, RankState

NAME = re.compile(r"(?P<verb>send|recv) (?P<me>\d+)(?:->|<-)(?P<peer>\d+)")


class Half(StrEnum):
    """One half of a message between two ranks: the send or the recv."""

    SEND = "send"
    RECV = "recv"

    @property
    def other(self) -> "Half":
        """`Half.RECV` for `Half.SEND`, and the reverse."""
        return Half.RECV if self is Half.SEND else Half.SEND

    def name_between(self, rank: str | int, peer: str | int) -> str:
        """Return the name of the send or recv that `rank` issues with `peer`: `send 0->1`, or `recv 0<-1`."""
        return f"{self} {rank}{'->' if self is Half.SEND else '<-'}{peer}"


class Peer(NamedTuple):
    """The global rank with which a rank exchanges a message, and whether the rank itself sends or receives.

    `half` is `SEND` if the rank that issued the operation sends to the peer, else `RECV`.
    """

    half: Half
    rank: int


def other_half_name(match: re.Match[str]) -> str:
    """Return the name of the recv that belongs to a send, or of the send that belongs to a recv.

    `match` is the name of the given operation, parsed by `NAME`.
    """
    return Half(match["verb"]).other.name_between(match["peer"], match["me"])


def peer_of(job: Job, op: Op) -> Peer | None:
    """Return the peer of a send or recv; None for other operations, or if the group has no such known member."""
    match = NAME.fullmatch(job.operation(op))
    members = job.groups[op.group].ranks
    # A group whose members were inferred may lack some.
    if not match or int(match["peer"]) >= len(members):
        return None
    return Peer(Half(match["verb"]), members[int(match["peer"])])


def find_absent_peers(job: Job, current: Op) -> list[int]:
    """Return the peers because of which a batch of sends and receives cannot complete, ascending.

    A batch is a set of operations that a rank launched together; `current` is any operation of it. The result has the
    peers that have not issued the matching recv or send. If there are none, it has the peers whose own batch waits for
    a third rank, because NCCL completes a batch only as a whole.
    """
    if lacking := _find_unmet_peers(job, current):
        return lacking
    current_ops = {peer.rank: job.ranks[peer.rank].current for peer in _count_peers(job, current)}
    return sorted(rank for rank, other in current_ops.items() if other and _find_unmet_peers(job, other))


def _find_unmet_peers(job: Job, current: Op) -> list[int]:
    """Return, ascending, the peers that have yet to issue the counterpart of a send or recv in the batch of `current`.

    A batch is a set of operations that a rank launched together.
    """
    wanted = _count_peers(job, current)
    return sorted({peer.rank for peer, count in wanted.items() if _count_halves(job, current, peer) < count})


def _count_peers(job: Job, current: Op) -> Counter[Peer]:
    """Return how many sends and how many receives the batch of `current` has for each peer.

    A batch is a set of operations that a rank launched together.
    """
    return Counter(peer for op in find_batch(job.ranks[current.rank], current) if (peer := peer_of(job, op)))


def _count_halves(job: Job, current: Op, peer: Peer) -> int:
    """Return how many sends or receives `peer` has issued to match those that the rank of `current` has with it.

    `peer` is the rank to which the rank of `current` sends, or from which it receives. Only the peer's current
    operation, and operations that the peer launched together with it, are counted. The result is 0 if the peer is not
    in a send or recv of this process group.
    """
    state = job.ranks.get(peer.rank)
    if state is None or state.current is None or not state.current.p2p or state.current.group != current.group:
        return 0
    wanted = Peer(peer.half.other, current.rank)
    return sum(peer_of(job, op) == wanted for op in find_batch(state, state.current))


def find_other_half(job: Job, current: Op, peer: Peer) -> Op | None:
    """Return the operation of `peer` that is the counterpart of `current`, a send or recv of another rank.

    Only the peer's first pending operation, and operations launched together with it, are searched. The result is None
    if none of them matches.
    """
    state = job.ranks[peer.rank]
    wanted = Peer(peer.half.other, current.rank)
    return next((op for op in find_batch(state, state.pending[0]) if peer_of(job, op) == wanted), None)


def find_batch(state: RankState, current: Op) -> list[Op]:
    """Return the batch of `current`: the pending sends and receives that the rank launched together with it.

    They have the same process group and the same p2p sequence number.
    """
    return [op for op in state.pending if op.p2p and (op.group, op.p2p_seq) == (current.group, current.p2p_seq)]


def all_in_messages(job: Job, ranks: list[int]) -> bool:
    """Return whether all of the `ranks` that left a dump are in a send or recv; False if none of them left one."""
    current_ops = [job.ranks[rank].current for rank in ranks if rank in job.ranks]
    return bool(current_ops) and all(current is not None and current.p2p for current in current_ops)
