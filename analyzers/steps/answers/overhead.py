"""Parts of the wall time that cost more than they should."""

from dataclasses import dataclass
from statistics import median_low

from analyzers.steps.model import StepsData

STEPS_AT_LEAST = 20
DATA, CHECKPOINT, RESTART = 0.2, 0.1, 0.1
"""Shares of the time that are worth a finding."""
LONG_NS = 600 * 10**9
"""Starting up takes most of a shorter run anyway."""


@dataclass(frozen=True)
class Bad:
    """A part that takes `share` of the time, `seconds` of each step or of the whole run."""

    part: str
    share: float
    seconds: float


def badput(data: StepsData) -> list[Bad]:
    """What takes too much of the time on most ranks."""
    if max(rank.steps for rank in data.ranks) < STEPS_AT_LEAST:
        return []
    found = [waiting_for_data(data), *of_wall_time(data)]
    return [bad for bad in found if bad]


def waiting_for_data(data: StepsData) -> Bad | None:
    """What most ranks wait for their data in a usual step."""
    waits = [(rank.phases.get("data_wait", 0.0), rank.median_step_s) for rank in data.ranks]
    known = [(wait / step, wait) for wait, step in waits if step]
    share, wait = median_low(known) if known else (0.0, 0.0)
    return Bad("data", share, wait) if share >= DATA else None


def of_wall_time(data: StepsData) -> list[Bad]:
    """Savings that block, and what restarts cost."""
    if data.goodput is None:
        return []
    wall, parts = data.goodput.wall_ns, data.goodput.parts
    saving = parts.get("checkpoint", 0)
    lost = (parts.get("restart", 0) + parts.get("redone", 0)) * (wall >= LONG_NS)
    found = (("checkpoint", saving, CHECKPOINT), ("restart", lost, RESTART))
    return [Bad(name, ns / wall, ns / 1e9) for name, ns, limit in found if ns > limit * wall]
