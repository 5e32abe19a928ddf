"""Findings about memory that grows from step to step."""

from collections.abc import Sequence

from analyzers.memory.findings.evidence import fact, in_words, innermost, ranks_of
from analyzers.memory.model import Device, Growth
from analyzers.report import Finding, Severity
from analyzers.words import size, size_change


def leak_finding(device: Device, growing: Sequence[Growth]) -> Finding:
    """Return that the live bytes of some stacks grow; `growing` has the most bytes first."""
    worst = growing[0]
    where = innermost(worst.frames, "an unknown line")
    return Finding(
        id="memory.leak",
        severity=Severity.WARNING,
        title=f"Memory grows by {size(worst.bytes_per_step)} per step from step {worst.first_step} on in {where}",
        why=f"Memory allocated in {where} and not freed increased in {worst.steps} consecutive steps, by"
        f" {size(worst.total_bytes)} in total.",
        next="Find what keeps these tensors alive: a list that is appended to, a loss summed up without .item() or"
        " .detach(), a stored output that keeps its autograd graph. At the end of the trace"
        f" this would free {size(sum(growth.total_bytes for growth in growing))}.",
        ranks=ranks_of(device),
        step=worst.first_step,
        evidence=[
            fact(
                device,
                f"{size_change(growth.bytes_per_step)} per step, {in_words(growth.category)}",
                innermost(growth.frames),
            )
            for growth in growing
        ],
        confidence=min(0.95, 0.6 + 0.05 * worst.steps),
    )
