"""Did all ranks issue equally many collectives by the end of each step? Where not, the job is about to hang."""

from dataclasses import dataclass

import pandas as pd

from analyzers.steps.table import Steps


@dataclass(frozen=True)
class CountMismatch:
    """Ranks that, by the end of a step, had issued `difference` more collectives than most (fewer: below 0)."""

    step: int
    ranks: list[int]
    difference: int
    group: str


def count_mismatches(steps: Steps) -> list[CountMismatch]:
    """Return, for each process group, the first step at whose end the sequence numbers of the ranks differ."""
    mismatches = []
    for group in map(str, steps.seqs):
        table = steps.grid(steps.seqs[group], steps.seqs[group] >= 0).dropna()
        unequal = table[table.max(axis=1) > table.min(axis=1)]
        if len(unequal):
            mismatches.append(mismatch(group, unequal.iloc[0], int(str(unequal.index[0]))))
    return mismatches


def mismatch(group: str, numbers: "pd.Series[float]", step: int) -> CountMismatch:
    """Return which ranks differ from most ranks in a step, and by how many collectives the first of them does."""
    # With two ranks both numbers are equally frequent: the higher one counts as usual, as ranks rather skip than add.
    usual = numbers.mode().max()
    unusual = numbers[numbers != usual]
    ranks = [int(str(rank)) for rank in unusual.index]
    return CountMismatch(step, ranks, int((unusual - usual).iloc[0]), group)
