"""Group the bytes that are alive after a trace entry by category, module, source line or stack.

A group is a path from the general to the particular, such as ("layers", "3", "wq", "parameters"), so that the paths
together form a tree.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from analyzers.errors import InputError
from analyzers.frames import Place, last_parts
from analyzers.memory.categorise import categorise
from analyzers.memory.frames import Frames
from analyzers.memory.lifetimes import Replay
from analyzers.memory.snapshot import CATEGORIES

GroupPath = tuple[str, ...]
_NO_NAME, NO_STACK = "(no name)", "(no stack)"
_NO_FILE = ("", "??")
_FILE_PARTS = 2


@dataclass(frozen=True)
class Usage:
    """The bytes and the number of the live blocks in a group."""

    bytes: int = 0
    blocks: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.bytes + other.bytes, self.blocks + other.blocks)


class BlockKind(NamedTuple):
    """The facts that decide a block's group: its allocating stack (index in `frames`, 0: unknown), category, label."""

    frames: Frames
    stack: int
    category: str
    label: str


@lru_cache(1 << 16)
def _file_and_function(frame: Place) -> GroupPath:
    """Return the file and `function:line` of a stack frame; if the frame has no source file, only the function.

    Only the last two parts of the file's path are kept, so that the folder of the checkout does not matter.
    """
    function = f"{frame.function}:{frame.line}" if frame.line else frame.function
    return (last_parts(frame.file, _FILE_PARTS), function) if frame.file not in _NO_FILE else (function,)


@lru_cache(1 << 16)
def _frame_label(frame: Place) -> str:
    return " ".join(_file_and_function(frame))


def _category_path(kind: BlockKind) -> GroupPath:
    frame = kind.frames.innermost(kind.stack)
    return kind.category, kind.label or (_frame_label(frame) if frame else NO_STACK)


def _module_path(kind: BlockKind) -> GroupPath:
    return *(kind.label.split(".") if kind.label else [_NO_NAME]), kind.category


def _line_path(kind: BlockKind) -> GroupPath:
    frame = kind.frames.innermost(kind.stack)
    return _file_and_function(frame) if frame else (NO_STACK,)


def _stack_path(kind: BlockKind) -> GroupPath:
    """Return the group by stack: the user's frames in the stack that allocated the block, outermost first.

    A stack without such frames (in the threads of the backward pass, for example) has only its operation as its path:
    `backward of bmm`. Its dozens of frames in libraries, from the start of the thread on, would hide the operation.
    """
    if not kind.frames.has_user_line(kind.stack) and (operation := kind.frames.operation(kind.stack)):
        return (operation,)
    return tuple(map(_frame_label, reversed(kind.frames.user_stack(kind.stack)))) or (NO_STACK,)


def _whole_stack_path(kind: BlockKind) -> GroupPath:
    return tuple(map(_frame_label, reversed(kind.frames.whole_stack(kind.stack)))) or (NO_STACK,)


GROUPINGS: dict[str, Callable[[BlockKind], GroupPath]] = {
    "category": _category_path,
    "module": _module_path,
    "line": _line_path,
    "stack": _stack_path,
    "whole_stack": _whole_stack_path,
}


def group_live_blocks(replay: Replay, by: str, entry: int | None = None) -> dict[GroupPath, Usage]:
    """Return the bytes and the number of the blocks that are alive after trace entry `entry`, by group.

    `by` is the kind of group, a key of `GROUPINGS`. Without `entry`, the blocks alive at the peak are grouped.

    Raises:
        InputError: `by` is not in `GROUPINGS`.
    """
    if by not in GROUPINGS:
        raise InputError(f"cannot group by {by}", f"choose one of {', '.join(GROUPINGS)}")
    snapshot, groups = replay.trace.snapshot, dict[GroupPath, Usage]()
    for stack, label, category, usage in _usage_by_kind(replay, replay.peak[1] if entry is None else entry):
        path = GROUPINGS[by](BlockKind(snapshot.frames, stack, CATEGORIES[category], snapshot.text(label)))
        groups[path] = groups.get(path, Usage()) + usage
    return groups


def _usage_by_kind(replay: Replay, entry: int) -> Iterator[tuple[int, int, int, Usage]]:
    """Yield (stack, label, category, usage) for each combination of the three among the blocks alive after an entry.

    The three are indexes. There are far fewer combinations than blocks, so callers look up the names once for each.
    """
    lives, guess = replay.lifetimes, categorise(replay)
    rows = lives.alive(entry)
    labels = len(replay.trace.snapshot.columns["text_end"])
    # One number for all three, as np.unique sorts numbers much faster than rows of a table.
    key = (lives.allocating_stack[rows] * labels + lives.label[rows]) * len(CATEGORIES) + guess.category[rows]
    keys, inverse = np.unique(key, return_inverse=True)
    total = np.bincount(inverse, lives.size[rows], len(keys)).astype(np.int64)
    for number, size, blocks in zip(keys.tolist(), total.tolist(), np.bincount(inverse).tolist(), strict=True):
        stack_and_label, category = divmod(number, len(CATEGORIES))
        yield *divmod(stack_and_label, labels), category, Usage(size, blocks)


_NODES_AT_MOST = 500


def owner_tree(groups: Mapping[GroupPath, Usage], depth: int | None = None) -> pd.DataFrame:
    """Return a table of the `_NODES_AT_MOST` largest nodes of a tree of groups of blocks, parents first.

    `groups` maps the path of each group, such as ("layers", "3", "wq"), to its live bytes and blocks. The nodes of the
    tree are all beginnings of these paths: ("layers",), ("layers", "3") and so on. Levels below `depth` are left out
    (None: all are kept). The bytes of a node include those of all nodes below it, shown or not. Columns: node (its
    number), parent (number of its parent; -1: none), depth (1: top level), name, bytes, blocks, path (tuple of the
    names from the root).
    """
    usage = _usage_of_nodes(groups, depth)
    # A parent has at least the bytes of each child and a shorter path, so every node shown comes after its parent.
    largest = sorted(usage, key=lambda path: (-usage[path].bytes, len(path), path))[:_NODES_AT_MOST]
    number = {path: position for position, path in enumerate(largest)}
    rows = [
        (node, number.get(path[:-1], -1), len(path), path[-1], usage[path].bytes, usage[path].blocks, path)
        for path, node in number.items()
    ]
    return pd.DataFrame(rows, columns=["node", "parent", "depth", "name", "bytes", "blocks", "path"])


def _usage_of_nodes(groups: Mapping[GroupPath, Usage], depth: int | None) -> dict[GroupPath, Usage]:
    """Return the live bytes and blocks of each node of the tree, by path; a node includes all groups below it.

    `groups` maps the path of each group to its usage. Only the first `depth` levels have nodes (None: all levels).
    """
    usage: dict[GroupPath, Usage] = {}
    for path, amount in groups.items():
        for end in range(1, min(len(path), depth or len(path)) + 1):
            usage[path[:end]] = usage.get(path[:end], Usage()) + amount
    return usage
