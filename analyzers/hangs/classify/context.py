"""Gather the facts that the classification rules use: the dumps, the files beside them, and the wait-for graph."""

from dataclasses import dataclass

from analyzers.hangs.graph.program_order import Programs
from analyzers.hangs.graph.wait_graph import OpNode, WaitGraph, build_graph
from analyzers.hangs.model import Group, Job, Op
from analyzers.hangs.reading.exits import RankEnd
from analyzers.hangs.reading.side_files import SideFiles


@dataclass(frozen=True)
class HangContext:
    """All inputs of a verdict on a hang.

    These are the dumps, the files beside them, the wait-for graph, and the sequence of each rank's operations.
    """

    job: Job
    side: SideFiles
    graph: WaitGraph
    programs: Programs

    @classmethod
    def of(cls, job: Job, side: SideFiles) -> "HangContext":
        """Return the context of a job, for which the wait-for graph is built.

        `side` has the contents of the files beside the dumps.
        """
        return cls(job, side, build_graph(job, side), Programs(job))

    def operations_at(self, node: OpNode) -> list[Op]:
        """Return the current operation of each rank that is in `node`, which is a collective or a batch of messages.

        A rank's current operation is its first incomplete one. These entries describe the same operation, as each of
        the ranks recorded it.
        """
        current_ops = (self.job.ranks[rank].current for rank in self.graph.arrived(node))
        return [op for op in current_ops if op]

    def began_ns(self, node: OpNode) -> int:
        """Return when the first rank issued an operation, in nanoseconds since the epoch; 0 if that is unknown."""
        return min((op.created_ns for op in self.operations_at(node)), default=0)

    def group(self, node: OpNode) -> Group:
        """Return the process group of an operation."""
        return self.job.groups[node.group]

    def ends(self) -> list[RankEnd]:
        """Return how each rank ended, for those that had ended when the dumps were taken."""
        return [end for rank in range(self.job.world_size) if (end := self.side.end(rank))]
