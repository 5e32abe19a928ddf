"""Write the finding that memory grows from step to step."""

from collections.abc import Sequence

from analyzers.memory.findings.evidence import fact, in_words, innermost, ranks_of
from analyzers.memory.model import Device, Growth
from analyzers.report import Finding, Severity
from analyzers.words import size, size_change


def leak_finding(device: Device, growing: Sequence[Growth]) -> Finding:
    """Return the finding that the live bytes of some stacks grow; `growing` has the stack that grew most first."""
    worst = growing[0]
    where = innermost(worst.frames, "an unknown line")
    is_annotated = worst.first_step is not None
    since = f" from step {worst.first_step} on" if is_annotated else ""
    how = "" if is_annotated else " The recording marks no steps: they were inferred from stacks that recur."
    return Finding(
        id="memory.leak",
        severity=Severity.WARNING,
        title=f"Memory grows by {size(worst.bytes_per_step)} per step{since} in {where}",
        why=f"In each of the last {worst.steps} steps {where} allocated memory that was not freed afterwards,"
        f" {size(worst.total_bytes)} in total.{how}",
        next="Find what keeps these tensors alive: a list that is appended to, a loss summed up without .item() or"
        " .detach(), a stored output that keeps its autograd graph. Together they hold"
        f" {size(sum(growth.total_bytes for growth in growing))} at the end of the recording.",
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
        confidence=min(0.95 if is_annotated else 0.8, 0.6 + 0.05 * worst.steps),
    )
