"""List the findings that a verdict may be based on (problems), and those that are only worth knowing (notes)."""

from collections.abc import Sequence

from analyzers.report import Finding
from analyzers.steps.answers.collective_counts import count_mismatches
from analyzers.steps.answers.losses import first_nonfinite
from analyzers.steps.answers.memory_growth import memory_growth
from analyzers.steps.answers.overhead import overheads
from analyzers.steps.findings.late_ranks import straggler_findings
from analyzers.steps.findings.log_gaps import log_notes
from analyzers.steps.findings.loss_events import loss_findings, loss_notes, nonfinite_finding, recovered_notes
from analyzers.steps.findings.lost_time import long_step_finding, overhead_finding, slowdown_findings, stall_finding
from analyzers.steps.findings.mapped_columns import column_notes
from analyzers.steps.findings.rank_differences import count_finding, growth_finding
from analyzers.steps.model import GlobalStall, LongStep, StepsData
from analyzers.steps.table import Steps


def problems(steps: Steps, data: StepsData) -> list[Finding]:
    """Return the findings on faults of the run; a verdict may be based on each of them."""
    nonfinite = first_nonfinite(steps)
    return [
        *straggler_findings(steps, data.stragglers),
        *(stall_finding(steps, stall) for stall in data.stalls),
        *(long_step_finding(steps, stall) for stall in data.long_steps or () if not _in_stall(stall, data.stalls)),
        *slowdown_findings(steps, data.changes, data.stragglers),
        *(overhead_finding(steps, overhead) for overhead in overheads(data)),
        *loss_findings(steps, data.events),
        *([nonfinite_finding(steps, nonfinite)] if nonfinite and nonfinite.finite_from is None else []),
        *(count_finding(mismatch) for mismatch in count_mismatches(steps)),
        *(growth_finding(growth, steps.device_type) for growth in memory_growth(steps)),
    ]


def _in_stall(step: LongStep, stalls: Sequence[GlobalStall]) -> bool:
    """Return whether a long step lies between the first and the last step of a stall of all ranks."""
    return any(stall.first_step <= step.step <= stall.last_step for stall in stalls)


def notes(steps: Steps, data: StepsData) -> list[Finding]:
    """Return the findings that are worth knowing but not faults of the run."""
    return [*recovered_notes(steps), *loss_notes(data.events), *log_notes(steps), *column_notes(steps)]
