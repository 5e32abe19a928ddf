"""Find tensors that stay for several steps and are then freed together, as by Python's garbage collector.

An object in a reference cycle is not freed when the last name of it goes, but when the collector runs, which it does
after so many new objects. Worked example, steps in which the blocks of one stack were allocated and freed:

    allocated in  1  2  3  4  5  6  7  8
    freed in      3  3  3  6  6  6  -  -    three steps' blocks are freed in step 3, three steps' in step 6

A list that is emptied now and then looks the same; a queue does not, as it frees the blocks of one step at a time.
"""

import numpy as np

from analyzers.columns import Integers
from analyzers.memory.answers.stacks import stack_lines
from analyzers.memory.answers.training_loop import TrainingLoop
from analyzers.memory.model import UnusualKind, UnusualUse
from analyzers.memory.replay.lifetimes import Replay

STEPS_AT_LEAST, _BURSTS_AT_LEAST = 3, 2
"""A burst frees blocks of this many steps, and a stack must have this many bursts."""
SHARE_AT_LEAST = 0.05


def late_frees(replay: Replay, loop: TrainingLoop) -> UnusualUse | None:
    """Return the stack with the most bytes that are freed in bursts; None if they are less than a part of the peak.

    `bytes` is the size of its largest burst without the blocks of one step, which would be alive in any case.
    """
    starts = np.array([step.start for step in loop.steps], np.int64)
    if len(starts) < STEPS_AT_LEAST * _BURSTS_AT_LEAST:
        return None
    lives = replay.lifetimes
    rows = np.flatnonzero((lives.born >= starts[0]) & (lives.died < len(replay.trace)) & ~lives.freed_stack)
    born, died = (np.searchsorted(starts, when[rows], side="right") for when in (lives.born, lives.died))
    late = died - born >= STEPS_AT_LEAST - 1
    # Only stacks with such late frees need a closer look, and those are few in most jobs.
    chosen = np.isin(lives.stack[rows], np.unique(lives.stack[rows[late]]))
    order = np.flatnonzero(chosen)[np.argsort(lives.stack[rows[chosen]], kind="stable")]
    stacks, first = np.unique(lives.stack[rows[order]], return_index=True)
    best, most = 0, 0
    for stack, part in zip(stacks.tolist(), np.split(order, first[1:]), strict=False):
        kept = _bytes_of_bursts(born[part], died[part], lives.size[rows[part]])
        if stack and kept > most:
            best, most = stack, kept
    if most < SHARE_AT_LEAST * replay.peak[0] or not most:
        return None
    return UnusualUse(
        kind=UnusualKind.LATE_FREES,
        bytes=most,
        frees_bytes=most,
        step=None,
        frames=stack_lines(replay.trace.snapshot, best),
    )


def _bytes_of_bursts(born: Integers, died: Integers, size: Integers) -> int:
    """Return the bytes of the largest burst of one stack, less those of one step; 0 if it is not freed in bursts.

    `born` and `died` are the steps in which its blocks were allocated and freed.
    """
    when, burst = np.unique(died, return_inverse=True)
    steps = np.array([len(np.unique(born[burst == number])) for number in range(len(when))])
    total = np.bincount(burst, size, len(when))
    is_burst = steps >= STEPS_AT_LEAST
    if np.count_nonzero(is_burst) < _BURSTS_AT_LEAST or total[is_burst].sum() < total.sum() / 2:
        return 0
    return int((total * (1 - 1 / steps))[is_burst].max())
