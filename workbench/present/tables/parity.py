"""Tables of a parity report: how far each run agrees with the first run, and the loss and gradient norm by step."""

import math
from collections.abc import Sequence

from analyzers.parity.findings import CURVE_NAMES as CURVES
from analyzers.parity.model import Curve, ParityData, RunParity
from analyzers.parity.views import curve_table, difference_table
from analyzers.words import UNKNOWN, figures, relative
from workbench.present.table import Table, table

STEPS = 12


def parity_tables(data: ParityData) -> list[Table]:
    """Return tables of each run's agreement with the first run, the first differing tensors, and the curves by step."""
    by_step = (of(data, curve) for curve in Curve for of in (steps_of, differences_of))
    return [agreement(data), first_values(data), *by_step]


def agreement(data: ParityData) -> Table:
    """Return a table of each run's largest differences from the first run."""
    return table(
        f"Largest relative differences from the first run (allowed: {relative(data.tolerance)})",
        "run | ranks> | loss> | gradient norm> | tensors> | first step beyond>",
        (cells(run, is_first=run is data.runs[0]) for run in data.runs),
        40,
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
    """Return a table of each run's first tensor that differs from the first run: step, module, norms, difference."""
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
        40,
    )


def differences_of(data: ParityData, curve: Curve, limit: int = STEPS) -> Table:
    """Return a table of each run's difference from the first run by step, and whether the tolerance allows it."""
    differences = difference_table(data, curve)
    heads = " | ".join(["step>", *(f"{str(name).replace('|', '/')}>" for name in differences), "allowed"])
    rows = (
        (step, *("" if math.isnan(share) else relative(share) for share in shares), allowed(shares, data.tolerance))
        for step, *shares in differences.itertuples(name=None)
    )
    title = f"Relative difference of the {CURVES[curve]} by step (allowed: {relative(data.tolerance)})"
    return table(title, heads, rows, limit)


def allowed(shares: Sequence[float], tolerance: float) -> str:
    """Return `no` if a relative difference of a step is above `tolerance`, else unknown if one is NaN, else `yes`."""
    if any(share > tolerance for share in shares):
        return "no"
    return UNKNOWN if any(map(math.isnan, shares)) else "yes"


def steps_of(data: ParityData, curve: Curve, limit: int = STEPS) -> Table:
    """Return a table of a curve (loss or gradient norm): a row per step, a column per run."""
    values = curve_table(data, curve)
    heads = " | ".join(["step>", *(f"{str(name).replace('|', '/')}>" for name in values)])
    rows = ((step, *("" if math.isnan(v) else f"{v:.7g}" for v in row)) for step, *row in values.itertuples(name=None))
    return table(f"{CURVES[curve].capitalize()} by step", heads, rows, limit)
