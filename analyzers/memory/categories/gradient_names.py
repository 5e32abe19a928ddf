"""Name gradients that no recorder named, by the parameters of the same size.

A gradient has the size of its parameter. If a rank has one parameter of a size, the gradient of this size is that of
this parameter; if it has several, the gradient belongs to one of them, and nothing says to which.
"""

from collections import Counter

import numpy as np

from analyzers.columns import Integers
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.reading.frames import frame_text
from analyzers.memory.reading.schema import Category
from analyzers.memory.replay.lifetimes import Replay


def gradient_names(replay: Replay, guess: Guess, rows: Integers) -> dict[int, str]:
    """Return {row: name} of the gradients without a label among some blocks, given by their rows in `Lifetimes`.

    The name is `gradient of layers.0.wq`, or `gradient of one of 4 parameters of this size`. A gradient as large as no
    parameter has no name.
    """
    lives = replay.lifetimes
    category, size = guess.category[rows], lives.size[rows]
    parameters = rows[category == Category.PARAMETERS]
    count = Counter(lives.size[parameters].tolist())
    alone = {int(lives.size[row]): int(row) for row in parameters.tolist()}
    gradients = Counter(size[category == Category.GRADIENTS].tolist())
    unnamed = rows[(category == Category.GRADIENTS) & (lives.label[rows] == 0)]
    return {
        row: name
        for row, bytes_ in zip(unnamed.tolist(), lives.size[unnamed].tolist(), strict=True)
        if (name := _name_of(replay, alone.get(bytes_, -1), count[bytes_], gradients[bytes_]))
    }


def _name_of(replay: Replay, parameter: int, parameters: int, gradients: int) -> str:
    """Return the name of a gradient: `parameters` and `gradients` of its size are live, `parameter` is a row of them.

    More gradients than parameters of one size cannot all be those of parameters; then the name is empty.
    """
    if not parameters or gradients > parameters:
        return ""
    if parameters > 1:
        return f"gradient of one of {parameters} parameters of this size"
    return f"gradient of {owner}" if (owner := _owner_of(replay, parameter)) else ""


def _owner_of(replay: Replay, parameter: int) -> str:
    """Return the label of a parameter, or the line that made it; empty if neither is known."""
    lives, snapshot = replay.lifetimes, replay.trace.snapshot
    if label := snapshot.text(int(lives.label[parameter])):
        return label
    stack = int(np.asarray(lives.allocating_stack)[parameter])
    if not snapshot.frames.has_user_line(stack):
        return ""
    return f"the parameter of {frame_text(snapshot.frames.user_stack(stack)[0])}"
