"""Find out which nodes of a job did not write all of their files to the common folder, and which ranks ran there.

Each node writes a report there every few seconds, whatever its ranks do. If the reports of a node stop before its end,
the node has died or lost its network.
"""

import time
from dataclasses import dataclass

from analyzers.nodes.received import node_of, read_node_list
from analyzers.run import Kind, Run
from analyzers.words import quantity, rank_names

_SILENT_NS = 45_000_000_000
"""A node counts as lost after this time in ns without a report: many times the usual pause, and what clocks differ."""
_OF_RANKS = (Kind.GROUPS, Kind.STEPS, Kind.FLIGHT, Kind.EXIT, Kind.STACKS)
_MOST_NODES = 20


@dataclass(frozen=True)
class LostNode:
    """A node whose last report was at `last_ns` (Unix nanoseconds), and its ranks, as far as known."""

    name: str
    ranks: tuple[int, ...]
    last_ns: int

    @property
    def last_time(self) -> str:
        """The time of the node's last report as text, by the clock of the node."""
        return time.strftime("%H:%M:%S UTC", time.gmtime(self.last_ns / 1e9))


@dataclass(frozen=True)
class NodeGaps:
    """The nodes that did not write everything.

    `lost` nodes stopped reporting. `sending` nodes had not finished when others had. `absent` is the number of nodes
    that never wrote anything.
    """

    lost: tuple[LostNode, ...] = ()
    sending: tuple[LostNode, ...] = ()
    absent: int = 0
    absent_ranks: tuple[int, ...] = ()

    def phrases(self) -> list[str]:
        """Return a phrase for each thing that is missing because of a node."""
        ranks = f": no file of {rank_names(self.absent_ranks)}" if self.absent_ranks else ""
        return [
            *(f"{named(node)} is silent since {node.last_time}: later files of it are missing" for node in self.lost),
            *(f"{named(node)} had not sent all of its files" for node in self.sending),
            *([f"{quantity(self.absent, 'node')} sent nothing{ranks}"] if self.absent else []),
        ][:_MOST_NODES]


def named(node: LostNode) -> str:
    """Return a node with its ranks as text: `node n2 (ranks 4-5)`."""
    return f"node {node.name}" + (f" ({rank_names(node.ranks)})" if node.ranks else "")


def find_gaps(run: Run, world_size: int = 0) -> NodeGaps:
    """Return which nodes did not send all of their files to a run folder, and what is missing because of this.

    Without reports of nodes, because they share a disk or there is only one, nothing is missing.
    `world_size` is the number of ranks of the job, 0 if unknown.
    """
    known = read_node_list(run.root)
    if known is None:
        return NodeGaps()
    ranks = _ranks_by_node(run)
    silent = {
        name: LostNode(name, tuple(sorted(ranks.get(name, ()))), node.last_ns)
        for name, node in known.nodes.items()
        if not node.ended
    }
    until_ns = max(node.last_ns for node in known.nodes.values()) - _SILENT_NS
    lost = tuple(node for node in silent.values() if node.last_ns < until_ns)
    # While no node has ended, a node that has not ended is simply at work.
    any_ended = any(node.ended for node in known.nodes.values())
    sending = tuple(node for node in silent.values() if node not in lost) if any_ended else ()
    absent = max(0, known.expected - len(known.nodes))
    seen = set[int]().union(*ranks.values())
    return NodeGaps(
        lost=lost,
        sending=sending,
        absent=absent,
        absent_ranks=tuple(rank for rank in range(world_size) if rank not in seen) if absent else (),
    )


def _ranks_by_node(run: Run) -> dict[str, set[int]]:
    """Return {node: its ranks}, from the names of its files; the run folder's own files are under an empty name."""
    ranks: dict[str, set[int]] = {}
    for artefact in run.of(*_OF_RANKS):
        if artefact.rank is not None:
            ranks.setdefault(node_of(artefact.path, run.root) or "", set()).add(artefact.rank)
    return ranks
