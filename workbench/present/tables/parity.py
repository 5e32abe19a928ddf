"""The same training on several meshes: how far each run agrees with the first, and the steps side by side."""

from analyzers.parity.model import Curve, ParityData, RunParity
from analyzers.words import figures, relative
from workbench.present.table import Table, table

STEPS = 12


def parity_tables(data: ParityData) -> list[Table]:
    """Return the agreement of each run, the first tensors that differ, and losses and gradient norms by step."""
    return [agreement(data), first_values(data), *(steps_of(data, curve) for curve in Curve)]


def agreement(data: ParityData) -> Table:
    """Return by how much each run differs from the first one at most."""
    return table(
        f"Largest relative differences from the first run (allowed: {relative(data.tolerance)})",
        "run | ranks> | loss> | gradient norm> | tensors> | first step beyond>",
        (cells(run, is_first=run is data.runs[0]) for run in data.runs),
        40,
    )


def cells(run: RunParity, *, is_first: bool) -> tuple[object, ...]:
    """Return the table row of a run; the first run has no differences, as the others are compared with it."""
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
    """Return the first tensor of each run that differs."""
    return table(
        "First tensor that differs",
        "run | step> | what | tensor | norm> | in the first run> | difference>",
        (
            (run.name, v.step, v.kind.replace("_", " "), v.name, figures(v.b), figures(v.a), relative(v.difference))
            for run in data.runs
            if (v := run.first)
        ),
        40,
    )


def steps_of(data: ParityData, curve: Curve) -> Table:
    """Return a curve of all runs side by side."""
    curves = [run.losses if curve is Curve.LOSS else run.grad_norms for run in data.runs]
    steps = sorted({step for values in curves for step in values})
    title = "Loss by step" if curve is Curve.LOSS else "Gradient norm by step"
    heads = " | ".join(["step>", *(f"{run.name.replace('|', '/')}>" for run in data.runs)])
    rows = ((step, *(f"{v[step]:.7g}" if step in v else "" for v in curves)) for step in steps)
    return table(title, heads, rows, STEPS)
