"""Write the findings on time that all ranks lose: stalls, slower steps, and parts of the run that cost too much."""

from collections.abc import Sequence

from analyzers.report import Evidence, Finding, Severity
from analyzers.steps.answers.overhead import Overhead, Part
from analyzers.steps.findings.common import SAME_MOMENT, because_of, confidence
from analyzers.steps.model import Cause, Change, ChangeKind, GlobalStall, LongStep, Pattern, Problem, Straggler
from analyzers.steps.table import Steps
from analyzers.words import duration, percent, percent_change, quantity, rank_names

_PHASES_NAMED = 3
_LONG_STEP_COST = 0.01
"""The share of the time of all steps from which on a single long step is a warning."""


def stall_finding(steps: Steps, stall: GlobalStall) -> Finding:
    """Return the finding on steps in which all ranks stalled."""
    between = f"between steps {stall.first_step} and {stall.last_step}"
    return Finding(
        id=Problem.GLOBAL_STALL.finding_id,
        severity=Severity.WARNING,
        title=f"all ranks were slow in the same {quantity(stall.steps, 'step')} {between}{because_of(stall.cause)}:"
        f" {duration(stall.lost_s)} lost in total",
        why="in these steps even the fastest rank took far longer than in other steps. The lost time is"
        f" {percent(stall.share)} of the time of all steps",
        next=_STALL_NEXT.get(stall.cause, "check what all ranks share, such as storage and network, in these steps"),
        ranks=steps.ranks,
        step=stall.first_step,
        confidence=confidence(steps),
    )


def long_step_finding(steps: Steps, stall: LongStep) -> Finding:
    """Return the finding on a single step that took far longer than the steps around it.

    The severity is INFO if the step cost only a small part of the run.
    """
    times = stall.duration_s / stall.usual_s if stall.usual_s else 0.0
    waited = f"; the others waited for {rank_names(stall.ranks)}" if len(stall.ranks) < len(steps.ranks) else ""
    where = f"most of its extra time is in the phase {stall.phase}" if stall.phase else "no recorded phase explains it"
    return Finding(
        id=Problem.LONG_STEP.finding_id,
        severity=Severity.WARNING if stall.share >= _LONG_STEP_COST else Severity.INFO,
        title=f"step {stall.step} takes {duration(stall.duration_s)}, {times:.0f} times the usual"
        f" {duration(stall.usual_s)}{waited}",
        why=f"no step near step {stall.step} takes so long; {where}. The extra time is {percent(stall.share)} of the"
        " time of all steps",
        next="check what happened at that time: a checkpoint, recompilation, garbage collection, other jobs on the"
        " machine, or slow storage or network",
        ranks=stall.ranks,
        step=stall.step,
        confidence=0.8,
    )


_STALL_NEXT = {
    Cause.DATA: "check the storage of the data, and let the DataLoader read further ahead (prefetch_factor)",
    Cause.CHECKPOINT: "save checkpoints asynchronously (torchtitan: checkpoint.async_mode), or to faster storage",
    Cause.GC: "run Python's garbage collector less often, or only on young objects: gc.disable(), and gc.collect(1)"
    " every N steps",
}


def slowdown_findings(steps: Steps, changes: Sequence[Change], stragglers: Sequence[Straggler]) -> list[Finding]:
    """Return a list with the finding on the largest slowdown that is not due to a straggler; empty if there is none."""
    # A slowdown that begins with a straggler would say the same twice.
    slower = [c for c in changes if c.after_s > c.before_s and not _is_explained(c, stragglers)]
    return [_slowdown_finding(steps, max(slower, key=lambda c: c.after_s - c.before_s))] if slower else []


def _is_explained(change: Change, stragglers: Sequence[Straggler]) -> bool:
    """Return whether a straggler began to be late at about the step of the change."""
    return any(
        s.pattern is not Pattern.RECURRING and abs(s.first_step - change.step) <= SAME_MOMENT for s in stragglers
    )


_GRADUAL_NEXT = (
    "look for what grows with the number of steps: a list or cache that is searched, a log file that is rewritten"
    " in each step, memory that is not freed, or a device that gets hotter. If you have a profiler trace of an early"
    " step and one of a late step, compare them (`workbench compare EARLY LATE`)"
)
_SUDDEN_NEXT = (
    "check what changed at step {step}: other jobs on the machine, the data, or the clock speed of the device. If you"
    " have a profiler trace from before this step and one from after it, compare them (`workbench compare BEFORE"
    " AFTER`)"
)
_NOTABLE_SHARE = 0.01
"""The share of a slowdown above which the growth of a phase is evidence for it."""


def _slowdown_reason(change: Change, *, gradual: bool) -> str:
    """Return a clause with the increase of the median step time.

    If the increase is sudden (not `gradual`), the clause adds that it lasted, so that it is not due to a few slow
    steps.
    """
    rise = duration(change.after_s - change.before_s)
    return (
        f"steps got longer little by little: the median of the last steps is {rise} above that of the first ones"
        if gradual
        else f"from step {change.step} on the median is {rise} higher and stays there, so this is not due to a few slow"
        " steps"
    )


def _slowdown_finding(steps: Steps, change: Change) -> Finding:
    """Return the finding on one change of the step time, with the phases that grew most."""
    largest = sorted(change.phases.items(), key=lambda item: -item[1])[:_PHASES_NAMED]
    notable = _NOTABLE_SHARE * (change.after_s - change.before_s)
    gradual = change.kind is ChangeKind.DRIFT
    when = "gradually over the run" if gradual else f"from step {change.step} on"
    more = percent_change(change.before_s, change.after_s)
    return Finding(
        id=Problem.SLOWDOWN.finding_id,
        severity=Severity.WARNING,
        title=f"steps became slower {when}: median step time {duration(change.before_s)} ->"
        f" {duration(change.after_s)} ({more})",
        why=_slowdown_reason(change, gradual=gradual),
        next=_GRADUAL_NEXT if gradual else _SUDDEN_NEXT.format(step=change.step),
        ranks=steps.ranks,
        step=change.step,
        evidence=[
            Evidence(text=f"the phase {name} takes {duration(extra)} more per step")
            for name, extra in largest
            if extra > notable
        ],
        confidence=0.8,
    )


def overhead_finding(steps: Steps, overhead: Overhead) -> Finding:
    """Return the finding on a part of the wall time that costs too much, such as checkpoints."""
    activity, whole, scope, why, advice = _OVERHEADS[overhead.part]
    return Finding(
        id=f"steps.{overhead.part}_time",
        severity=Severity.WARNING,
        title=f"{activity} {percent(overhead.share)} of {whole}: {duration(overhead.seconds)} {scope}",
        why=why,
        next=advice,
        ranks=steps.ranks,
        confidence=0.9,
    )


_OVERHEADS = {
    Part.DATA: (
        "waiting for data takes",
        "the time of a step",
        "per step on most ranks",
        "a rank does not train while it waits for its next batch",
        "raise num_workers and prefetch_factor of the DataLoader, and find out which of its transforms take the time",
    ),
    Part.CHECKPOINT: (
        "saving checkpoints takes",
        "the time of the run",
        "in total",
        "no rank trains while a checkpoint is saved",
        (
            "save asynchronously (torchtitan: checkpoint.async_mode), less often (checkpoint.interval), or to faster"
            " storage"
        ),
    ),
    Part.RESTART: (
        "restarts, with the steps that were trained again, take",
        "the time of the run",
        "in total",
        "no rank trains between two attempts, and steps after the last checkpoint are trained again",
        (
            "find out what ended the earlier attempts (`workbench inspect` on the folder of the run), and save"
            " checkpoints more often (torchtitan: checkpoint.interval)"
        ),
    ),
}
"""{part of the wall time: (activity, what its share is of, what its seconds are of, explanation, advice)}."""
