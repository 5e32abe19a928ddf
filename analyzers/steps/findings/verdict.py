"""Write the verdict on the steps, based on the most important finding; without a fault the run is healthy."""

from collections.abc import Sequence

from analyzers.report import Finding, Severity, Status, Verdict, status_of
from analyzers.steps.answers.lateness import Lateness
from analyzers.steps.findings.common import confidence
from analyzers.steps.findings.log_gaps import log_notes, unanswered
from analyzers.steps.findings.mapped_columns import unknown_units
from analyzers.steps.model import Problem, StepsData
from analyzers.steps.table import Steps
from analyzers.words import duration, quantity

_EXPLAINS_FIRST = {problem.finding_id: (number, problem) for number, problem in enumerate(Problem)}


def missing_evidence(steps: Steps, late: Lateness) -> list[str]:
    """Return a sentence for each kind of evidence that is missing in the logs and would make the verdict surer."""
    known = [finding.title for finding in log_notes(steps)] + steps.problems + unknown_units(steps)
    return known + unanswered(steps, late)


def verdict(findings: Sequence[Finding], missing: list[str]) -> Verdict | None:
    """Return the verdict, based on the most important fault (the first in `Problem`); None if there is no fault.

    `missing` has a sentence on each kind of evidence that is missing in the logs.
    """
    # Notes alone do not make a run unhealthy.
    faults = [finding for finding in findings if finding.severity is not Severity.INFO]
    if not faults:
        return None
    first = min(faults, key=lambda finding: _EXPLAINS_FIRST[finding.id])
    return Verdict(
        status=status_of(faults),
        kind=_EXPLAINS_FIRST[first.id][1],
        ranks=sorted({rank for finding in faults if finding.id == first.id for rank in finding.ranks}),
        sentence=first.title,
        confidence=first.confidence,
        missing=missing,
    )


def healthy(steps: Steps, data: StepsData, late: Lateness, missing: list[str]) -> Verdict:
    """Return the verdict on a run without faults, such as `4 ranks, 103 ms per step, no rank is late`.

    The verdict is `unknown` if the logs record neither step times nor losses. `missing` has a sentence on each kind of
    evidence that is missing in the logs.
    """
    median = max((rank.median_step_s for rank in data.ranks if rank.median_step_s is not None), default=None)
    if median is None and all(rank.last_loss is None for rank in data.ranks):
        return _no_numbers(missing)
    parts = [quantity(len(data.ranks), "rank")]
    parts.append("step times not recorded" if median is None else f"{duration(median)} per step")
    if late.is_known:
        # Without processor time a slow backward is invisible: everybody waits in it.
        parts.append("no rank is late" if late.by_processor else "no rank is late as far as these logs show")
    return Verdict(
        status=Status.OK,
        kind="healthy",
        sentence=", ".join(parts),
        confidence=confidence(steps),
        missing=missing,
    )


def _no_numbers(missing: list[str]) -> Verdict:
    """Return the verdict `unknown` for a run whose logs have steps, but neither step times nor losses.

    `missing` has a sentence on each kind of evidence that is missing in the logs.
    """
    return Verdict(
        status=Status.UNKNOWN,
        kind="unknown",
        sentence="the logs have steps, but neither step times nor losses: nothing is known of the run",
        confidence=0.0,
        missing=missing,
    )
