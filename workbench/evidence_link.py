"""Where is the evidence of a finding shown? In the terminal app, in the dashboard and in HTML one step leads there."""

from dataclasses import dataclass

from analyzers.report import Finding
from workbench.ask import ROOMS

ROOM_OF_FINDING = {"incident.crashed": "hang", "compare": "compare"}
"""The room of findings whose id does not begin with its name."""
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
"""The part of a view that shows a finding; a name stands for the ids below it too (`memory.oom.spike`)."""


@dataclass(frozen=True)
class EvidenceLink:
    """The room whose view shows the evidence, and the part of that view; empty for all of it.

    `rank` and `step` are None where the finding is about all of them.
    """

    room: str
    part: str
    rank: int | None = None
    step: int | None = None


def evidence_link(finding: Finding) -> EvidenceLink | None:
    """Return where the evidence of a finding is shown; None where no view shows any."""
    prefix = finding.id.partition(".")[0]
    room = ROOM_OF_FINDING.get(finding.id) or ROOM_OF_FINDING.get(prefix) or prefix
    if room not in (*ROOMS, *ROOM_OF_FINDING.values()):
        return None
    part = next((part for part, findings in PARTS.items() if is_about(finding.id, *findings)), "")
    return EvidenceLink(room, part, finding.ranks[0] if finding.ranks else None, finding.step)


def is_about(finding: str, *names: str) -> bool:
    """Return whether a finding's id is one of these names, or below one of them."""
    return any(finding == name or finding.startswith(f"{name}.") for name in names)
