"""Find out which part of the forward pass a backward operation belongs to, by the tensor that is freed after it.

The backward pass runs in a thread of its own, whose stacks have no line of the user's code. But when an operation of
it has run, autograd frees the tensors that the forward pass saved for it. Their stacks have the line that made them:
the operation itself, if it saves its result (exp, softmax), or else the one before it, whose result was its input.
"""

import numpy as np

from analyzers.columns import Integers
from analyzers.memory.answers.stack_names import short_line
from analyzers.memory.reading.frames import Frames
from analyzers.memory.replay.lifetimes import BEFORE, Lifetimes

ALLOCATIONS = 3
"""Within how many allocations after a block's own the tensor must be freed: one operation may need several blocks."""


def freed_result(frames: Frames, lives: Lifetimes, rows: Integers, stack: int) -> str:
    """Return the line and operation of a saved tensor that is freed after a block of a backward operation, as text.

    It is looked for after the largest block of `stack` among the `rows` of `lives`. The text is empty if the stack has
    a line of its own or shows no backward operation, or if no tensor with a line is freed soon.
    """
    operation = frames.operation(stack)
    if not operation.startswith("backward of") or frames.line(stack) != operation:
        return ""
    own = rows[lives.allocating_stack[rows] == stack]
    born = int(lives.born[own[lives.size[own].argmax()]])
    later = lives.born[lives.born > born]
    if born == BEFORE or len(later) < ALLOCATIONS:
        return ""
    end = int(np.partition(later, ALLOCATIONS - 1)[ALLOCATIONS - 1])
    freed = np.flatnonzero((lives.died > born) & (lives.died < end))
    for row in freed[np.argsort(lives.died[freed], kind="stable")].tolist():
        saved = int(lives.allocating_stack[row])
        [innermost] = frames.user_stack(saved)[:1] or [("", "", 0)]
        if innermost[1].endswith(".py"):
            made_by = frames.operation(saved)
            return short_line(innermost) + (f": {made_by}" if made_by else "")
    return ""
