"""Make the tables about several runs for the user interfaces, with one column per run and one row per step.

| view | one cell |
|---|---|
| `curve_table` | the value of a curve in that step |
| `difference_table` | the relative difference from the first run; the first run has no column |
"""

from collections import Counter

import pandas as pd

from analyzers.parity.answers import relative_difference
from analyzers.parity.model import Curve, ParityData, RunParity


def labels(data: ParityData) -> list[str]:
    """Return the names of the runs, each unique: a repeated name gets a number, as in `tp=2`, then `tp=2 (2)`."""
    seen = Counter[str]()
    unique: list[str] = []
    for run in data.runs:
        seen[run.name] += 1
        unique.append(run.name if seen[run.name] == 1 else f"{run.name} ({seen[run.name]})")
    return unique


def _curve_of(run: RunParity, curve: Curve) -> dict[int, float]:
    """Return the values of a curve of a run, by step."""
    return run.losses if curve is Curve.LOSS else run.grad_norms


def curve_table(data: ParityData, curve: Curve) -> pd.DataFrame:
    """Return the values of a curve: one row per step, one column per run, NaN if a run has not logged the step."""
    columns = {
        label: pd.Series(_curve_of(run, curve), dtype=float) for label, run in zip(labels(data), data.runs, strict=True)
    }
    return pd.DataFrame(columns).sort_index().rename_axis("step")


def difference_table(data: ParityData, curve: Curve) -> pd.DataFrame:
    """Return the relative difference of a curve from that of the first run: a row per step, a column per other run.

    A cell is NaN if one of the two runs has not logged the step, and infinite if only one of the two values is
    finite.
    """
    first, *others = data.runs
    before, columns = _curve_of(first, curve), {}
    for label, run in zip(labels(data)[1:], others, strict=True):
        after = _curve_of(run, curve)
        shares = {step: relative_difference(before[step], after[step]) for step in before.keys() & after.keys()}
        columns[label] = pd.Series(shares, dtype=float)
    return pd.DataFrame(columns).sort_index().rename_axis("step")
