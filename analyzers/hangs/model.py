"""Define the data types of the hang analyzer: what the dumps of ranks record, and what the JSON report contains.

`Frame`, `Group`, `Wait`, `Culprit` and `HangData` are structs of the JSON document `workbench.hang/1`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import msgspec

from analyzers import frames
from analyzers.words import dtype_name


class HangClass(StrEnum):
    """The class of a hang: what is wrong, for example that a rank died or skipped an operation.

    `dead`: the process of a rank ended. `mismatch`: ranks issued different operations where all must issue the same.
    `skipped`: a rank did not issue an operation that the others wait in. `order_cycle`: ranks wait for each other,
    because they used their process groups in different orders. `host_stuck`: a rank runs other code and issues no
    operation. `unmatched_p2p`: a send or recv has no counterpart. `lagging`: a rank has not completed an operation that
    others have completed. `all_arrived`: all ranks issued the operation, but it does not complete. `slow`: the ranks
    made progress, so the job was slow and did not hang.

    If a job has causes of several classes, the one that comes first in Python's definition explains the others.
    """

    DEAD = "dead"
    MISMATCH = "mismatch"
    SKIPPED = "skipped"
    ORDER_CYCLE = "order_cycle"
    HOST_STUCK = "host_stuck"
    UNMATCHED_P2P = "unmatched_p2p"
    LAGGING = "lagging"
    ALL_ARRIVED = "all_arrived"
    SLOW = "slow"
    UNKNOWN = "unknown"
    HEALTHY = "healthy"


class Reason(StrEnum):
    """The evidence that distinguishes a culprit from other ranks; each value has its own sentence in the findings."""

    NONE = "none"
    # Members of a group issued different operations under one number.
    MAJORITY = "majority"
    SIZE_RULE = "size_rule"
    EMPTY_TENSOR = "empty_tensor"
    EARLIER_STEPS = "earlier_steps"
    SIMILAR_GROUPS = "similar_groups"
    SAME_LINE = "same_line"
    LINE_OF_ABORTED = "line_of_aborted"
    SIZE_OF_ABORTED = "size_of_aborted"
    SHIFTED = "shifted"
    TIE = "tie"
    UNBALANCED = "unbalanced"
    # The program of a rank differs from that of the ranks that should run the same one.
    DEVIATION = "deviation"
    ISSUED_LATER_OPERATIONS = "issued_later_operations"
    OTHER_ORDER = "other_order"
    # A send or recv has not met its other half.
    BOTH_LACK_OTHER_HALF = "both_lack_other_half"
    NEVER_ISSUED_OTHER_HALF = "never_issued_other_half"
    PARTNER_NEVER_ISSUED = "partner_never_issued"
    OTHER_LAUNCH = "other_launch"
    DIFFERENT_HALVES = "different_halves"
    DIFFERENT_TAGS = "different_tags"
    BOTH_HALVES_ISSUED = "both_halves_issued"
    OTHER_PEER = "other_peer"
    ONE_TOO_MANY = "one_too_many"
    NEVER_EXCHANGED = "never_exchanged"
    # PyTorch itself says what is wrong.
    ABORTED = "aborted"
    NAMED_ABSENT = "named_absent"
    OTHER_MODEL = "other_model"
    # The numbers of the process groups that ranks made differ.
    OTHER_GROUPS = "other_groups"
    # Others.
    ENDED = "ended"
    LEFT_ALONE = "left_alone"
    KEPT_ALIVE = "kept_alive"
    AFTER_END = "after_end"
    NO_DUMP = "no_dump"
    LOST_DUMP = "lost_dump"
    SHUT_DOWN = "shut_down"
    LOST_NODE = "lost_node"
    RAS_DEAD = "ras_dead"
    RAS_SILENT = "ras_silent"
    NO_ANSWER = "no_answer"
    RUNS_OWN_CODE = "runs_own_code"
    CLOSED_GROUP = "closed_group"
    OTHERS_COMPLETED = "others_completed"
    ALL_JOINED = "all_joined"
    MADE_PROGRESS = "made_progress"
    MOVED_ON = "moved_on"


class GroupSource(StrEnum):
    """The source of the list of a process group's members.

    `side file`: a file that the recorders of this project write beside the dumps. `pg_config`: PyTorch's list in the
    dump. `entries`: no file lists the members, so they are taken to be the ranks that used the group. The first is the
    most reliable, the last the least.
    """

    SIDE_FILE = "side file"
    PG_CONFIG = "pg_config"
    ENTRIES = "entries"


class Lack(StrEnum):
    """Information that is missing in some dumps although it would make a verdict more certain."""

    STACKS = "stacks"
    COMPLETED_OPERATIONS = "completed_operations"
    FIRST_PENDING_OPERATION = "first_pending_operation"
    GROUP_NAMES = "group_names"
    """The entries name no group: with TORCH_DISTRIBUTED_DEBUG=DETAIL, a wrapper replaces each process group."""


class Frame(msgspec.Struct, frozen=True, order=True):
    """One frame of a stack.

    `name` is the name of the function, and `line` the line in the file `filename`; it is 0 for native code without line
    numbers.
    """

    name: str
    filename: str
    line: int


class Group(msgspec.Struct, frozen=True):
    """A process group of the job.

    `name` is PyTorch's name for it, and `desc` its description, such as `mesh_tp`. `ranks` are the global ranks of its
    members, in ascending order, and `source` is where they were found.
    """

    name: str
    desc: str
    ranks: list[int]
    source: GroupSource = GroupSource.ENTRIES

    @property
    def description(self) -> str:
        # "undefined" is PyTorch's description of a group that was made without one.
        return "" if self.desc == "undefined" else " ".join(self.desc.split())

    @property
    def label(self) -> str:
        return self.description or f"group {self.name}"


class Wait(msgspec.Struct, frozen=True):
    """A rank that waits in an operation, and the ranks that it waits for.

    `rank` waits in the operation number `seq` of the process group `group`, such as `all_reduce` (`operation`).
    `waits_for` are the members of the group that have not arrived there; it is empty if all have arrived.
    """

    rank: int
    waits_for: list[int]
    group: str
    seq: int
    operation: str


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that caused a hang: others, the victims, wait for them, but they wait for no other rank.

    `kind` (`class` in JSON) is what is wrong. `title` says what the culprits did, and `detail` is the evidence that
    distinguishes them from the other ranks. `group`, `group_desc`, `seq` and `operation` name the operation in which
    the `victims` wait: its process group with PyTorch's description, its number in the group, and its name (None:
    unknown). `frames` is the stack of a culprit, innermost frame first. `step` is the step in which it is (None:
    unknown). `error` is the error with which a culprit ended (None: not known), and `out_of_memory` says whether it ran
    out of memory. `confidence` is from 0 to 1.
    """

    ranks: list[int]
    kind: HangClass = msgspec.field(name="class")
    group: str | None = None
    group_desc: str | None = None
    seq: int | None = None
    operation: str | None = None
    frames: list[Frame] = []
    victims: list[int] = []
    step: int | None = None
    error: str | None = None
    out_of_memory: bool = False
    detail: str = ""
    title: str = ""
    confidence: float = 0.9


class HangData(msgspec.Struct, frozen=True, kw_only=True):
    """The field `data` of the JSON document `workbench.hang/1`: all results of a hang report.

    `world_size` is the number of ranks of the job, and `ranks_with_dump` are those with a Flight Recorder dump.
    `groups` are the process groups. `culprits` are the causes of the hang, and `waits` has the ranks that wait.
    `ended_cleanly` is true if all ranks recorded that they ended without an error.
    """

    world_size: int
    ranks_with_dump: list[int]
    groups: list[Group]
    culprits: list[Culprit]
    waits: list[Wait]
    ended_cleanly: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """The name of an operation, and the shapes and types of its input and output tensors, as recorded in a dump."""

    backend: str
    operation: str
    input_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_sizes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[str, ...]
    tag: int | None = None
    """The tag of a send or recv; None if it was not recorded."""
    root: int | None = None
    """The root of a broadcast, reduce, gather or scatter, as a global rank; None if it was not recorded."""

    @property
    def shape(self) -> str:
        """The input's shapes and types as text: `4x4 float32`."""
        return _tensors_text(self.input_sizes, self.input_dtypes)

    @property
    def output_shape(self) -> str:
        """The output's shapes and types as text: `8x4 float32`."""
        return _tensors_text(self.output_sizes, self.output_dtypes)

    def __str__(self) -> str:
        return operation_text(self.operation, self.shape)


def _tensors_text(sizes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> str:
    """Return shapes and dtypes of tensors as text: `4x4, 8 float32`."""
    # A tensor without dimensions has an empty shape.
    shapes = ", ".join("x".join(map(str, shape)) or "scalar" for shape in sizes)
    return f"{shapes} {'/'.join(dtype_name(dtype) for dtype in sorted(set(dtypes)))}".strip()


def operation_text(operation: str, shape: str) -> str:
    """Return an operation with its shape as text, such as `all_reduce of 4x4 float32`.

    `shape` may be any other property in place of a shape, such as a tag; if it is empty, only the operation is named.
    """
    return f"{operation} of {shape}" if shape else operation


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of one rank, as Flight Recorder recorded it: a collective, or a send or recv (`p2p`).

    `group` is an index in `Job.groups`; `signature` and `stack` are indexes in `Job.signatures` and `Job.stacks`. `seq`
    and `p2p_seq` are its sequence numbers in the group, and times are in nanoseconds since the epoch (0: unknown).
    `done` says whether the operation completed. `retired`: the watchdog no longer tracks the operation. With gloo, a
    retired operation has completed; with NCCL, it has timed out unless it is `done`.
    """

    rank: int
    group: int
    seq: int
    p2p_seq: int
    signature: int
    stack: int
    started: bool
    done: bool
    retired: bool
    created_ns: int
    completed_ns: int
    p2p: bool


@dataclass(frozen=True, slots=True)
class Position:
    """How far a rank got in a process group, as sequence numbers of collectives; -1 where there is none.

    `first` is the oldest in the dump, `enqueued` the last that the rank issued, `completed` the last that completed.
    """

    first: int
    enqueued: int
    completed: int


class OpSource(Protocol):
    """The operations of a rank, made from a table at each call of `read`, so that they take no memory between calls."""

    def read(self, group: int | None = None) -> list[Op]:
        """Return the operations, oldest first; with `group`, an index in `Job.groups`, only those in it."""


@dataclass
class RankState:
    """The content of one rank's dump: its operations, and how far it got in each process group.

    `pending` are the operations that are not done, in the order of issue, including operations that only other files
    show. `positions` are by the index of the group in `Job.groups`. `newest_ns` is the newest time in the dump, in
    nanoseconds since the epoch (0: none); the dump was taken after this time.
    """

    rank: int
    source: OpSource
    pending: list[Op]
    positions: dict[int, Position]
    newest_ns: int
    overwritten: bool = False
    """Whether the ring buffer has lost the rank's first pending operations, so that `current` may be a later one."""
    replaced: dict[Op, Op] = field(default_factory=dict)
    """{operation in the dump: the same operation with what other files say about it, such as the root}."""

    @property
    def ops(self) -> list[Op]:
        """The operations in the dump, in the order of issue."""
        return self._read()

    def _read(self, group: int | None = None) -> list[Op]:
        ops = self.source.read(group)
        return [self.replaced.get(op, op) for op in ops] if self.replaced else ops

    @property
    def current(self) -> Op | None:
        """The operation that the rank is in: the first one that is not done; None if all are done."""
        return self.pending[0] if self.pending else None

    def enqueued(self, group: int) -> int:
        """Return the highest sequence number of a collective that the rank issued in a group; -1 if none."""
        return self.positions[group].enqueued if group in self.positions else -1

    def completed(self, group: int) -> int:
        """Return the highest sequence number of a collective that the rank completed in a group; -1 if none."""
        return self.positions[group].completed if group in self.positions else -1

    def collectives(self, group: int) -> Iterator[Op]:
        return (op for op in self._read(group) if not op.p2p)

    def collective(self, group: int, seq: int) -> Op | None:
        return next((op for op in self.collectives(group) if op.seq == seq), None)


@dataclass
class Job:
    """A job as its dumps show it: the state of each rank with a dump, and the lists to which operations refer by index.

    `ranks` maps ranks to their state. `unreadable` maps the ranks of damaged dumps to the error. `lacks` maps each kind
    of missing information to the ranks whose dumps lack it.
    """

    world_size: int
    groups: list[Group]
    ranks: dict[int, RankState]
    signatures: list[Signature]
    stacks: list[list[Frame]]
    unreadable: dict[int, str] = field(default_factory=dict)
    lacks: dict[Lack, list[int]] = field(default_factory=dict)
    possible_members: dict[str, list[int]] = field(default_factory=dict)
    """{label of a group whose members were not recorded: the ranks without a dump that may be members}."""
    taken_ns: dict[int, int] = field(default_factory=dict)
    """{rank: Unix time in ns at which its dump was written}; empty if file times contradict the content."""
    unread: frozenset[int] = frozenset()
    """The ranks whose dumps are still being read; that nothing is known of them yet is no sign of a failure."""

    def signature(self, op: Op) -> Signature:
        """Return the name of an operation, with the shapes and types of its tensors."""
        return self.signatures[op.signature]

    def frames(self, op: Op) -> list[Frame]:
        """Return the stack that issued an operation, innermost first; empty if none was recorded."""
        return self.stacks[op.stack]

    def operation(self, op: Op) -> str:
        """Return the name of an operation without its backend: `all_reduce`, `send 0->1`."""
        return self.signatures[op.signature].operation

    def line(self, op: Op) -> Frame | None:
        """Return the innermost frame of the user's code that issued an operation; None if no stack was recorded."""
        return user_frame(self.frames(op))


def user_frame(stack: list[Frame]) -> Frame | None:
    """Return the innermost frame of the user's Python code in a stack; None for an empty stack.

    If there is none, the result is the innermost frame of an installed package, such as torchtitan, or else the
    innermost frame of all.
    """
    origins = [(frames.origin_of(frame.filename), frame) for frame in stack if frame.line]
    wanted = (frames.Origin.USER, frames.Origin.PACKAGE)
    found = (frame for origin in wanted for of, frame in origins if of is origin)
    return next(found, stack[0] if stack else None)


def is_library(frame: Frame) -> bool:
    """Return whether a frame is outside of the user's own code.

    This is so for PyTorch, Python, installed packages, the recorders of this project, and native code.
    """
    # Native frames have no line where the library was built without debug information.
    return not frame.line or frames.is_library(frame.filename)
