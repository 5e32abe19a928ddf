"""What holds memory at an instant, grouped as asked: each group is a path from the general to the particular."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from analyzers.errors import InputError
from analyzers.memory.categories.categorise import categorise
from analyzers.memory.reading.frames import Frame, Frames
from analyzers.memory.reading.reader import CATEGORIES
from analyzers.memory.replay.lifetimes import Replay

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


@lru_cache(1 << 16)
def place_of(frame: Frame) -> Path:
    """(the last parts of a frame's file, which stay when a checkout moves; function and line)."""
    name, file, line = frame
    parts = file.replace("\\", "/").split("/")[-PARTS_OF_A_PATH:]
    return "/".join(parts) or "??", f"{name}:{line}" if line else name


@lru_cache(1 << 16)
def written_place(frame: Frame) -> str:
    return " ".join(place_of(frame))


class Kind(NamedTuple):
    """What blocks have in common: a stack, which is 0 where it is unknown, a category, and what was noted."""

    frames: Frames
    stack: int
    category: str
    label: str


def by_category(kind: Kind) -> Path:
    frame = kind.frames.innermost(kind.stack)
    return (kind.category, kind.label or (written_place(frame) if frame else UNRECORDED))


def by_module(kind: Kind) -> Path:
    return (*(kind.label.split(".") if kind.label else [UNLABELLED]), kind.category)


def by_line(kind: Kind) -> Path:
    frame = kind.frames.innermost(kind.stack)
    return place_of(frame) if frame else (UNRECORDED,)


def by_stack(kind: Kind) -> Path:
    return tuple(map(written_place, reversed(kind.frames.user_stack(kind.stack)))) or (UNRECORDED,)


GROUPINGS: dict[str, Callable[[Kind], Path]] = {
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
        path = GROUPINGS[by](Kind(snapshot.frames, stack, CATEGORIES[category], snapshot.text(label)))
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
