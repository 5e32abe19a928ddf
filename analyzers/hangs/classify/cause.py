"""Define `Cause`: the culprit of a hang, and the facts that distinguish it from other ranks.

The package `findings` writes the sentences of the report from these facts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from analyzers.hangs.classify.blocks import Parting
from analyzers.hangs.graph.program_order import Programs
from analyzers.hangs.graph.wait_graph import OpNode, WaitGraph, build_graph
from analyzers.hangs.model import Culprit, Frame, Group, HangClass, Job, Op, Reason
from analyzers.hangs.reading.exits import RankEnd
from analyzers.hangs.reading.side_files import SideFiles
from analyzers.hangs.reading.side_formats import ExitFile, ProcessState, ThreadError
from analyzers.node_health import LostNode


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

    @property
    def is_gloo(self) -> bool:
        """Whether gloo recorded the operations: it runs on the CPU, and flags failed operations as done."""
        return any(signature.backend == "gloo" for signature in self.job.signatures)

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
        return self.job.groups[node.group]

    def ends(self) -> list[RankEnd]:
        """Return a `RankEnd` for each rank that had ended when the dumps were taken, in the order of ranks."""
        return [end for rank in range(self.job.world_size) if (end := self.side.end(rank))]


DEFAULT_CONFIDENCE = 0.9


@dataclass(frozen=True)
class RanksInOp:
    """Ranks that issued the same operation, and this operation: a collective, or a send or recv (`p2p` is true).

    `shape` is the text of the input shapes and dtypes, `seq` the sequence number, and `group` the label of the process
    group. `line` is the user's line that issued the operation, if stacks were recorded. `root` is the root of a
    broadcast, reduce, gather or scatter, if it was recorded. `output` is the text of the output shapes and dtypes, and
    `sizes` has the input shapes as numbers.
    """

    ranks: list[int]
    operation: str
    shape: str
    line: Frame | None
    group: str
    seq: int
    p2p: bool
    root: int | None = None
    output: str = ""
    sizes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class HostState:
    """The state of a running rank's process, from its heartbeat, its answers to requests and the operating system.

    `step` and `phase` come from the heartbeat; outside of any step or phase they are None and empty. `holds_gil`: the
    process answered no request that needs Python's global lock (GIL). `process` is the reason why the process does not
    run. `thread_error` is an exception that ended one of its threads; the rank may wait for this thread. `child` is a
    process that the rank has started and that is in the user's code: the rank may wait for it, or for a lock that it
    holds. `task_error` is an exception that ended a task of asyncio on the rank, for which the rank may wait.
    """

    step: int | None = None
    phase: str = ""
    holds_gil: bool = False
    process: ProcessState | None = None
    thread_error: ThreadError | None = None
    child: "ChildProcess | None" = None
    task_error: ExitFile | None = None


class ChildProcess(NamedTuple):
    """A process that a rank has started: its process id, and its main thread's stack, innermost frame first."""

    pid: int
    frames: tuple[Frame, ...]


class Process(NamedTuple):
    """The process of a rank: its process id and host, as far as they were recorded (0 and empty: not recorded)."""

    pid: int = 0
    host: str = ""

    @property
    def number(self) -> str:
        """The process id as text for a command; the word PID if it was not recorded."""
        return str(self.pid) if self.pid else "PID"


UNKNOWN_PROCESS = Process()


class MemoryGrowth(NamedTuple):
    """How the memory of a rank grew over its last steps: bytes in the first and the last of them, and how many."""

    first_bytes: int
    last_bytes: int
    steps: int

    @property
    def bytes_a_step(self) -> int:
        return (self.last_bytes - self.first_bytes) // max(1, self.steps - 1)


@dataclass(frozen=True)
class Cause:
    """One cause of a hang: the culprits, which are ranks, and the facts that show that they are the cause.

    `reason` is the kind of evidence against the culprits; most of the other fields are set only for some reasons.
    `sides` are the different operations that ranks issued where all should have issued the same one, each with its
    ranks. `issued` is the operation of the culprits, `expected` the operation of the other ranks. `elements` are two
    sizes that differ: for an all_to_all the total numbers of elements sent and received; for a rank that gloo aborted
    the bytes received and expected. Of the process group's `members` (a number), `completed` have completed the
    operation. `end` is how the culprit's process ended, `host` whether and where it still runs. `node` is the culprit's
    node if it was lost, `process` the process of the first culprit, and `parting` the `if` or loop at which the
    culprits parted from the other ranks, if it is known. `is_gloo`: the job runs on the CPU, so no device is to blame.
    `growth` is how the memory of a rank grew that ended without an error of its own.
    """

    culprit: Culprit
    reason: Reason = Reason.NONE
    sides: tuple[RanksInOp, ...] = ()
    issued: RanksInOp | None = None
    expected: RanksInOp | None = None
    elements: tuple[int, int] = (0, 0)
    completed: int = 0
    members: int = 0
    end: RankEnd | None = None
    host: HostState = HostState()
    node: LostNode | None = None
    process: Process = UNKNOWN_PROCESS
    parting: Parting | None = None
    is_gloo: bool = False
    growth: MemoryGrowth | None = None

    @property
    def kind(self) -> HangClass:
        return self.culprit.kind

    @property
    def ranks(self) -> list[int]:
        return self.culprit.ranks

    @property
    def victims(self) -> list[int]:
        """The ranks that wait for the culprit, directly or through others."""
        return self.culprit.victims

    def with_class(self, kind: HangClass, reason: Reason, confidence: float) -> "Cause":
        return replace(
            self, culprit=msgspec.structs.replace(self.culprit, kind=kind, confidence=confidence), reason=reason
        )

    def with_confidence(self, confidence: float) -> "Cause":
        return replace(self, culprit=msgspec.structs.replace(self.culprit, confidence=confidence))

    def with_ranks(self, ranks: list[int]) -> "Cause":
        return replace(self, culprit=msgspec.structs.replace(self.culprit, ranks=ranks))

    def in_group(self, group: Group) -> "Cause":
        """Return a copy of this cause which says that the victims wait for the culprit in the process group `group`."""
        return replace(self, culprit=msgspec.structs.replace(self.culprit, group=group.name, group_desc=group.label))


def make_cause(
    context: HangContext,
    kind: HangClass,
    reason: Reason,
    ranks: list[int],
    node: OpNode,
    victims: Sequence[int],
    *,
    frames: list[Frame] | None = None,
    op: Op | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
) -> Cause:
    """Return a `Cause` which says that `ranks` are the culprits, and that `victims` wait for them in operation `node`.

    `kind` is the class of the hang, `reason` the evidence against the culprits, and `confidence` how certain it is,
    from 0 to 1. `op` is the operation that the cause names, by default the operation of the ranks in `node`. The
    culprit's stack is `frames` if given, else the stack of its main thread, else the stack recorded with its current
    operation.
    """
    group = context.group(node)
    op = op or next(iter(context.operations_at(node)), None)
    beat = context.side.heartbeat(ranks[0])
    own = [context.job.ranks[r].current for r in ranks if r in context.job.ranks]
    stack = frames or context.side.main_stack(ranks[0]) or next((context.job.frames(o) for o in own if o), [])
    culprit = Culprit(
        ranks=ranks,
        kind=kind,
        group=group.name,
        group_desc=group.label,
        seq=op.seq if op else node.seq,
        operation=context.job.operation(op) if op else None,
        frames=stack,
        victims=[rank for rank in victims if rank not in ranks],
        step=(beat.step if beat else None) or None,  # 0: not in any step
        confidence=confidence,
    )
    return Cause(culprit, reason)


def ranks_in_op(context: HangContext, ranks: list[int], op: Op) -> RanksInOp:
    """Return a `RanksInOp` for `ranks`, which issued the operation `op`."""
    job = context.job
    signature = job.signature(op)
    return RanksInOp(
        ranks=ranks,
        operation=signature.operation,
        shape=signature.shape,
        line=job.line(op),
        group=job.groups[op.group].label,
        seq=op.seq,
        p2p=op.p2p,
        root=signature.root,
        output=signature.output_shape,
        sizes=signature.input_sizes,
    )


def ranks_at_node(context: HangContext, node: OpNode) -> RanksInOp:
    """Return a `RanksInOp` for the ranks that are in the operation `node`, as recorded by the lowest of these ranks."""
    arrived, current_ops = context.graph.arrived(node), context.operations_at(node)
    if current_ops:
        return ranks_in_op(context, arrived, current_ops[0])
    return RanksInOp(arrived, "operation", "", None, context.group(node).label, node.seq, node.is_p2p)
