"""Find out which nodes of a job did not send all of their files to the run folder, and which ranks ran there.

The receiver of `workbench collect` gets a message from each node every second or so, whatever its ranks do. If the
messages of a node stop before it reported its end, the node has died or lost its network.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from analyzers.nodes.received import NodeList, node_of, read_node_list
from analyzers.run import Kind, Run
from analyzers.words import quantity, rank_names

SILENT_NS = 15_000_000_000
"""A node counts as lost after this time in ns without a message: many times the usual pause between messages."""
NODES_PER_S = 200
"""The most messages per second that the receiver asks for; with more nodes than that, each sends less often."""
OF_RANKS = (Kind.GROUPS, Kind.STEPS, Kind.FLIGHT, Kind.EXIT, Kind.STACKS)
MOST_NODES, MOST_FILES = 20, 3


@dataclass(frozen=True)
class LostNode:
    """A node whose last message was at `last_ns` (Unix nanoseconds), and its ranks, as far as known."""

    name: str
    ranks: tuple[int, ...]
    last_ns: int

    @property
    def last_time(self) -> str:
        """The time of the node's last message as text, by the clock of the receiver."""
        return time.strftime("%H:%M:%S UTC", time.gmtime(self.last_ns / 1e9))


@dataclass(frozen=True)
class NodeGaps:
    """The nodes that did not send everything.

    `lost` nodes stopped sending messages. `sending` nodes had not finished when the receiver ended. `absent` is the
    number of nodes that never sent anything. `refused` is {node: {file that was not accepted: reason}}.
    """

    lost: tuple[LostNode, ...] = ()
    sending: tuple[LostNode, ...] = ()
    absent: int = 0
    absent_ranks: tuple[int, ...] = ()
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def phrases(self) -> list[str]:
        """Return a phrase for each thing that is missing because of a node."""
        ranks = f": no file of {rank_names(self.absent_ranks)}" if self.absent_ranks else ""
        return [
            *(f"{named(node)} is silent since {node.last_time}: later files of it are missing" for node in self.lost),
            *(f"{named(node)} had not sent all of its files" for node in self.sending),
            *([f"{quantity(self.absent, 'node')} sent nothing{ranks}"] if self.absent else []),
            *(refusals(node, files) for node, files in self.refused.items()),
        ][:MOST_NODES]


def named(node: LostNode) -> str:
    """Return a node with its ranks as text: `node n2 (ranks 4-5)`."""
    return f"node {node.name}" + (f" ({rank_names(node.ranks)})" if node.ranks else "")


def refusals(node: str, files: Mapping[str, str]) -> str:
    """Return a phrase on the files of a node that were not accepted; `files` maps each file to the reason."""
    first = "; ".join(f"{path}: {reason}" for path, reason in list(files.items())[:MOST_FILES])
    verb = "was" if len(files) == 1 else "were"
    return f"{quantity(len(files), 'file')} of node {node} {verb} not accepted: {first}"


def find_gaps(run: Run, world_size: int = 0) -> NodeGaps:
    """Return which nodes did not send all of their files to a run folder, and what is missing because of this.

    If the folder has no list of nodes, because the run's nodes share a disk or there is only one, nothing is missing.
    `world_size` is the number of ranks of the job, 0 if unknown.
    """
    known = read_node_list(run.root)
    if known is None:
        return NodeGaps()
    ranks = ranks_by_node(run)
    silent = {
        name: LostNode(name, tuple(sorted(ranks.get(name, ()))), node.last_ns)
        for name, node in known.nodes.items()
        if not node.ended
    }
    until_ns = heard_until(known) - max(SILENT_NS, SILENT_NS * len(known.nodes) // NODES_PER_S)
    lost = tuple(node for node in silent.values() if node.last_ns < until_ns)
    # While the receiver listens, a node that has not ended is simply at work.
    sending = tuple(node for node in silent.values() if node not in lost) if known.closed_ns else ()
    absent = max(0, known.expected - len(known.nodes))
    seen = set[int]().union(*ranks.values())
    return NodeGaps(
        lost=lost,
        sending=sending,
        absent=absent,
        absent_ranks=tuple(rank for rank in range(world_size) if rank not in seen) if absent else (),
        refused={name: node.refused for name, node in known.nodes.items() if node.refused},
    )


def heard_until(nodes: NodeList) -> int:
    """Return when the receiver stopped listening, in Unix ns: its end, or else the last message of any node."""
    return nodes.closed_ns or max((node.last_ns for node in nodes.nodes.values()), default=0)


def ranks_by_node(run: Run) -> dict[str, set[int]]:
    """Return {node: its ranks}, from the names of its files; the run folder's own files are under an empty name."""
    ranks: dict[str, set[int]] = {}
    for artefact in run.of(*OF_RANKS):
        if artefact.rank is not None:
            ranks.setdefault(node_of(artefact.path, run.root) or "", set()).add(artefact.rank)
    return ranks
