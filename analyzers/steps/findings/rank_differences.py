"""Write the findings on ranks that differ from the others: growing memory, unequal counts of collectives."""

from analyzers.report import Finding, Severity
from analyzers.steps.answers.collective_counts import CountMismatch
from analyzers.steps.answers.memory_growth import Growth
from analyzers.steps.model import Problem
from analyzers.words import quantity, rank_names, size


def count_finding(mismatch: CountMismatch) -> Finding:
    """Return the finding on ranks that issued more or fewer collectives than the other ranks."""
    count, step = abs(mismatch.difference), mismatch.step
    less = "fewer" if mismatch.difference < 0 else "more"
    return Finding(
        id=Problem.COLLECTIVE_COUNT.finding_id,
        severity=Severity.ERROR,
        title=f"{rank_names(mismatch.ranks)} issued {quantity(count, 'collective')} {less} than the others by the end"
        f" of step {step}",
        why=f"the sequence number of the last collective in process group {mismatch.group} differs between ranks at the"
        f" end of step {step}; it is the same on all ranks that issued the same collectives",
        next=f"look for a condition around a collective that is true only on some ranks in step {step} or before it",
        ranks=mismatch.ranks,
        step=step,
        confidence=0.9,
    )


def growth_finding(growth: Growth) -> Finding:
    """Return the finding on a rank whose memory grows."""
    return Finding(
        id=Problem.MEMORY_GROWTH.finding_id,
        severity=Severity.WARNING,
        title=f"the memory of rank {growth.rank} grows by {size(growth.bytes_per_step)} per step",
        why=f"the memory rises in nearly every step from step {growth.step} on; after the warm-up it should stay the"
        " same",
        next="compare the memory snapshots of two steps (`workbench compare A B`) to see which blocks are new and stay",
        ranks=[growth.rank],
        step=growth.step,
        confidence=0.7,
    )
