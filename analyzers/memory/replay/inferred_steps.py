"""Find the steps of a training loop in a trace without step annotations, from a stack that recurs once per step.

Code that runs once per step (the loss, the embedding, the optimizer's norm) allocates at even distances throughout the
loop; code that runs once per layer allocates in bursts. Worked example, with the stacks e (embedding), l (a layer) and
c (loss) in a loop of four steps:

    e l l l c  e l l l c  e l l l c  e l l l c     12 l, 4 e, 4 c

The distances between two e are 5, 5 and 5: even. The distances between two l are 1, 1, 3, 1, 1, 3, ..: uneven. So e and
c are the stacks that mark steps. A step begins at e, because less memory is alive at e than at c.
"""

from itertools import pairwise

import numpy as np

from analyzers.columns import Integers
from analyzers.memory.reading.schema import Action
from analyzers.memory.reading.snapshot import DeviceTrace
from analyzers.memory.replay.phases import StepSpan

_RECURS_AT_LEAST = 5
"""The number of times that a stack must occur to show a loop; a loop of fewer steps is not recognised."""
_UNEVEN_AT_MOST = 0.4
"""The highest standard deviation of the distances between a stack's allocations, divided by their mean.

Evaluation or a checkpoint after some of the steps gives 0.1 to 0.3; two layers that are a quarter of a step apart
give 0.5.
"""
_WHOLE_FROM = 0.9
"""The entries after the last step mark count as a complete step if they are at least this share of a usual step."""
_COVERED_AT_LEAST = 0.6
"""The share of all allocations in the trace that the loop must span.

A stack that recurs within the forward pass of a single step spans only a third.
"""


def inferred_steps(trace: DeviceTrace, live_bytes: Integers) -> list[StepSpan]:
    """Return the training steps inferred from a recurring stack, numbered from 1; empty if there is no such stack.

    The stack must recur at even distances, at least five times. `live_bytes` has the bytes alive after each trace
    entry.
    """
    allocations = trace.where(Action.ALLOC)
    stack = trace.entry("stack")[allocations]
    order = np.argsort(stack, kind="stable")
    known, first, counts = np.unique(stack[order], return_index=True, return_counts=True)
    enough = np.flatnonzero((counts >= _RECURS_AT_LEAST) & (known != 0))
    even = [row for row in enough.tolist() if _recurs_evenly(order[first[row] :][: counts[row]], len(order))]
    if not even:
        return []
    occurrences, votes = np.unique(counts[even], return_counts=True)
    usual = int(occurrences[votes.argmax()])
    candidates = [allocations[order[first[row] :][:usual]] for row in even if counts[row] == usual]
    # Between steps the least memory is alive, and blocks that only seem to be kept are fewest.
    bounds = min(candidates, key=lambda entries: int(live_bytes[np.maximum(entries - 1, 0)].sum())).tolist()
    if len(trace) - bounds[-1] >= _WHOLE_FROM * (bounds[-1] - bounds[0]) / (usual - 1):
        bounds.append(len(trace))
    return [StepSpan(i + 1, start, end) for i, (start, end) in enumerate(pairwise(bounds))]


def _recurs_evenly(positions: Integers, total: int) -> bool:
    """Return whether the allocations of one stack lie at even distances and span most of the trace.

    `positions` are their indexes, ascending, in the list of all allocations of the trace, which has `total` elements.
    """
    distances = np.diff(positions)
    mean = float(distances.mean())
    return bool(distances.std() <= _UNEVEN_AT_MOST * mean and mean * len(positions) >= _COVERED_AT_LEAST * total)
