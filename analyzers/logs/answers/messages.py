"""Find the ranks that did not issue the counterpart of a send or recv, from the lines at which ranks timed out.

Logs do not record the peer of a send or recv, but the source line often names it: `dist.recv(tensor, src=0)`.
"""

from collections.abc import Mapping

from analyzers.logs.loading import Logs
from analyzers.logs.model import LogEvent

MESSAGES = {"send", "recv", "isend", "irecv", "batch_isend_irecv", "wait"}


def in_messages(places: Mapping[int, LogEvent]) -> list[int]:
    """Return the ranks that waited in a send or recv.

    `places` maps each rank to the event that shows where it waited.
    """
    return [rank for rank, event in places.items() if event.facts.operation in MESSAGES]


def find_unmatched(places: Mapping[int, LogEvent], logs: Logs) -> list[int]:
    """Return the ranks to blame for sends and receives that did not match; empty if the lines do not name the peers.

    `places` maps each rank to the event that shows where it waited. From each rank that waits in a send or recv, the
    search goes to its peer, from there to the peer's peer, and so on. It ends at a rank that waits elsewhere (this rank
    never issued its send or recv), or in a cycle of ranks that wait for each other. If there are two ranks and their
    lines name no peer, both are returned.
    """
    waiting = in_messages(places)
    culprits = {rank for start in waiting for rank in follow(start, places)}
    everyone = set(places) == set(logs.ranks)
    if not culprits and everyone and len(waiting) == len(places) == 2:
        return sorted(waiting)
    return sorted(culprits)


def follow(start: int, places: Mapping[int, LogEvent]) -> list[int]:
    """Return the rank, or the cycle of ranks, that is reached from `start` by going from each send or recv to its peer.

    The search ends at a rank that waits elsewhere, or when it reaches a rank again. The list is empty if a peer is not
    known. `places` maps each rank to the event that shows where it waited.
    """
    path = [start]
    while True:
        peer = peer_of(path[-1], places[path[-1]])
        if peer is None or peer not in places:
            return []
        if places[peer].facts.operation not in MESSAGES:
            return [peer]
        if peer in path:
            return path[path.index(peer) :]
        path.append(peer)


def peer_of(rank: int, event: LogEvent) -> int | None:
    """Return the rank that `rank` sends to or receives from, according to its event; None if the event has no peer.

    The event has the peer as a rank (`0`), or relative to `rank` (`+1`).
    """
    text = event.facts.peer
    if not text:
        return None
    return rank + int(text) if text[0] in "+-" else int(text)
