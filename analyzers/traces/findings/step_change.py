"""Write the finding that a step takes longer in one set of traces than in another."""

from analyzers.report import Evidence, Finding, Severity
from analyzers.traces.diff.diff import TraceDiff
from analyzers.words import duration_change_ns, duration_ns, percent, quantity

# Relative growth of a mean step that is worth a finding, and that is a warning where both sides have several steps.
_INFO_FROM, _WARNING_FROM = 0.05, 0.1
STEPS_AT_LEAST = 3
_KERNELS_AT_MOST, _NAME_AT_MOST = 5, 80


def step_change_finding(diff: TraceDiff) -> Finding | None:
    """Return the finding that a traced step takes longer in run b than in run a; None if it did not grow by much."""
    growth = diff.step_b_ns - diff.step_a_ns
    if growth <= _INFO_FROM * diff.step_a_ns:
        return None
    certain = growth > _WARNING_FROM * diff.step_a_ns and min(diff.a_steps, diff.b_steps) >= STEPS_AT_LEAST
    largest = max(diff.parts, key=lambda part: part.change_ns)
    parts = ", ".join(f"{part.what} {duration_change_ns(part.change_ns)}" for part in diff.parts if part.change_ns)
    slower = [change for change in diff.changes if change.kind == "kernel" and change.change_ns > 0]
    return Finding(
        id="compare.trace",
        severity=Severity.WARNING if certain else Severity.INFO,
        title=f"A traced step takes {percent(growth / diff.step_a_ns)} longer in run b than in run a, most of it"
        f" {largest.what}",
        why=f"The mean step takes {duration_ns(diff.step_a_ns)} in run a ({quantity(diff.a_steps, 'step')}) and"
        f" {duration_ns(diff.step_b_ns)} in run b ({quantity(diff.b_steps, 'step')}). The change by part: {parts}.",
        next="Start with the kernels that grew most, which the evidence lists. `workbench trace` on each of the two"
        " runs shows the operators and source lines that launch them.",
        evidence=[
            Evidence(text=f"{change.name[:_NAME_AT_MOST]}: {change.how}, {duration_change_ns(change.change_ns)} a step")
            for change in slower[:_KERNELS_AT_MOST]
        ],
        confidence=0.8 if certain else 0.4,
    )
