"""Divide parameters into the models that a script builds, such as a policy and its frozen reference model.

Worked example, user frames outermost first: `main:10 > build > __init__` and `main:12 > load_teacher > __init__` part
after `main`, so each line of `main` builds a model. The frames below `__init__` part too, but a constructor that calls
several others builds one model.
"""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from analyzers.columns import Integers
from analyzers.memory.reading.frames import Frame, frame_text
from analyzers.memory.replay.lifetimes import Replay

_STACKS_AT_MOST = 20_000
_BLOCKS_AT_LEAST = 8
"""A model has at least this many parameters; single tensors beside a model belong to it."""


class ModelGroup(NamedTuple):
    """The parameters of one model: bytes, the line that builds it, and the stack of one of them."""

    bytes: int
    line: str
    frames: list[str]


def largest_model(replay: Replay, rows: Integers) -> ModelGroup | None:
    """Return the model with the most bytes among the parameters with these rows in `Lifetimes`.

    The result is None unless at least two models are built.
    """
    lives, frames = replay.lifetimes, replay.trace.snapshot.frames
    stacks, inverse, counts = np.unique(lives.allocating_stack[rows], return_inverse=True, return_counts=True)
    if len(stacks) > _STACKS_AT_MOST:
        return None
    size = np.bincount(inverse, lives.size[rows], len(stacks))
    paths = {
        number: frames.user_stack(int(stack))[::-1]
        for number, stack in enumerate(stacks)
        if frames.has_user_line(stack)
    }
    depth = _common_depth(list(paths.values()))
    groups: defaultdict[Frame, list[int]] = defaultdict(list)
    for number, path in paths.items():
        if len(path) > depth + 1 and path[depth][0] != "__init__":
            groups[path[depth]].append(number)
    models = [group for group in groups.values() if counts[group].sum() >= _BLOCKS_AT_LEAST]
    if len(models) <= 1:
        return None
    largest = max(models, key=lambda group: size[group].sum())
    path = paths[largest[0]]
    return ModelGroup(int(size[largest].sum()), frame_text(path[depth + 1]), [frame_text(f) for f in path[::-1]])


def _common_depth(paths: list[list[Frame]]) -> int:
    """Return how many outermost frames all stacks share."""
    shortest = min(map(len, paths), default=0)
    return next((depth for depth in range(shortest) if len({path[depth] for path in paths}) > 1), shortest)
