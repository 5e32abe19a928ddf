"""What holds memory at an instant, grouped as asked: each group is a path from the general to the particular."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from analyzers.errors import InputError
from analyzers.memory.categories import categorise
from analyzers.memory.read import CATEGORIES
from analyzers.memory.replay import Replay
from analyzers.memory.stacks import Frame, user_frames

Path = tuple[str, ...]
UNLABELLED, UNRECORDED = "(no name)", "(no stack)"
PARTS_OF_A_PATH = 2


@dataclass(frozen=True)
class Held:
    """Bytes and blocks of one group."""

    bytes: int = 0
    blocks: int = 0

    def __add__(self, other: "Held") -> "Held":
        return Held(self.bytes + other.bytes, self.blocks + other.blocks)


def file_of(frame: Frame) -> str:
    """The last parts of a frame's file, which stay when a checkout moves."""
    return "/".join(frame[1].replace("\\", "/").split("/")[-PARTS_OF_A_PATH:]) or "??"


def line_of(frame: Frame) -> str:
    return f"{frame[0]}:{frame[2]}" if frame[2] else frame[0]


def by_category(category: str, label: str, frames: list[Frame]) -> Path:
    return (category, label or (f"{file_of(frames[0])} {line_of(frames[0])}" if frames else UNRECORDED))


def by_module(category: str, label: str, frames: list[Frame]) -> Path:  # noqa: ARG001  # one signature for all
    return (*(label.split(".") if label else [UNLABELLED]), category)


def by_line(category: str, label: str, frames: list[Frame]) -> Path:  # noqa: ARG001
    return (file_of(frames[0]), line_of(frames[0])) if frames else (UNRECORDED,)


def by_stack(category: str, label: str, frames: list[Frame]) -> Path:  # noqa: ARG001
    return tuple(f"{file_of(frame)} {line_of(frame)}" for frame in reversed(frames)) or (UNRECORDED,)


GROUPINGS: dict[str, Callable[[str, str, list[Frame]], Path]] = {
    "category": by_category,
    "module": by_module,
    "line": by_line,
    "stack": by_stack,
}


def held(replay: Replay, by: str, entry: int | None = None) -> dict[Path, Held]:
    """What is alive after `entry` (the peak by default), by category, module, line or stack.

    Raises:
        InputError: There is no such grouping.
    """
    if by not in GROUPINGS:
        raise InputError(f"cannot group by {by}", f"choose one of {', '.join(GROUPINGS)}")
    snapshot, found = replay.trace.snapshot, dict[Path, Held]()
    for stack, label, category, amount in alike(replay, replay.peak[1] if entry is None else entry):
        frames = user_frames(snapshot.stack(stack))
        path = GROUPINGS[by](CATEGORIES[category], snapshot.text(label), frames)
        found[path] = found.get(path, Held()) + amount
    return found


def alike(replay: Replay, entry: int) -> Iterator[tuple[int, int, int, Held]]:
    """(stack, label, category, how much) of the blocks alive after `entry` that agree in all three."""
    lives, guess = replay.lifetimes, categorise(replay)
    rows = lives.alive(entry)
    labels = len(replay.trace.snapshot.columns["text_end"])
    stack = np.where(lives.freed_stack[rows], 0, lives.stack[rows]).astype(np.int64)
    keys, inverse = np.unique(
        (stack * labels + lives.label[rows]) * len(CATEGORIES) + guess.category[rows], return_inverse=True
    )
    total = np.bincount(inverse, lives.size[rows], len(keys)).astype(np.int64)
    for key, size, blocks in zip(keys.tolist(), total.tolist(), np.bincount(inverse).tolist(), strict=True):
        named, category = divmod(key, len(CATEGORIES))
        yield *divmod(named, labels), category, Held(size, blocks)
