"""Gather the facts that the classification rules use: the dumps, the files beside them, and the graph of who waits."""

from dataclasses import dataclass

from analyzers.hangs.graph.program_order import Programs
from analyzers.hangs.graph.wait_graph import OpNode, WaitGraph, build_graph
from analyzers.hangs.model import Group, Job, Op
from analyzers.hangs.reading.exits import RankEnd
from analyzers.hangs.reading.side_files import SideFiles


@dataclass(frozen=True)
class HangContext:
    """Everything that the classification rules use to find the causes of a hang.

    `job` has the dumps and `side` the files beside them. `graph` shows which rank waits in which operation, and
    `programs` compares the sequences of operations of different ranks.
    """

    job: Job
    side: SideFiles
    graph: WaitGraph
    programs: Programs

    @classmethod
    def of(cls, job: Job, side: SideFiles) -> "HangContext":
        """Return the context of a job, for which the wait-for graph is built here.

        `side` has the contents of the files beside the dumps.
        """
        return cls(job, side, build_graph(job, side), Programs(job))

    def operations_at(self, node: OpNode) -> list[Op]:
        """Return the current operation of each rank that is in `node`, as each of these ranks recorded it.

        `node` is a collective, or a batch of sends and receives that were launched together. The current operation of a
        rank is its first incomplete one.
        """
        current_ops = (self.job.ranks[rank].current for rank in self.graph.arrived(node))
        return [op for op in current_ops if op]

    def began_ns(self, node: OpNode) -> int:
        """Return when the first rank in `node` issued this operation, in nanoseconds since the epoch; 0 if unknown."""
        return min((op.created_ns for op in self.operations_at(node)), default=0)

    def group(self, node: OpNode) -> Group:
        """Return the process group of an operation."""
        return self.job.groups[node.group]

    def ends(self) -> list[RankEnd]:
        """Return a `RankEnd` for each rank that had ended when the dumps were taken, in the order of ranks."""
        return [end for rank in range(self.job.world_size) if (end := self.side.end(rank))]
