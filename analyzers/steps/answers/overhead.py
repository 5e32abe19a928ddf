"""Find parts of the wall time that cost more than they should: waiting for data, checkpoints, restarts."""

from dataclasses import dataclass
from enum import StrEnum
from statistics import median_low

from analyzers.steps.model import StepsData

STEPS_AT_LEAST = 20
_DATA_SHARE, _CHECKPOINT_SHARE, _RESTART_SHARE = 0.2, 0.1, 0.1
"""The shares of the wall time above which data loading, checkpoints and restarts are reported."""
_LONG_RUN_NS = 600 * 10**9
"""The shortest run, in ns, for which restarts are reported.

In shorter runs, start-up takes most of the time anyway.
"""


class Part(StrEnum):
    """A part of the wall time that may cost too much."""

    DATA = "data"
    CHECKPOINT = "checkpoint"
    RESTART = "restart"


@dataclass(frozen=True)
class Overhead:
    """A part of the wall time that costs too much.

    For `Part.DATA`, `seconds` is the waiting per step and `share` its share of a step. For the other parts, `seconds`
    is the sum over the whole run, and `share` is the share of the run's wall time.
    """

    part: Part
    share: float
    seconds: float


def overheads(data: StepsData) -> list[Overhead]:
    """Return the parts of the wall time that cost too much: waiting for data, checkpoints, restarts.

    The list is empty for a run of few steps.
    """
    if max(rank.steps for rank in data.ranks) < STEPS_AT_LEAST:
        return []
    waiting = _data_overhead(data)
    return [*([waiting] if waiting else []), *_run_overheads(data)]


def _data_overhead(data: StepsData) -> Overhead | None:
    """Return an `Overhead` on the wait for data in a typical step of most ranks; None if it is short."""
    waits = [(rank.phases.get("data_wait", 0.0), rank.median_step_s) for rank in data.ranks]
    timed = [(wait / step, wait) for wait, step in waits if step]
    # The lower median: with two ranks both must wait.
    share, wait = median_low(timed) if timed else (0.0, 0.0)
    return Overhead(Part.DATA, share, wait) if share >= _DATA_SHARE else None


def _run_overheads(data: StepsData) -> list[Overhead]:
    """Return an `Overhead` for blocking checkpoints and one for restarts, if they take too much of the run."""
    if data.goodput is None:
        return []
    wall, parts = data.goodput.wall_ns, data.goodput.parts
    saving = parts.get("checkpoint", 0)
    # Work that a restart lost is part of its price.
    lost = (parts.get("restart", 0) + parts.get("redone", 0)) * (wall >= _LONG_RUN_NS)
    costs = ((Part.CHECKPOINT, saving, _CHECKPOINT_SHARE), (Part.RESTART, lost, _RESTART_SHARE))
    return [Overhead(part, ns / wall, ns / 1e9) for part, ns, limit in costs if ns > limit * wall]
