"""Help to write findings: names of causes, confidence, the log file of a rank, and notes.

A *note* is a finding that is worth knowing but not a fault.
"""

from collections.abc import Mapping, Sequence

from analyzers.report import Finding, Severity
from analyzers.steps.model import Cause
from analyzers.steps.table import Steps

_FIRM_STEPS = 20
"""The number of timed steps from which on a verdict has full confidence."""
SAME_MOMENT = 3
"""Two events count as one if their first steps are at most this many steps apart."""
CAUSE_NAMES: Mapping[Cause, str] = {
    Cause.COMPUTE: "compute",
    Cause.DATA: "data loading",
    Cause.GC: "garbage collection",
    Cause.CHECKPOINT: "saving checkpoints",
    Cause.EVALUATION: "evaluation",
    Cause.LOGGING: "logging",
    Cause.UNRECORDED: "the script's own code, outside of the recorded phases",
    Cause.MIXED: "no single cause",
}


def because_of(cause: Cause) -> str:
    """Return a cause as the end of a clause: ` because of data loading`; empty if there is no single cause."""
    return "" if cause is Cause.MIXED else f" because of {CAUSE_NAMES[cause]}"


def confidence(steps: Steps) -> float:
    """Return the confidence of a verdict on timing, from 0.55 to 0.95.

    It rises with the number of steps and reaches 0.95 at FIRM_STEPS steps on each rank.
    """
    # The rank with the fewest steps limits what can be compared.
    timed = int(steps.table.groupby("rank")["step"].count().min())
    return round(min(0.95, 0.55 + 0.4 * timed / _FIRM_STEPS), 2)


def log_of_rank(steps: Steps, rank: int) -> str:
    return next((log.path for log in steps.inputs if log.rank == rank), "")


def note(
    finding_id: str, title: str, why: str, advice: str, step: int | None = None, ranks: Sequence[int] = ()
) -> Finding:
    """Return a note: a finding of severity INFO, which is worth knowing but not a fault.

    `why` is the explanation, `advice` what to do next. `step` and `ranks` are the step and ranks that the note is
    about, if any.
    """
    return Finding(
        id=finding_id,
        severity=Severity.INFO,
        title=title,
        why=why,
        next=advice,
        ranks=list(ranks),
        step=step,
        confidence=1.0,
    )
