"""The cases, and what a person who knows the fault expects to read; written before the code that answers.

Each job has two ranks on each node: ranks 0 and 1 on node n0, ranks 2 and 3 on n1, and so on.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A job that breaks, and the answer that it must get.

    `fault` is `KIND:RANK:STEP` for `job.py`. `action` happens to a node while the job runs: `kill:n2` kills all of its
    processes. `says` are words of the sentence, `lacks` words of what was missing (none:
    no node may be missing). `aside` cases are run for the first time when all rules are written.
    """

    name: str
    kind: str
    ranks: tuple[int, ...]
    fault: str = ""
    action: str = ""
    nodes: int = 3
    says: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    aside: bool = False


CASES = (
    Case("stuck_rank", "host_stuck", (3,), "stuck:3:5", says=("rank 3", "job.py", "load_batch")),
    Case("dead_node", "dead", (4, 5), action="kill:n2", says=("n2",), lacks=("n2",)),
    Case("error_elsewhere", "crashed", (4,), "raise:4:5", says=("rank 4", "ValueError", "job.py")),
    Case("killed_rank", "dead", (2,), "kill:2:5", says=("rank 2",)),
    Case("skipped", "skipped", (5,), "skip:5:5", says=("rank 5",)),
    Case("healthy", "healthy", ()),
    Case("mismatch", "mismatch", (4,), "shape:4:5", says=("rank 4",), aside=True),
    Case("first_node_raises", "crashed", (0,), "raise:0:5", says=("rank 0", "ValueError"), aside=True),
    Case("two_nodes_of_four_die", "dead", (2, 3, 6, 7), action="kill:n1,n3", nodes=4, lacks=("n1", "n3"), aside=True),
)
