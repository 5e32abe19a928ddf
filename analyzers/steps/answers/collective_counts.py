"""Check whether all ranks had issued equally many collectives by the end of each step; if not, the job
may hang soon.
"""

from dataclasses import dataclass

import pandas as pd

from analyzers.steps.table import Steps


@dataclass(frozen=True)
class CountMismatch:
    """Says which ranks had issued more or fewer collectives of process group `group` than most by the end of `step`.

    `difference` is how many more collectives than most ranks the first of `ranks` issued; negative for fewer.
    """

    step: int
    ranks: list[int]
    difference: int
    group: str


def count_mismatches(steps: Steps) -> list[CountMismatch]:
    """Return a `CountMismatch` for each process group whose ranks issued unequal numbers of collectives.

    It describes the first step by whose end the numbers were unequal.
    """
    mismatches = []
    for group in map(str, steps.seqs):
        table = steps.grid(steps.seqs[group], steps.seqs[group] >= 0).dropna()
        unequal = table[table.max(axis=1) > table.min(axis=1)]
        if len(unequal):
            mismatches.append(mismatch(group, unequal.iloc[0], int(str(unequal.index[0]))))
    return mismatches


def mismatch(group: str, numbers: "pd.Series[float]", step: int) -> CountMismatch:
    """Return a `CountMismatch`: which ranks differ from most ranks, and by how many collectives the first one differs.

    `numbers` holds the sequence number of each rank's last collective of the process group by the end of the step.
    """
    # With two ranks both numbers are equally frequent: the higher one counts as usual, as ranks rather skip than add.
    usual = numbers.mode().max()
    unusual = numbers[numbers != usual]
    ranks = [int(str(rank)) for rank in unusual.index]
    return CountMismatch(step, ranks, int((unusual - usual).iloc[0]), group)
