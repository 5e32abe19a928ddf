"""Format stacks for people, and find the stacks that allocated most of the live bytes."""

import re

import msgspec
import numpy as np

from analyzers.columns import Integers
from analyzers.memory.answers.stack_names import base_name, distinct_names, freed_next
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.model import TopStack
from analyzers.memory.reading.frames import frame_text
from analyzers.memory.reading.schema import CATEGORIES
from analyzers.memory.reading.snapshot import Snapshot
from analyzers.memory.replay.lifetimes import BEFORE, Lifetimes

_FRAMES_SHOWN = 12
_FILE_LINE = re.compile(r"(.*?:-?\d+) (.+)$", re.DOTALL)


def stack_lines(snapshot: Snapshot, stack: int) -> list[str]:
    """Return up to `_FRAMES_SHOWN` of the user's frames in a stack as `file:line function`, innermost first.

    If no frame is in the user's code, the lines are those of `Frames.user_stack`.
    """
    return [frame_text(frame) for frame in snapshot.frames.user_stack(stack)[:_FRAMES_SHOWN]]


def call_site(line: str) -> str:
    """Return `function (file:line)` for a frame `file:line function`, with the last four parts of the file's path.

    A frame without a file, such as `aten::bmm` or `backward of bmm`, is returned as it is.
    """
    parts = _FILE_LINE.match(line)
    if not parts:
        return line
    location, name = parts.groups()
    short = "/".join(location.replace("\\", "/").split("/")[-4:])
    return f"{name} ({short})"


def stack_and_category(lives: Lifetimes, guess: Guess) -> Integers:
    """Return, for each row of `Lifetimes`, one number for its allocating stack and its category.

    `divmod` of this number by the number of categories gives (stack, category).
    """
    return lives.allocating_stack * len(CATEGORIES) + guess.category


def top_stacks(snapshot: Snapshot, lives: Lifetimes, guess: Guess, rows: Integers, limit: int = 20) -> list[TopStack]:
    """Return the (stack, category) pairs with the most bytes among some blocks, the largest first, at most `limit`.

    The blocks are given by their rows in `lives`; the stacks are those that allocated them.
    """
    keys, first, inverse, count = np.unique(
        stack_and_category(lives, guess)[rows], return_index=True, return_inverse=True, return_counts=True
    )
    total = np.bincount(inverse, weights=lives.size[rows], minlength=len(keys))
    recorded = np.bincount(inverse, weights=lives.born[rows] != BEFORE, minlength=len(keys))
    # By number where bytes are equal: the order must not depend on how np.unique sorts.
    largest = np.lexsort((keys, -total))[:limit].tolist()
    stacks = [int(keys[k]) // len(CATEGORIES) for k in largest]
    # Several blocks of one stack have different labels, so a label is only right for a single one.
    labels = [snapshot.text(int(lives.label[rows[first[k]]])) if count[k] == 1 else "" for k in largest]
    named = [
        TopStack(
            bytes=int(total[k]),
            count=int(count[k]),
            category=CATEGORIES[keys[k] % len(CATEGORIES)],
            label=label,
            frames=stack_lines(snapshot, stack),
            operation=snapshot.frames.operation(stack),
            name=base_name(snapshot.frames, stack, label, older=not recorded[k]),
        )
        for k, stack, label in zip(largest, stacks, labels, strict=True)
    ]
    names = distinct_names(snapshot.frames, stacks, named)
    freed = [freed_next(snapshot, lives, rows, stack) for stack in stacks]
    return [
        msgspec.structs.replace(row, name=f"{name}, {clause}" if clause else name)
        for row, name, clause in zip(named, names, freed, strict=True)
    ]
