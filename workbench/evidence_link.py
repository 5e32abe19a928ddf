"""Find the view that shows the evidence of a finding; the terminal app, the dashboard and HTML reports link to it."""

from dataclasses import dataclass

from analyzers.report import Finding
from workbench.ask import ROOMS

_ROOM_OF_FINDING = {"incident.crashed": "hang", "compare": "compare", "parity": "parity", "bisect": "bisect"}
"""{id of a finding, or its beginning: the analyzer whose view shows it}.

It has the findings whose ids do not begin with the name of that analyzer.
"""
PARTS = {
    "timeline": (
        "memory.oom",
        "memory.near_limit",
        "memory.activation_peak",
        "memory.attention_scores",
        "memory.attention_fallback",
        "memory.unused_graph",
    ),
    "changes": ("memory.leak",),
    "blocks": ("memory.fragmentation", "memory.reserved", "memory.dead_pool"),
    "ranks": ("memory.uneven",),
    "operations": ("hang.mismatch", "hang.skipped", "hang.order_cycle"),
    "stacks": ("hang.host_stuck",),
    "waits": ("trace.straggler", "trace.exposed_communication", "trace.devices_in_turn"),
    "opportunities": (
        "trace.host_bound",
        "trace.data_loader",
        "trace.python",
        "trace.synchronising_call",
        "trace.launch",
        "trace.unfused_attention",
        "trace.recomputation",
        "trace.float64",
        "trace.float32",
        "trace.misaligned",
        "trace.layout_copies",
        "trace.pageable_copies",
        "trace.exposed_copies",
        "trace.cross_entropy",
        "trace.elementwise",
        "trace.small_collectives",
        "trace.bus_bandwidth",
    ),
    "held": ("trace.memory_grows", "trace.memory_near_limit", "trace.memory_unused"),
    "phases": ("steps.straggler",),
    "times": ("steps.slowdown", "steps.global_stall"),
    "loss": ("steps.nonfinite_loss", "steps.loss_spike", "steps.loss_rise", "steps.plateau", "steps.grad_norm_jump"),
}
"""{part of a view: ids of the findings that it shows}.

An id also stands for longer ids, such as `memory.oom` for `memory.oom.spike`.
"""


@dataclass(frozen=True)
class EvidenceLink:
    """A link to the view that shows the evidence of a finding.

    `room` is the name of the analyzer that the view belongs to, such as `memory`. `part` names a part of the view;
    empty means the whole view. `rank` is the finding's first rank, and `step` its step; None if it names none.
    """

    room: str
    part: str
    rank: int | None = None
    step: int | None = None


def evidence_link(finding: Finding) -> EvidenceLink | None:
    """Return the link to the view that shows the evidence of a finding; None if no view does."""
    prefix = finding.id.partition(".")[0]
    room = _ROOM_OF_FINDING.get(finding.id) or _ROOM_OF_FINDING.get(prefix) or prefix
    if room not in (*ROOMS, *_ROOM_OF_FINDING.values()):
        return None
    part = next((part for part, findings in PARTS.items() if _is_about(finding.id, *findings)), "")
    return EvidenceLink(room, part, finding.ranks[0] if finding.ranks else None, finding.step)


def _is_about(finding: str, *names: str) -> bool:
    """Return whether the finding id `finding` is one of `names`, or starts with one of them and a dot."""
    return any(finding == name or finding.startswith(f"{name}.") for name in names)
