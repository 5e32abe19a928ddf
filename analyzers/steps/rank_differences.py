"""Check whether all ranks had issued equally many collectives by the end of each step; if not, the job may hang."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzers.holders import Holder, cure, holder_of, how_it_grew, what_keeps
from analyzers.report import Evidence, Finding, Severity
from analyzers.steps.model import Problem
from analyzers.steps.table import Steps
from analyzers.words import bounded, number, process_group, quantity, rank_names, size


@dataclass(frozen=True)
class CountMismatch:
    """The ranks that had issued more or fewer collectives of a process group than most ranks by the end of `step`.

    `difference` is how many more collectives the first of `ranks` had issued than most ranks (negative: fewer).
    `numbers` is {rank: sequence number of the last collective that it had issued in `group` by the end of `step`}.
    """

    step: int
    ranks: list[int]
    difference: int
    group: str
    numbers: dict[int, int]


def count_mismatches(steps: Steps) -> list[CountMismatch]:
    """Return a `CountMismatch` for each process group whose ranks issued unequal numbers of collectives.

    It describes the first step from which on the numbers stayed unequal. Numbers that become equal again are no
    mismatch: they come from collectives that a thread issues beside the steps, for example to save a checkpoint. A rank
    that left a collective out stays behind.
    """
    mismatches = []
    for group in map(str, steps.seqs):
        table = steps.grid(steps.seqs[group], steps.seqs[group] >= 0).dropna()
        is_equal = table.max(axis=1) == table.min(axis=1)
        # Read backwards, the cumulative maximum says whether the numbers are equal in this step or a later one.
        unequal = table[~is_equal[::-1].cummax()[::-1]]
        if len(unequal):
            mismatches.append(mismatch(group, unequal.iloc[0], int(str(unequal.index[0]))))
    return mismatches


def mismatch(group: str, numbers: "pd.Series[float]", step: int) -> CountMismatch:
    """Return a `CountMismatch`: which ranks differ from most ranks, and by how many collectives the first one differs.

    `numbers` has, for each rank, the sequence number of its last collective of the process group by the end of
    `step`.
    """
    # With two ranks both numbers are equally frequent: the higher one counts as usual, as ranks rather skip than add.
    usual = numbers.mode().max()
    unusual = numbers[numbers != usual]
    ranks = [int(str(rank)) for rank in unusual.index]
    by_rank = {int(str(rank)): int(number) for rank, number in numbers.items()}
    return CountMismatch(step, ranks, int((unusual - usual).iloc[0]), group, by_rank)


STEPS_AT_LEAST = 6
GROWTH = 0.1
"""Memory may leak if it grows by at least this share of its first value; `_RISING` and `_LATE_GROWTH` must hold,
too."""
_RISING = 0.7
"""Memory that leaks rises in at least this share of the steps."""
_LATE_GROWTH = 0.25
"""Memory that leaks gains at least this share of its growth in the second half of the steps."""


@dataclass(frozen=True)
class Growth:
    """The growth of a rank's memory from `step` on, by `bytes_per_step` on average."""

    rank: int
    step: int
    bytes_per_step: float


def memory_growth(steps: Steps) -> list[Growth]:
    """Return a `Growth` for each rank whose memory rises in nearly every step.

    Two kinds of steps do not count: warm-up steps, and steps in which this project's recorders were active, because
    their buffers are part of the process's memory.
    """
    # A profiler that records four steps looks like a leak of four steps.
    recording = steps.recorder_s > 0
    rows = steps.table[["rank", "step", "memory_bytes"]][~steps.table["warmup"] & ~recording]
    growing = []
    for rank, own in rows.groupby("rank"):
        memory = own.set_index("step")["memory_bytes"].astype(float)
        if growth := _growth_of(int(str(rank)), memory[memory > 0]):
            growing.append(growth)
    return growing


def _growth_of(rank: int, memory: "pd.Series[float]") -> Growth | None:
    """Return a `Growth` for a rank, with the speed of the growth; None if it does not look like a leak.

    `memory` is in bytes, by step.
    """
    if len(memory) < STEPS_AT_LEAST:
        return None
    rises = np.diff(memory.to_numpy())
    gained = float(memory.iloc[-1] - memory.iloc[0])
    gained_late = float(memory.iloc[-1] - memory.iloc[len(memory) // 2])
    # Caches and pools fill and then stay; a leak goes on.
    if gained < GROWTH * memory.iloc[0] or (rises > 0).mean() < _RISING or gained_late < _LATE_GROWTH * gained:
        return None
    return Growth(rank, int(memory.index[0]), gained / (len(memory) - 1))


_NUMBERS_AT_MOST = 8
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
    ranks = [rank for rank in mismatch.numbers if rank not in mismatch.ranks]
    return rank_names(ranks) if len(ranks) == 1 else "the others"


def _count_evidence(mismatch: CountMismatch) -> list[Evidence]:
    """Return the sequence number of each rank's last collective; the ranks that differ from most ranks come first.

    Ranks with the same number share a line. At most `_NUMBERS_AT_MOST` numbers are listed.
    """
    ranks_of: dict[int, list[int]] = {}
    for rank in sorted(mismatch.numbers, key=lambda rank: (rank not in mismatch.ranks, rank)):
        ranks_of.setdefault(mismatch.numbers[rank], []).append(rank)
    where = f"last collective in {process_group(mismatch.group)}"
    return [
        Evidence(text=f"{rank_names(ranks)}: {where} is number {number(last)}")
        for last, ranks in list(ranks_of.items())[:_NUMBERS_AT_MOST]
    ]


def growth_finding(growth: Growth, device_type: str, holders: Sequence[Holder] | None = None) -> Finding:
    """Return the finding on a rank whose memory grows; the steps ran on a device of the type `device_type`.

    `holders` are what its recorder found to keep tensors (None: it was not asked to look for them).
    """
    holder = holder_of(holders or (), growth.bytes_per_step)
    kept = f"; {what_keeps(holder)} keeps tensors of each step. {how_it_grew(holder)}" if holder else ""
    ask = "; `workbench launch --find-holders -- COMMAND` shows what keeps it" if holders is None else ""
    return Finding(
        id=Problem.MEMORY_GROWTH.finding_id,
        severity=Severity.WARNING,
        title=f"the memory of rank {growth.rank} grows by {size(growth.bytes_per_step)} per step"
        + (f", kept by `{bounded(holder.name)}`" if holder else ""),
        why=f"the memory rises in nearly every step from step {growth.step} on; after the warm-up it should stay the"
        f" same{kept}",
        next=cure(holder)
        if holder
        else f"{_SNAPSHOTS_ON_CPU if device_type == 'cpu' else _SNAPSHOTS_ON_CUDA}. Then compare the two files"
        f" (`workbench compare A B`), which names the lines whose memory stays{ask}",
        ranks=[growth.rank],
        step=growth.step,
        confidence=0.7,
    )
