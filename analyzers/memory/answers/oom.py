"""Describe the last allocation that failed: what was alive then, and how its step differs from the earlier steps."""

import re
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from analyzers.memory.answers.avoidable import avoidable_uses
from analyzers.memory.answers.stacks import stack_lines
from analyzers.memory.answers.step_use import live_bytes_by_category
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.model import CaughtRequest, Growth, Oom, OomPattern, StepUse
from analyzers.memory.reading.schema import Action, Category
from analyzers.memory.replay.lifetimes import Replay
from analyzers.memory.replay.phases import step_at

_BELOW_LAYER = re.compile(r"^(.*?\.\d+)\..*$")
"""Finds the layer in the name of a module: the memory of `layers.3.attention.wq` counts for `layers.3`."""
# Set by hand: a quarter above the highest step before is no ordinary variation.
_GROWN_SHARE, _SPIKE_RATIO = 0.1, 1.25
_MODULES_AT_MOST = 8
_ALLOCATIONS_AFTERWARDS = 50
"""After this many allocations the program has survived a failed request; handlers of the error make a few."""


def last_oom(replay: Replay, guess: Guess, growing: Sequence[Growth], steps: Sequence[StepUse]) -> Oom | None:
    """Return a description of the last allocation that failed; None if none failed.

    Earlier failures are left out, because the program survived them. `steps` has the memory use of the complete steps,
    with which the failing step is compared; `growing` has the stacks whose live bytes rise from step to step.
    """
    trace = replay.trace
    failed = trace.where(Action.OOM)
    if not len(failed) or survived(replay, int(failed[-1])):
        return None
    index = int(failed[-1])
    requested, allocated = int(trace.entry("size")[index]), int(replay.live_bytes[index])
    # The failing step itself has no end, or ends after the failure.
    before = [step for step in steps if step.last_entry < index]
    usual_peak = max((step.peak_bytes for step in before), default=None)
    at_peaks = live_bytes_by_category(replay, guess, np.array([step.peak_index for step in before], np.int64))
    pattern, since = _pattern_of(allocated + requested, usual_peak, growing)
    return Oom(
        modules=_bytes_by_module(replay, index),
        pattern=pattern,
        since_step=since,
        usual_peak_bytes=usual_peak,
        usual_inputs_bytes=int(at_peaks[Category.INPUTS].max()) if before else None,
        requested_bytes=requested,
        device_free_bytes=int(trace.entry("addr")[index]),  # what an `oom` entry has in place of an address
        allocated_bytes=allocated,
        reserved_bytes=int(replay.reserved[index]),
        index=index,
        step=step_at(trace, index),
        frames=stack_lines(trace.snapshot, int(trace.entry("stack")[index])),
        categories=guess.sums(replay.lifetimes, replay.lifetimes.alive(index)),
        avoidable=avoidable_uses(replay, guess, index) or msgspec.UNSET,
    )


def survived(replay: Replay, index: int) -> bool:
    """Return whether the program went on after the request that failed at this trace entry.

    It did if it then allocated often, and held at least as much memory again as when the request failed.
    """
    later = replay.trace.where(Action.ALLOC)
    later = later[later > index]
    if len(later) < _ALLOCATIONS_AFTERWARDS:
        return False
    return int(replay.live_bytes[later].max()) >= int(replay.live_bytes[index])


def caught_request(replay: Replay) -> CaughtRequest | None:
    """Return the last failed request if the program survived it; None if it did not, or if no request failed."""
    trace = replay.trace
    failed = trace.where(Action.OOM)
    if not len(failed) or not survived(replay, index := int(failed[-1])):
        return None
    return CaughtRequest(
        requested_bytes=int(trace.entry("size")[index]),
        count=len(failed),
        index=index,
        frames=stack_lines(trace.snapshot, int(trace.entry("stack")[index])),
    )


def _pattern_of(wanted: int, usual_peak: int | None, growing: Sequence[Growth]) -> tuple[OomPattern, int | None]:
    """Return how the failing step differs from earlier steps, and the step in which growth began (None if unknown).

    `wanted` is the bytes allocated at the failure plus the bytes requested. `usual_peak` is the highest peak of earlier
    steps (None: there are none). `growing` has the stacks whose live bytes rise from step to step. Growth is checked
    first, because the last step of a leak may also look like a spike.
    """
    if growing and sum(growth.total_bytes for growth in growing) >= _GROWN_SHARE * wanted:
        return OomPattern.GROWTH, min((g.first_step for g in growing if g.first_step is not None), default=None)
    if usual_peak is None:
        return OomPattern.UNKNOWN, None
    return (OomPattern.SPIKE if wanted > _SPIKE_RATIO * usual_peak else OomPattern.STEADY), None


def _bytes_by_module(replay: Replay, index: int) -> dict[str, int]:
    """Return {module: bytes alive after the trace entry `index`}, the largest first.

    The submodules of a layer count for the layer; blocks without a label are left out.
    """
    lives = replay.lifetimes
    rows = lives.alive(index)
    total: Counter[str] = Counter()
    for label in np.unique(lives.label[rows]):
        name = replay.trace.snapshot.text(int(label))
        total[_BELOW_LAYER.sub(r"\1", name)] += int(lives.size[rows][lives.label[rows] == label].sum())
    # Unlabelled blocks are no module.
    del total[""]
    return dict(total.most_common(_MODULES_AT_MOST))
