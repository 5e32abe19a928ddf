"""Write the findings on ranks that differ from the others: growing memory, unequal counts of collectives."""

from analyzers.report import Evidence, Finding, Severity
from analyzers.steps.answers.collective_counts import CountMismatch
from analyzers.steps.answers.memory_growth import Growth
from analyzers.steps.model import Problem
from analyzers.words import number, process_group, quantity, rank_names, size

NUMBERS_AT_MOST = 8
"""The most different sequence numbers that the evidence lists."""
_SNAPSHOTS_ON_CUDA = (
    "on this rank call torch.cuda.memory._record_memory_history() once, and _dump_snapshot() twice, at the ends of two"
    " steps after the warm-up"
)
_SNAPSHOTS_ON_CPU = (
    "on this rank record two snapshots with `workbench.recorders.MemoryRecorder(FOLDER, model, optimizer, freq=5)` and"
    " `with recorder.step(N):` around each step, as PyTorch itself records no memory of a CPU"
)


def count_finding(mismatch: CountMismatch) -> Finding:
    """Return the finding on ranks that issued more or fewer collectives than the other ranks."""
    count, step = abs(mismatch.difference), mismatch.step
    less = "fewer" if mismatch.difference < 0 else "more"
    return Finding(
        id=Problem.COLLECTIVE_COUNT.finding_id,
        severity=Severity.ERROR,
        title=f"{rank_names(mismatch.ranks)} issued {quantity(count, 'collective')} {less} than"
        f" {others(mismatch)} by the end of step {step}",
        why=f"PyTorch numbers the collectives of a process group on each rank. At the end of step {step} the last"
        f" number in {process_group(mismatch.group)} is not the same on all ranks, so they did not issue the same"
        " collectives",
        next="look for a collective that only some ranks reach, such as in `if rank == 0:`, and for a loop that ends"
        f" earlier on one rank, in step {step} or before it",
        ranks=mismatch.ranks,
        step=step,
        evidence=_count_evidence(mismatch),
        confidence=0.9,
    )


def others(mismatch: CountMismatch) -> str:
    """Return a name for the ranks with the usual number of collectives: a single rank's name, else `the others`."""
    ranks = [rank for rank in mismatch.numbers if rank not in mismatch.ranks]
    return rank_names(ranks) if len(ranks) == 1 else "the others"


def _count_evidence(mismatch: CountMismatch) -> list[Evidence]:
    """Return the sequence number of each rank's last collective; the ranks that differ from most ranks come first.

    Ranks with the same number share a line. At most `NUMBERS_AT_MOST` numbers are listed.
    """
    ranks_of: dict[int, list[int]] = {}
    for rank in sorted(mismatch.numbers, key=lambda rank: (rank not in mismatch.ranks, rank)):
        ranks_of.setdefault(mismatch.numbers[rank], []).append(rank)
    where = f"last collective in {process_group(mismatch.group)}"
    return [
        Evidence(text=f"{rank_names(ranks)}: {where} is number {number(last)}")
        for last, ranks in list(ranks_of.items())[:NUMBERS_AT_MOST]
    ]


def growth_finding(growth: Growth, device_type: str) -> Finding:
    """Return the finding on a rank whose memory grows; the steps ran on a device of the type `device_type`."""
    return Finding(
        id=Problem.MEMORY_GROWTH.finding_id,
        severity=Severity.WARNING,
        title=f"the memory of rank {growth.rank} grows by {size(growth.bytes_per_step)} per step",
        why=f"the memory rises in nearly every step from step {growth.step} on; after the warm-up it should stay the"
        " same",
        next=f"{_SNAPSHOTS_ON_CPU if device_type == 'cpu' else _SNAPSHOTS_ON_CUDA}. Then compare the two files"
        " (`workbench compare A B`), which names the lines whose memory stays",
        ranks=[growth.rank],
        step=growth.step,
        confidence=0.7,
    )
