"""Find out from stacks alone which ranks block the others, for a job without Flight Recorder dumps.

A stack shows in which collective and at which line a rank waits, but not the sequence number of the collective.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from analyzers.frames import Origin, origin_of
from analyzers.hangs.model import Frame, HangClass, user_frame
from analyzers.hangs.reading.side_files import SideFiles
from analyzers.hangs.reading.thread_stacks import read_main_thread, read_pid

MESSAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
NEW_GROUP = ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group")
_COLLECTIVE_FILE = re.compile(r"torch/distributed/(?:distributed_c10d|_functional_collectives|nn/functional)\.py$")
_START_UP_FILE = re.compile(r"torch/distributed/(?:rendezvous|elastic/.*)\.py$")
_WRAPPERS = re.compile(r"wrapper|<lambda>|^_|<locals>")
"""Matches functions in PyTorch's files of collectives that only pass a call on."""
COMMUNICATION = re.compile(r"\bc10d::|\bgloo::|\bnccl[A-Z_]|\bncclu?\b")
_DEVICE_WAIT = re.compile(r"(?:cu|hip)(?:da)?(?:Stream|Event|Device|Ctx)Synchronize|^synchronize$")
BACKWARD = re.compile(r"^(?:Tensor\.)?backward$|^_engine_run_backward$")


class Activity(StrEnum):
    """The activity of a rank as shown by its stack; each value but `OWN_CODE` is a kind of waiting for other ranks."""

    START_UP = "start_up"
    """The rank waits for the other ranks to join the job."""
    COLLECTIVE = "collective"
    MESSAGE = "message"
    """The rank waits in a send or a recv."""
    BACKWARD = "backward"
    """The rank waits in a collective that the backward pass has issued."""
    DEVICE = "device"
    """The rank waits for its device, where a kernel of a collective may wait for other ranks."""
    OWN_CODE = "own_code"


@dataclass(frozen=True)
class Place:
    """The state of one rank as shown by its stack: its activity, the operation that it waits in, and the user's line.

    `operation` is empty if the rank runs its own code. `moved` says whether a later sample of the stack differs; it is
    None if there is only one sample. `pid` is the id of the rank's process, 0 if the stack does not name it.
    """

    rank: int
    activity: Activity
    operation: str
    line: Frame | None
    frames: tuple[Frame, ...]
    moved: bool | None = None
    pid: int = 0

    @property
    def waits(self) -> bool:
        """Whether the rank waits for other ranks, as far as its stack shows."""
        return self.activity is not Activity.OWN_CODE


@dataclass(frozen=True)
class StackCause:
    """The cause of a hang as far as stacks show it: its class, the culprits (`ranks`), and their victims.

    `places` has a `Place` for every rank, grouped by operation and line, the largest group first.
    """

    kind: HangClass
    ranks: list[int]
    victims: list[int]
    places: list[list[Place]]


def find_places(side: SideFiles) -> list[Place]:
    """Return a `Place` for the stack of each rank: its activity, the operation in which it waits, and the user's line.

    `side` has the stack files of the job. The first sample of a stack decides; later ones only show whether the rank
    moved.
    """
    return [place for rank in sorted(side.stack_files) if (place := _find_place(side.stack_files[rank], rank))]


def _find_place(path: Path, rank: int) -> Place | None:
    """Return the `Place` of a rank from the stack of its main thread in the file at `path`; None without a stack."""
    frames = read_main_thread(path, rank)
    if not frames:
        return None
    activity, operation = _activity_of(frames)
    later = [stack for file in _later_files(path) if (stack := read_main_thread(file, rank))]
    moved = any(_python_frames(stack) != _python_frames(frames) for stack in later) if later else None
    return Place(rank, activity, operation, user_frame(frames), tuple(frames), moved, read_pid(path, rank))


def _later_files(path: Path) -> list[Path]:
    """Return the files with later samples of a rank's stack; `path` is the file with the first sample.

    Several samples are taken of each rank, a few moments apart; `round_<n>` folders hold the later ones.
    """
    return sorted(path.parent.glob(f"round_*/{path.name}"))


def _python_frames(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames of Python code; frames of C++ are left out, because not every sample of a stack has them."""
    return [frame for frame in frames if origin_of(frame.filename) is not Origin.NATIVE]


def _activity_of(frames: Sequence[Frame]) -> tuple[Activity, str]:
    """Return the activity of a rank and the operation that it waits in (empty: none), as its stack shows them."""
    own = next((index for index, f in enumerate(frames) if origin_of(f.filename) is Origin.USER), len(frames))
    inner = frames[:own]
    if any(_START_UP_FILE.search(f.filename) or f.name == "init_process_group" for f in inner):
        return Activity.START_UP, "init_process_group"
    # The outermost is the one that the user's line has called.
    called = [f.name for f in inner if _COLLECTIVE_FILE.search(f.filename) and not _WRAPPERS.search(f.name)]
    if called:
        return (Activity.MESSAGE if called[-1] in MESSAGES else Activity.COLLECTIVE), called[-1]
    communicates = any(COMMUNICATION.search(f.name) for f in inner)
    if any(BACKWARD.search(f.name) for f in inner):
        return Activity.BACKWARD, "backward"
    if communicates:
        return Activity.COLLECTIVE, "a collective"
    if any(_DEVICE_WAIT.search(f.name) for f in inner):
        return Activity.DEVICE, "its device"
    return Activity.OWN_CODE, ""


def cause_from_stacks(places: Sequence[Place], world_size: int) -> StackCause | None:
    """Return which ranks block the others, judged by the `places` of all ranks that have a stack.

    The ranks that wait for others are victims of the ranks that do not wait. If a waiting rank moved between two
    samples of its stack, the class is healthy. If all ranks with a stack wait, `_cause_of_waiting` decides; it uses
    `world_size`, the number of ranks in the job, to see whether stacks are missing. The result is None if fewer than
    two ranks have a stack, or if no rank waits.
    """
    waiting, working = [p for p in places if p.waits], [p for p in places if not p.waits]
    sides = _same_place(places)
    if not waiting or len(places) < 2:
        return None
    if any(place.moved for place in waiting):
        return StackCause(HangClass.HEALTHY, [], [], sides)
    if working:
        return StackCause(HangClass.HOST_STUCK, ranks_of(working), ranks_of(waiting), sides)
    return _cause_of_waiting(places, sides, world_size)


def _cause_of_waiting(places: Sequence[Place], sides: list[list[Place]], world_size: int) -> StackCause:
    """Return a `StackCause` for a job in which every rank that has a stack waits.

    `sides` are the `places` grouped by operation and line, the largest group first. With a single group, all ranks have
    arrived (class unknown if fewer than `world_size` ranks have a stack). If more ranks are in one operation than in
    any other, the ranks elsewhere took a different branch and are the culprits. Without such a majority, all ranks are
    culprits. No culprit is named if a rank waits for its device or creates a process group, because its stack does not
    show which other ranks it waits for. Sends and receives are judged by `_blame_messages`.
    """
    if len(sides) == 1:
        kind = HangClass.ALL_ARRIVED if len(places) >= world_size else HangClass.UNKNOWN
        return StackCause(kind, ranks_of(places) if kind is HangClass.ALL_ARRIVED else [], [], sides)
    if any(place.activity is Activity.DEVICE for place in places):
        return StackCause(HangClass.UNKNOWN, [], [], sides)  # what the device waits for is in no stack
    in_message = [place for place in places if place.activity is Activity.MESSAGE]
    if in_message:
        return StackCause(HangClass.UNMATCHED_P2P, *_blame_messages(places, in_message), sides)
    if making_group := [place for place in places if place.operation in NEW_GROUP]:
        # It waits for ranks that do not make the group, and these may be any of the others.
        return StackCause(HangClass.MISMATCH, [], ranks_of(making_group), sides)
    most = len(sides[0]) > len(sides[1])
    culprits = [place for side in sides[most:] for place in side]
    return StackCause(HangClass.MISMATCH, ranks_of(culprits), ranks_of(sides[0]) if most else [], sides)


def _blame_messages(places: Sequence[Place], in_message: Sequence[Place]) -> tuple[list[int], list[int]]:
    """Return (culprits, victims) for a job in which all ranks (`places`) wait, some of them in sends and receives.

    `in_message` are the places of the ranks in sends and receives. If exactly one rank waits in a collective instead,
    this rank is the culprit: it has gone past its own sends and receives, and the others wait for it. If several ranks
    wait in collectives, stacks do not show which of them is the culprit, so there are no culprits. If all ranks are in
    sends and receives, they wait for each other, and all are culprits.
    """
    past = [place for place in places if place not in in_message]
    if not past:
        return ranks_of(in_message), []
    return (ranks_of(past) if len(past) == 1 else []), ranks_of(in_message)


def ranks_of(places: Sequence[Place]) -> list[int]:
    return sorted(place.rank for place in places)


def _same_place(places: Sequence[Place]) -> list[list[Place]]:
    """Return `places` grouped by activity, operation and line, the group of most ranks first."""
    groups: dict[tuple[object, ...], list[Place]] = {}
    for place in places:
        line = (place.line.filename, place.line.line) if place.line else None
        groups.setdefault((place.activity, place.operation, line), []).append(place)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0].rank))
