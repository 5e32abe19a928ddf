"""Find the pipeline stage of each rank, from the process groups of its messages or from the ranks it exchanges with.

Example: rank 0 sends to 2 and rank 2 to 4, and gradients come back; 1, 3 and 5 do the same. The ranks 0, 2, 4 and 1, 3,
5 form two chains of three stages. Rank 0 is the first of its chain, because it sends before it receives anything.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analyzers.columns import Integers
from analyzers.traces.answers.collectives import UNKNOWN
from analyzers.traces.answers.messages import PIPELINE_GROUP
from analyzers.traces.loading import Recording


class UnknownStages(Exception):
    """Raised if a job sends messages, but its stages cannot be found or simulated; the text says why."""


@dataclass(frozen=True)
class Message:
    """One send or receive of a rank: the index of its kernel among the rank's collectives, and the other rank (`peer`).

    `sends` is true for a send. A kernel may carry several messages.
    """

    kernel: int
    peer: int
    sends: bool


def messages_of(recording: Recording) -> list[Message]:
    """Return the sends and receives of a recording, in the order in which their kernels began."""
    rows = recording.table("message", ["position", "peer", "sends"]).tolist()
    return [Message(kernel, peer, bool(sends)) for kernel, peer, sends in sorted(rows, key=lambda row: row[0])]


def find_stages(recordings: Mapping[int, Recording], messages: Mapping[int, Sequence[Message]]) -> list[list[int]]:
    """Return the ranks of each pipeline stage, the first stage first.

    Args:
        recordings: {rank: its recording}, for each rank of the job.
        messages: {rank: its sends and receives in order of time}.

    Raises:
        UnknownStages: The traces do not show the stages; the text says why.
    """
    senders = {rank: own for rank, own in messages.items() if own}
    peers = {rank: {one.peer for one in own} for rank, own in senders.items()}
    if any(UNKNOWN in named for named in peers.values()):
        raise UnknownStages("the peers of its sends and receives are not recorded")
    missing = sorted({peer for named in peers.values() for peer in named} - set(recordings))
    if missing:
        raise UnknownStages(f"there is no trace of rank {missing[0]}, which sends or receives")
    chains = _described_chains(recordings, peers) or chains_of_peers(senders, peers)
    if len({len(chain) for chain in chains}) != 1:
        raise UnknownStages("the chains of its sends and receives differ in length")
    return [sorted(ranks) for ranks in zip(*sorted(chains), strict=True)]


def _described_chains(recordings: Mapping[int, Recording], peers: Mapping[int, set[int]]) -> list[tuple[int, ...]]:
    """Return the ranks of each process group that is described as a pipeline and contains all peers of its ranks.

    `peers` has, for each rank with messages, the ranks that it exchanges them with. The list is empty unless each of
    these ranks is in exactly one such group.
    """
    chains = {
        tuple(group["ranks"])
        for rank in peers
        for group in recordings[rank].trace.header.get("groups", [])
        if PIPELINE_GROUP.search(group["desc"]) and rank in group["ranks"] and peers[rank] <= set(group["ranks"])
    }
    members = sorted(rank for chain in chains for rank in chain)
    return sorted(chains) if members == sorted(peers) else []


def chains_of_peers(messages: Mapping[int, Sequence[Message]], peers: Mapping[int, set[int]]) -> list[tuple[int, ...]]:
    """Return the ranks of each pipeline, in the order of its stages, by following messages from rank to rank.

    `peers` has, for each rank with messages, the ranks that it exchanges them with; a rank with one peer is an end of
    a chain. The chain begins at the end whose first message is a send.

    Raises:
        UnknownStages: Some ranks are joined in another form, such as a ring, or both ends of a chain begin with a send,
            or both with a receive.
    """
    chains, placed = [], set[int]()
    for rank in sorted(peers):
        if len(peers[rank]) != 1 or rank in placed:
            continue
        chain = _walk(rank, peers)
        placed.update(chain)
        begins, ends = (messages[end][0].sends for end in (chain[0], chain[-1]))
        if begins == ends:
            raise UnknownStages(f"ranks {chain[0]} and {chain[-1]} both begin with a {'send' if begins else 'receive'}")
        chains.append(tuple(chain if begins else chain[::-1]))
    if placed != set(peers):
        raise UnknownStages("its sends and receives join the ranks to no chains, and no process group is called pp")
    return chains


def _walk(rank: int, peers: Mapping[int, set[int]]) -> list[int]:
    """Return the ranks of the chain that begins at `rank`, followed from peer to peer to its other end.

    `peers` has, for each rank, the ranks that it exchanges messages with.

    Raises:
        UnknownStages: The chain branches.
    """
    chain = [rank]
    while following := peers[chain[-1]] - set(chain):
        if len(following) > 1:
            raise UnknownStages(f"rank {chain[-1]} sends to or receives from {len(peers[chain[-1]])} ranks")
        chain.append(following.pop())
    return chain


Kernel = tuple[int, int]
"""A communicating kernel: (rank, index among the rank's collectives)."""


def partners(messages: Mapping[int, Sequence[Message]], steps: Mapping[int, Integers]) -> dict[Kernel, list[Kernel]]:
    """Return, for each kernel that carries messages, the kernels at the other ends of these messages.

    In each step the n-th send from one rank to another is matched with the n-th receive there. `steps` has, for each
    rank, the step of each of its collectives.

    Raises:
        UnknownStages: Two ranks recorded different numbers of sends and receives.
    """
    ends = defaultdict[tuple[int, int, int, bool], list[Kernel]](list)
    for rank, own in messages.items():
        for one in own:
            path = (rank, one.peer) if one.sends else (one.peer, rank)
            ends[*path, int(steps[rank][one.kernel]), one.sends].append((rank, one.kernel))
    pairs = defaultdict[Kernel, list[Kernel]](list)
    for (source, destination, step, sends), kernels in ends.items():
        others = ends.get((source, destination, step, not sends), [])
        if len(others) != len(kernels):
            sent, received = (kernels, others) if sends else (others, kernels)
            raise UnknownStages(
                f"rank {source} recorded {len(sent)} sends to rank {destination} in a step, which recorded"
                f" {len(received)} receives"
            )
        for kernel, other in zip(kernels, others, strict=True):
            pairs[kernel].append(other)
    return dict(pairs)
