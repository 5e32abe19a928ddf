"""Sends and receives: which have a partner on the other side."""

import re
from collections import Counter

from analyzers.hangs.model import Job, Op, RankState

NAME = re.compile(r"(?P<verb>send|recv) (?P<me>\d+)(?:->|<-)(?P<peer>\d+)")
OTHER_HALF = {"send": "recv {peer}<-{me}", "recv": "send {peer}->{me}"}


def peer_of(job: Job, op: Op) -> tuple[str, int] | None:
    """("send" or "recv", global rank of the other side); names carry ranks within the group."""
    found = NAME.fullmatch(job.operation(op))
    members = job.groups[op.group].ranks
    if not found or int(found["peer"]) >= len(members):
        return None
    return found["verb"], members[int(found["peer"])]


def absent_peers(job: Job, front: Op) -> list[int]:
    """The peers that a launch waits for: those not in the other half, else those whose own batch is not complete."""
    if lacking := unmet(job, front):
        return lacking
    fronts = {peer: job.ranks[peer].front for _, peer in wanted_by(job, front)}
    return sorted(peer for peer, other in fronts.items() if other and unmet(job, other))


def unmet(job: Job, front: Op) -> list[int]:
    """The peers of a launch that do not stand in the other half."""
    wanted = wanted_by(job, front)
    return sorted({peer for (verb, peer), count in wanted.items() if offered(job, front, verb, peer) < count})


def wanted_by(job: Job, front: Op) -> Counter[tuple[str, int]]:
    """The (verb, peer) pairs of a launch."""
    return Counter(found for op in batch_of(job.ranks[front.rank], front) if (found := peer_of(job, op)))


def offered(job: Job, front: Op, verb: str, peer: int) -> int:
    """How many matching halves the launch holds that `peer` stands in."""
    state = job.ranks.get(peer)
    if state is None or state.front is None or not state.front.p2p or state.front.group != front.group:
        return 0
    other = "recv" if verb == "send" else "send"
    return sum(peer_of(job, op) == (other, front.rank) for op in batch_of(state, state.front))


def unlike_halves(job: Job, front: Op, found: tuple[str, int]) -> str:
    """`send 4x4 Float against recv 5x4 Float` where the halves that met differ in size; gloo's sizes are not known."""
    verb, peer = found
    other = ("recv" if verb == "send" else "send", front.rank)
    state = job.ranks[peer]
    half = next((op for op in batch_of(state, state.pending[0]) if peer_of(job, op) == other), None)
    shapes = [job.signature(op).shape for op in (front, half) if op]
    if len(set(shapes)) < 2 or not all(shapes):
        return ""
    return f"{verb} {shapes[0]} against {other[0]} {shapes[1]}"


def batch_of(state: RankState, front: Op) -> list[Op]:
    """The sends and receives that were launched together: they share a p2p sequence number."""
    return [op for op in state.pending if op.p2p and (op.group, op.p2p_seq) == (front.group, front.p2p_seq)]


def one_sided(job: Job, ranks: list[int]) -> bool:
    """Whether these ranks all stand in point-to-point operations."""
    fronts = [job.ranks[rank].front for rank in ranks if rank in job.ranks]
    return bool(fronts) and all(front is not None and front.p2p for front in fronts)
