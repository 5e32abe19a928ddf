"""What became worse from one run to another, whether that is sure, and what a gate makes of it."""

from collections.abc import Mapping, Sequence

from analyzers.report import Evidence, Finding, Severity
from analyzers.steps.diff.measures import STEPS_AT_LEAST, Contrast
from analyzers.words import duration, size

LIMITS: Mapping[str, float] = {"step_time": 0.05, "step_time_mean": 0.05, "memory": 0.05, "loss": 0.02}
"""Relative changes for the worse that are worth a finding, where even the lower end of the interval lies above them."""
CAUTIOUS = {"step_time": 0.8, "processor_time": 0.8, "memory": 0.9}
CAUTIOUS_ELSE = 0.7
"""How sure a finding is: two runs on one machine differ for reasons that no interval within a run knows."""


def worsened(found: Sequence[Contrast], gated: Mapping[str, float], grown: list[Evidence]) -> list[Finding]:
    """The measures that surely changed for the worse by more than their limit, that of the gate if it names one.
    `grown`: what stands behind a longer step.
    """
    limits = {**LIMITS, **gated} | ({"step_time_mean": gated["step_time"]} if "step_time" in gated else {})
    worse = [c for c in found if c.enough and c.measure in limits and c.low > limits[c.measure]]
    if any(c.measure == "step_time" for c in worse):
        worse = [c for c in worse if c.measure != "step_time_mean"]
    grown = [*only_waiting(found), *grown]
    return [regression(c, limits[c.measure], grown if "step_time" in c.measure else []) for c in worse]


def only_waiting(found: Sequence[Contrast]) -> list[Evidence]:
    """That the work of a step did not grow with its time."""
    busy = [c for c in found if c.measure == "processor_time" and c.enough and c.change < LIMITS["step_time"]]
    return [Evidence(text=f"waiting grew, not work: processor time {c.change:+.1%} a step") for c in busy]


def regression(found: Contrast, limit: float, evidence: list[Evidence]) -> Finding:
    return Finding(
        id=f"compare.{found.measure}",
        severity=Severity.WARNING,
        title=f"{name_of(found)} is {found.change:.1%} higher",
        why=f"from {shown(found, found.a)} to {shown(found, found.b)}; {certainty(found)}, and up to {limit:.1%} is"
        " borne",
        next="look at the phases and settings that differ below; where others use the machine, run both again",
        evidence=evidence,
        confidence=CAUTIOUS.get(found.measure, CAUTIOUS_ELSE),
    )


def undecided(found: Sequence[Contrast], gated: Mapping[str, float]) -> list[Finding]:
    """What a gate asks for and these runs cannot answer is no pass."""
    known = {c.measure: c for c in found}
    lacking = [name for name in gated if name not in known or not known[name].enough]
    return [
        Finding(
            id=f"compare.{name}_undecided",
            severity=Severity.WARNING,
            title=f"{name.replace('_', ' ')} cannot be judged: {too_few(known.get(name))}",
            why="a gate that cannot be judged is not passed",
            next=f"log at least {STEPS_AT_LEAST} plain steps in both runs",
            confidence=1.0,
        )
        for name in lacking
    ]


def certainty(found: Contrast) -> str:
    """Where the change lies; what was read once, such as the peak of a snapshot, is exact."""
    if found.low == found.high:
        return f"it is {found.change:+.1%}"
    return f"with 95 % it is {found.low:+.1%} to {found.high:+.1%} by {found.samples} steps"


def too_few(found: Contrast | None) -> str:
    if found is None:
        return "the runs do not both tell it"
    if found.enough:
        return f"by {found.samples} uneven steps it may as well be {found.low:+.1%}"
    return f"{found.samples} steps are not enough evidence"


def shown(found: Contrast, value: float) -> str:
    """A value of a measure with its unit."""
    if found.measure == "memory":
        return size(value)
    return f"{value:.4f}" if found.measure == "loss" else duration(value)


def name_of(found: Contrast) -> str:
    return NAMES.get(found.measure, found.measure.replace("_", " "))


NAMES = {
    "step_time_mean": "mean step time",
    "step_time_p95": "the 95th percentile of the step time",
    "memory": "peak memory",
}


def is_open(found: Contrast) -> bool:
    """Whether a measure may have become worse by more than its limit, and may not have."""
    limit = LIMITS.get(found.measure)
    if limit is None or found.measure == "step_time_mean":
        return False
    if found.enough:
        return found.change > limit >= found.low
    return found.measure == "step_time" or abs(found.change) > limit
