"""Where the evidence of a finding is to be seen: one gesture leads there, on every face."""

from dataclasses import dataclass

from analyzers.report import Finding
from workbench.ask import ROOMS

ELSEWHERE = {"incident.crashed": "hang", "compare": "compare"}
"""Findings that are not called after the room in which they are seen."""
PARTS = {
    "timeline": ("memory.oom", "memory.near_limit", "memory.activation_peak"),
    "changes": ("memory.leak",),
    "blocks": ("memory.fragmentation", "memory.reserved", "memory.dead_pool"),
    "ranks": ("memory.uneven",),
    "operations": ("hang.mismatch", "hang.skipped", "hang.order_cycle"),
    "stacks": ("hang.host_stuck",),
    "waits": ("trace.straggler", "trace.exposed_communication"),
    "held": ("trace.memory_grows", "trace.memory_near_limit", "trace.memory_unused"),
    "phases": ("steps.straggler",),
    "times": ("steps.slowdown", "steps.global_stall"),
    "loss": ("steps.nonfinite_loss", "steps.loss_spike", "steps.loss_rise", "steps.plateau", "steps.grad_norm_jump"),
}
"""The part of a view that a finding is about, also of the findings below it (`memory.oom.spike`)."""


@dataclass(frozen=True)
class Sight:
    """`room`: the view to turn to; `part`: what to look at there, empty where all of it counts.

    `rank` and `step` are None where the finding is about all of them.
    """

    room: str
    part: str
    rank: int | None = None
    step: int | None = None


def sight(finding: Finding) -> Sight | None:
    """The evidence of a finding; None where no view shows any."""
    named = finding.id.partition(".")[0]
    room = ELSEWHERE.get(finding.id) or ELSEWHERE.get(named) or named
    if room not in (*ROOMS, *ELSEWHERE.values()):
        return None
    part = next((part for part, findings in PARTS.items() if is_about(finding.id, *findings)), "")
    return Sight(room, part, finding.ranks[0] if finding.ranks else None, finding.step)


def is_about(finding: str, *names: str) -> bool:
    """Whether a finding's id is one of these, or below one of them."""
    return any(finding == name or finding.startswith(f"{name}.") for name in names)
