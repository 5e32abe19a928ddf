"""The facts that the classification rules use: the job's dumps, the files beside them, and the wait-for graph."""

from dataclasses import dataclass

from analyzers.hangs.graph.program_order import Programs
from analyzers.hangs.graph.wait_graph import OpNode, WaitGraph, build_graph
from analyzers.hangs.model import Group, Job, Op
from analyzers.hangs.reading.exits import RankEnd
from analyzers.hangs.reading.side_files import SideFiles


@dataclass(frozen=True)
class HangContext:
    """All inputs of a verdict:
    the dumps, the files beside them, the wait-for graph, and the order of each rank's operations.
    """

    job: Job
    side: SideFiles
    graph: WaitGraph
    programs: Programs

    @classmethod
    def of(cls, job: Job, side: SideFiles) -> "HangContext":
        """Return the context of a job and its side files, with the wait-for graph built."""
        return cls(job, side, build_graph(job, side), Programs(job))

    def operations_at(self, node: OpNode) -> list[Op]:
        """Return, for each rank that is in the operation `node`, its record of it:
        the rank's first incomplete operation.
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
