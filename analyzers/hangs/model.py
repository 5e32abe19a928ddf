"""The typed picture of a hung job, and the structs of `workbench.hang/1`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from analyzers import frames


class Frame(msgspec.Struct, frozen=True, order=True):
    name: str
    filename: str
    line: int


class Group(msgspec.Struct, frozen=True):
    """A process group: `ranks` are global. `source` says where its members come from."""

    name: str
    desc: str
    ranks: list[int]
    source: str = ""

    @property
    def label(self) -> str:
        return self.desc if self.desc not in ("", "undefined") else f"group {self.name}"


class Wait(msgspec.Struct, frozen=True):
    """`rank` stands in operation `seq` of `group` and needs `waits_for` to come there; empty: all have come."""

    rank: int
    waits_for: list[int]
    group: str
    seq: int
    operation: str


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that wait for nobody while others wait for them. `frames` are innermost first."""

    ranks: list[int]
    kind: str = msgspec.field(name="class")
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
    confidence: float = 0.9


class HangData(msgspec.Struct, frozen=True, kw_only=True):
    world_size: int
    ranks_with_dump: list[int]
    groups: list[Group]
    culprits: list[Culprit]
    waits: list[Wait]


@dataclass(frozen=True, slots=True)
class Signature:
    backend: str
    operation: str
    input_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_sizes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[str, ...]

    @property
    def shape(self) -> str:
        """The sizes as a reader writes them: `4x4 Float`."""
        sizes = ", ".join("x".join(map(str, shape)) or "scalar" for shape in self.input_sizes)
        return f"{sizes} {'/'.join(sorted(set(self.input_dtypes)))}".strip()


@dataclass(frozen=True, slots=True)
class Op:
    """An entry of the recorder. `group` indexes `Job.groups`, `stack` and `signature` their lists."""

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
    """How far a rank got in a group: sequence numbers; -1 where there is none."""

    first: int
    enqueued: int
    completed: int


@dataclass
class RankState:
    """What the dump of one rank says."""

    rank: int
    ops: list[Op]
    positions: dict[int, Position]
    overwritten: bool = False
    """The ring has lost its first pending operations, so that `front` is at or after the true one."""
    pending: list[Op] = field(init=False)

    def __post_init__(self) -> None:
        self.pending = [op for op in self.ops if not op.done]

    @property
    def front(self) -> Op | None:
        """The operation the rank stands in."""
        return self.pending[0] if self.pending else None

    def enqueued(self, group: int) -> int:
        return self.positions[group].enqueued if group in self.positions else -1

    def completed(self, group: int) -> int:
        return self.positions[group].completed if group in self.positions else -1

    def in_group(self, group: int) -> Iterator[Op]:
        """Its collectives in a group, oldest first."""
        return (op for op in self.ops if op.group == group and not op.p2p)

    def at(self, group: int, seq: int) -> Op | None:
        return next((op for op in self.in_group(group) if op.seq == seq), None)

    def last_sign_ns(self) -> int:
        """The newest time in the dump: it was taken after that."""
        return max((max(op.created_ns, op.completed_ns) for op in self.ops), default=0)


@dataclass
class Job:
    """The ranks that left a dump, and what they share.

    `unreadable` maps the ranks of damaged dumps to what is wrong, `lacks` a shortfall to the ranks that have it.
    """

    world_size: int
    groups: list[Group]
    ranks: dict[int, RankState]
    signatures: list[Signature]
    stacks: list[list[Frame]]
    unreadable: dict[int, str] = field(default_factory=dict)
    lacks: dict[str, list[int]] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    """When each rank's dump was written, in nanoseconds; empty where the files' times cannot be believed."""

    def signature(self, op: Op) -> Signature:
        return self.signatures[op.signature]

    def frames(self, op: Op) -> list[Frame]:
        return self.stacks[op.stack]

    def operation(self, op: Op) -> str:
        return self.signatures[op.signature].operation

    def line(self, op: Op) -> Frame | None:
        """The user's line that issued an operation."""
        return user_frame(self.frames(op))


def user_frame(frames: list[Frame]) -> Frame | None:
    """The innermost frame of the user's Python code; else the innermost."""
    return next((f for f in frames if not is_library(f)), frames[0] if frames else None)


def is_library(frame: Frame) -> bool:
    """Whether a frame is PyTorch's, the standard library's, our recorders' or native code."""
    return not frame.line or frames.is_library(frame.filename)


def ops_of(columns: "dict[str, np.ndarray[Any, Any]]", rows: slice, rank: int, groups: dict[int, int]) -> list[Op]:
    """Rows of the columns as operations; `groups` maps the reader's group numbers to the job's."""
    names = (
        "group",
        "seq",
        "p2p_seq",
        "signature",
        "stack",
        "started",
        "done",
        "retired",
        "created_ns",
        "completed_ns",
        "p2p",
    )
    listed = [columns[name][rows].tolist() for name in names]
    return [
        Op(
            rank,
            groups[g],
            seq,
            p2p_seq,
            sig,
            stack,
            bool(started),
            bool(done),
            bool(retired),
            created,
            completed,
            bool(p2p),
        )
        for g, seq, p2p_seq, sig, stack, started, done, retired, created, completed, p2p in zip(*listed, strict=True)
    ]
