"""Write the finding that memory grows from step to step."""

from collections.abc import Sequence

from analyzers.memory.findings.evidence import FORWARD_ONLY, STEPS_INFERRED, fact, in_words, innermost, ranks_of
from analyzers.memory.model import Device, Growth
from analyzers.report import Finding, Severity
from analyzers.words import quantity, size, size_change

LEAK_CAUSES = (
    "Common causes are a list that is appended to, a loss summed up without .item() or .detach(), and a stored output"
    " that keeps its autograd graph."
)


def leak_finding(device: Device, growing: Sequence[Growth]) -> Finding:
    """Return the finding that the live bytes of some stacks grow; `growing` has the stack that grew most first."""
    worst = growing[0]
    where = innermost(worst.frames, "an unknown line")
    is_annotated = worst.first_step is not None
    since = f" from step {worst.first_step} on" if is_annotated else ""
    how = "" if is_annotated else f" {STEPS_INFERRED}"
    how += FORWARD_ONLY if worst.forward_only else ""
    together = sum(growth.total_bytes for growth in growing)
    all_lines = f" All lines in the evidence together left {size(together)}." if len(growing) > 1 else ""
    return Finding(
        id="memory.leak",
        severity=Severity.WARNING,
        title=f"Memory grows by {size(worst.bytes_per_step)} per step{since} in {where}",
        why=f"In each of the last {worst.steps} steps this line allocated memory that was not freed by the end of the"
        f" recording, {size(worst.total_bytes)} in total.{all_lines}{how}",
        next=f"Find what keeps the tensors of this line alive. {LEAK_CAUSES}",
        ranks=ranks_of(device),
        step=worst.first_step,
        evidence=[
            fact(
                device,
                f"{size_change(growth.bytes_per_step)} per step in {quantity(growth.steps, 'step')}:"
                f" {in_words(growth.category)}",
                innermost(growth.frames),
            )
            for growth in growing
        ],
        confidence=min(0.95 if is_annotated else 0.8, 0.6 + 0.05 * worst.steps),
    )
