"""Find the steps of a training loop that need far more memory than its other steps, and the line that differs."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from analyzers.memory.answers.stacks import stack_lines
from analyzers.memory.answers.training_loop import TrainingLoop
from analyzers.memory.model import StepUse, UnusualKind, UnusualUse
from analyzers.memory.replay.lifetimes import Replay

STEPS_AT_LEAST = 4
# Set by hand. Peaks of steps with batches of several sizes also differ: a spike must stand out from how they differ.
_SPIKE_RATIO, _SPREADS_AT_LEAST = 1.1, 2
_SHARE_AT_MOST = 0.25
"""The largest share of steps that may count as unusually large; if there are more, the job has two kinds of steps."""


def larger_steps(replay: Replay, uses: Sequence[StepUse], loop: TrainingLoop) -> Iterator[UnusualUse]:
    """Yield the spike of a training loop, if a few of its steps peak far above all others.

    The highest of these steps must be the peak of the whole trace. `uses` has the memory use of the steps of `loop`.
    Example: steps peak at 4, 4, 5, 9, 4 and 5 GiB. Sorted by size, the largest ratio of neighbours is 9 / 5, so the
    spike is the step with 9 GiB, which needs 4 GiB more than any other step.
    """
    order = sorted(range(len(uses)), key=lambda row: uses[row].peak_bytes)
    peaks = [uses[row].peak_bytes for row in order]
    counts = range(1, int(_SHARE_AT_MOST * len(uses)) + 1) if len(uses) >= STEPS_AT_LEAST else ()
    count = max(counts, key=lambda k: peaks[-k] / max(1, peaks[-k - 1]), default=0)
    if not count or not _stands_out(peaks, count) or peaks[-1] < replay.peak[0]:
        return
    highest, usual = uses[order[-1]], uses[order[-count - 1]]
    yield UnusualUse(
        kind=UnusualKind.SPIKE,
        bytes=highest.peak_bytes - usual.peak_bytes,
        frees_bytes=highest.peak_bytes - usual.peak_bytes,
        step=highest.step if loop.is_annotated else None,
        frames=stack_lines(replay.trace.snapshot, _stack_that_grew(replay, usual.peak_index, highest.peak_index)),
        larger_steps=count,
        compared_steps=len(uses),
        forward_only=loop.is_forward_only or msgspec.UNSET,
    )


def _stands_out(peaks: Sequence[int], count: int) -> bool:
    """Return whether the last `count` of ascending peaks are far above the others, relative to the others' spread."""
    lowest, usual, median = peaks[-count], peaks[-count - 1], peaks[(len(peaks) - count) // 2]
    return lowest >= _SPIKE_RATIO * usual and lowest - usual >= _SPREADS_AT_LEAST * (usual - median)


def _stack_that_grew(replay: Replay, before: int, after: int) -> int:
    """Return the stack with the largest increase of its live bytes between two trace entries."""
    lives = replay.lifetimes
    difference = np.zeros(int(lives.allocating_stack.max(initial=0)) + 1)
    for entry, sign in ((before, -1), (after, 1)):
        rows = lives.alive(entry)
        difference += sign * np.bincount(lives.allocating_stack[rows], lives.size[rows], len(difference))
    difference[0] = -np.inf  # the blocks without a stack
    return int(difference.argmax()) if difference.max(initial=0) > 0 else 0
