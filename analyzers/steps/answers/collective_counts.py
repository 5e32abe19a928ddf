"""Check whether all ranks had issued equally many collectives by the end of each step; if not, the job may hang."""

from dataclasses import dataclass

import pandas as pd

from analyzers.steps.table import Steps


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
