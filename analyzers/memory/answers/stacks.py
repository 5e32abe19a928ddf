"""Stacks as people read them, and what holds the most bytes."""

import numpy as np

from analyzers.columns import Column
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.model import Snapshot, TopStack
from analyzers.memory.reading.frames import written
from analyzers.memory.reading.reader import CATEGORIES
from analyzers.memory.replay.lifetimes import Lifetimes

SHOWN_FRAMES = 12


def shown(snapshot: Snapshot, stack: int) -> list[str]:
    """A stack as `file:line name`, the innermost frame of the user's code first."""
    return [written(frame) for frame in snapshot.frames.user_stack(stack)[:SHOWN_FRAMES]]


def place(frame: str) -> str:
    """`name (file:line)` with the file's last four parts, for a sentence."""
    location, _, name = frame.partition(" ")
    short = "/".join(location.replace("\\", "/").split("/")[-4:])
    return f"{name} ({short})"


def groups(lives: Lifetimes, guess: Guess) -> Column:
    """A number for each row's (allocating stack, category); blocks whose allocation is unknown have stack 0."""
    stack = np.where(lives.freed_stack, 0, lives.stack).astype(np.int64)
    return stack * len(CATEGORIES) + guess.category


def top_stacks(snapshot: Snapshot, lives: Lifetimes, guess: Guess, rows: Column, limit: int = 20) -> list[TopStack]:
    """The stacks that hold the most of `rows`, largest first."""
    keys, first, inverse, count = np.unique(
        groups(lives, guess)[rows], return_index=True, return_inverse=True, return_counts=True
    )
    held = np.bincount(inverse, weights=lives.size[rows], minlength=len(keys))
    largest = np.lexsort((keys, -held))[:limit]
    return [
        TopStack(
            bytes=int(held[k]),
            count=int(count[k]),
            category=CATEGORIES[keys[k] % len(CATEGORIES)],
            label=snapshot.text(int(lives.label[rows[first[k]]])) if count[k] == 1 else "",
            frames=shown(snapshot, int(keys[k]) // len(CATEGORIES)),
        )
        for k in largest
    ]
