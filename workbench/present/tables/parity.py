"""Tables of a parity report: how well each run agrees with the first run, and the loss and gradient norm by step."""

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from analyzers.parity import BisectData
from analyzers.parity.bisect_report import around
from analyzers.parity.model import Curve, Divergence, ParityData, RunParity, ValueKind
from analyzers.parity.report import CURVE_NAMES as CURVES
from analyzers.parity.report import curve_table, difference_table, value_name_of
from analyzers.words import UNKNOWN, figures, relative
from workbench.present.parity_lines import difference_text
from workbench.present.table import Table, table

STEPS = 12
_MOST_COLUMNS = 4
"""The most runs that a table by step shows as columns; with more runs, it has a row per run.

A terminal has no space for more columns of names.
"""
_MOST_STEPS = 6
"""The number of steps in a table that has a row per run."""
_MOST_RUNS = 40
"""The number of runs in a table that has a row per run."""


def parity_tables(data: ParityData) -> list[Table]:
    by_step = (of(data, curve) for curve in Curve for of in (steps_of, differences_of))
    return [agreement(data), first_values(data), *by_step]


def agreement(data: ParityData) -> Table:
    return table(
        f"Largest relative differences from the first run (allowed: {relative(data.tolerance)})",
        "run | ranks> | loss> | gradient norm> | tensors> | first step beyond>",
        (cells(run, is_first=run is data.runs[0]) for run in data.runs),
        _MOST_RUNS,
    )


def cells(run: RunParity, *, is_first: bool) -> tuple[object, ...]:
    """Return the cells of a run's row in the agreement table; the first run is the reference and has no differences."""
    if is_first:
        return run.name, run.world_size, "", "", "", ""
    largest = {curve.curve: relative(curve.largest) for curve in run.curves}
    values = "not recorded" if run.largest_value_difference is None else relative(run.largest_value_difference)
    return (
        run.name,
        run.world_size,
        largest.get(Curve.LOSS),
        largest.get(Curve.GRAD_NORM),
        values,
        run.first_step or "none",
    )


def first_values(data: ParityData) -> Table:
    return table(
        "First step, module and tensor that differ",
        "run | step> | module | tensor | what | norm> | in the first run> | difference>",
        (
            (
                run.name,
                v.step,
                v.module,
                v.tensor,
                v.kind.replace("_", " "),
                figures(v.b),
                figures(v.a),
                relative(v.difference),
            )
            for run in data.runs
            if (v := run.first)
        ),
        _MOST_RUNS,
    )


def differences_of(data: ParityData, curve: Curve, limit: int = STEPS) -> Table:
    """Return a table of each run's difference from the first run by step, and whether the tolerance allows it."""
    differences = difference_table(data, curve)
    texts = differences.map(lambda share: "" if math.isnan(share) else relative(share))
    title = f"Relative difference of the {CURVES[curve]} by step (allowed: {relative(data.tolerance)})"
    lines = differences if len(differences.columns) <= _MOST_COLUMNS else differences.T
    verdicts = [allowed(shares, data.tolerance) for shares in lines.to_numpy(float).tolist()]
    return by_step(title, texts, limit, verdicts)


def allowed(shares: Sequence[float], tolerance: float) -> str:
    if any(share > tolerance for share in shares):
        return "no"
    return UNKNOWN if any(map(math.isnan, shares)) else "yes"


def steps_of(data: ParityData, curve: Curve, limit: int = STEPS) -> Table:
    texts = curve_table(data, curve).map(lambda value: "" if math.isnan(value) else f"{value:.7g}")
    return by_step(f"{CURVES[curve].capitalize()} by step", texts, limit)


def by_step(title: str, texts: pd.DataFrame, limit: int, verdicts: Sequence[str] = ()) -> Table:
    """Return a table of `texts`, which has a row per step and a column per run.

    If there are more than `_MOST_COLUMNS` runs, the result has a row per run, and a column for each of the first steps.
    `verdicts` are the texts of a last column, one for each row of the result.
    """
    first, rows = "step>", texts
    if len(texts.columns) > _MOST_COLUMNS:
        first, rows = "run", texts.iloc[:_MOST_STEPS].T
        title += f" (first {_MOST_STEPS} of {len(texts)} steps)" if len(texts) > _MOST_STEPS else ""
    # A `|` in the name of a run would divide its head in two.
    heads = [first, *(f"{str(name).replace('|', '/')}>" for name in rows), *(["allowed"] if verdicts else [])]
    cells = rows.itertuples(name=None)
    lines = [(*row, verdict) for row, verdict in zip(cells, verdicts, strict=True)] if verdicts else cells
    return table(title, " | ".join(heads), lines, limit if first == "step>" else max(limit, _MOST_RUNS))


_DIFFERENCE = "what | step> | tensor | kind | module | norm in A> | norm in B> | difference> | allowed>"


def bisect_tables(data: BisectData) -> list[Table]:
    """Return tables of the two runs, of the first differences, and of the tolerance for each dtype."""
    runs = (
        (name, run.folder, run.ranks, f"{run.first_step} to {run.last_step}", run.tensors)
        for name, run in (("A", data.a), ("B", data.b))
    )
    named = (("first difference", data.first), ("first value", data.value), ("first not identical", data.inexact))
    return [
        table("First tensors that differ", _DIFFERENCE, (_divergence_cells(name, one) for name, one in named if one)),
        table("Recorded runs", "run | folder | ranks> | steps | tensors>", runs),
        table(
            f"Allowed by rounding, for sums of up to {data.longest_sum} terms",
            "dtype | relative difference>",
            ((dtype, relative(allowed)) for dtype, allowed in data.tolerances.items()),
        ),
    ]


def _divergence_cells(name: str, one: Divergence) -> tuple[object, ...]:
    """Return the cells of a table row for the difference `one`; `name` is the first cell."""
    return (
        name,
        one.step,
        one.tensor,
        one.kind.replace("_", " "),
        one.module,
        figures(one.a),
        figures(one.b),
        relative(one.difference),
        relative(one.tolerance),
    )


COLUMNS = "operation> | tensor | agrees | difference> | allowed> | norm in A> | norm in B> | dtype | module is a"


def both_sides(operations: pd.DataFrame, first: Divergence, limit: int) -> Table:
    """Return the table of the first difference: inputs and outputs of the module in each run, and its neighbours."""
    where = f"{first.module} and its neighbours" if first.module else f"{first.tensor} and its neighbours"
    return table(
        f"Both sides of the first difference: {where} in step {first.step}",
        COLUMNS,
        _operation_cells(around(operations, first)),
        limit,
    )


def tensors_of(operations: pd.DataFrame, step: int, limit: int) -> Table:
    rows = operations[operations["step"] == step]
    return table(f"Tensors of step {step} in the order of computation", COLUMNS, _operation_cells(rows), limit)


def _operation_cells(rows: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    columns = ["position", "kind", "name", "difference", "tolerance", "a", "b", "dtype_a", "dtype_b", "type"]
    for position, kind, name, difference, allowed, a, b, dtype_a, dtype_b, type_ in rows[columns].to_numpy(object):
        yield (
            position,
            value_name_of(ValueKind(kind), name).removeprefix("the "),
            "yes" if difference <= allowed else "NO",
            difference_text(difference),
            relative(allowed),
            f"{a:.6g}",
            f"{b:.6g}",
            dtype_a if dtype_a == dtype_b else f"{dtype_a} in A, {dtype_b} in B",
            type_,
        )
