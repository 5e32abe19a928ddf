"""Read `new_groups_R.jsonl`: the process groups that rank R created, in order.

The recorder writes a line before each call that creates a group, so the last call in the file may not have returned.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from analyzers.files import open_regular
from analyzers.hangs.model import Frame, user_frame

_MOST_CALLS = 4096
_LINE_BYTES = 1 << 20
FUNCTIONS = {"new_group", "_new_group_with_tag", "_new_process_group_helper", "split_group"}
"""The functions of PyTorch that create a process group; a rank that is creating one has one of them in its stack."""


class GroupCall(msgspec.Struct):
    """A line of `new_groups_R.jsonl`: a process group that rank R began to create.

    `name` is the group's name, a number that PyTorch counts up (`"3"`). `ranks` are the global ranks of its members,
    and `frames` is the stack of the call, innermost frame first.
    """

    name: str
    ranks: Annotated[list[int], msgspec.Meta(min_length=1)]
    frames: list[Frame] = []


@dataclass(frozen=True)
class NewGroup:
    """A process group that a rank began to create.

    `number` is the group's name as a number; PyTorch counts it up at each creation. `members` are global ranks. `line`
    is the user's frame that made the call, None if the stack has none.
    """

    number: int
    members: tuple[int, ...]
    line: Frame | None
    frames: tuple[Frame, ...] = ()


NewGroups = Mapping[int, NewGroup]
"""{number that PyTorch gave to a process group: what one rank recorded when it created the group}."""


def read_new_groups(path: Path) -> NewGroups:
    """Return the process groups that a rank created, by number, up to the first damaged line of the file.

    The result is empty if the file cannot be read.
    """
    return {group.number: group for group in _calls_of(path)}


def _calls_of(path: Path) -> Iterator[NewGroup]:
    """Yield the process groups that rank R's `new_groups_R.jsonl` lists, in order, up to the first damaged line."""
    try:
        with open_regular(path) as file:
            for _ in range(_MOST_CALLS):
                call = msgspec.json.decode(file.readline(_LINE_BYTES), type=GroupCall)
                members = tuple(sorted(call.ranks))
                yield NewGroup(int(call.name), members, user_frame(call.frames), tuple(call.frames))
    except (OSError, ValueError, msgspec.DecodeError):
        return


def is_making_group(frames: list[Frame]) -> bool:
    """Return whether a stack is in a function of PyTorch that creates a process group."""
    return any(frame.name in FUNCTIONS and "torch" in frame.filename for frame in frames)
