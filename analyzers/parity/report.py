"""Compare several runs of one training: `analyze` returns a report on whether they compute the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pandas as pd

from analyzers import run, store
from analyzers.errors import InputError, WorkbenchError
from analyzers.parity.answers import common_values, curve_difference, first_difference, value_table
from analyzers.parity.findings import findings_of, verdict
from analyzers.parity.model import Curve, NamedRun, ParityData, RunParity, ValueKind
from analyzers.parity.reading import KINDS
from analyzers.report import Input, Report, ranked, tool_version
from analyzers.run import Kind, Run
from analyzers.steps.answers.losses import mean_by_step
from analyzers.steps.loading import load
from analyzers.steps.table import Steps

_SCHEMA = "workbench.parity/1"
READER = "analyzers.parity.reading"
_OF_INPUTS = [KINDS.index(kind) for kind in (ValueKind.INPUT, ValueKind.INPUT_GRADIENT)]
TOLERANCE = 1e-5
"""The relative difference that is allowed by default.

Two meshes that compute the same in float32 differ by about 1e-7, which grows slowly over the steps.
"""


@dataclass(frozen=True)
class Recorded:
    """The records of a run: its curves (`parity`), the sums of its tensors, and the files that they were read from.

    `sums` is a table made by `value_table`; None if no tensors were recorded.
    """

    parity: RunParity
    sums: pd.DataFrame | None
    inputs: list[Input]


def analyze(
    runs: Sequence[NamedRun], options: store.Options | None = None, tolerance: float = TOLERANCE
) -> Report[ParityData]:
    """Return a report on whether all runs train as the first run does, by losses, gradient norms and recorded tensors.

    `runs` are pairs (name, run folder); a name says how the settings of the run differ, such as "tp=2". `tolerance` is
    the relative difference that is allowed.

    Raises:
        InputError: There are fewer than two runs, or one of the folders holds no run.
    """
    if len(runs) < 2:
        raise InputError("parity needs two runs at least", "give another run")
    options = options or store.Options()
    first, *others = [recorded(named, options) for named in runs]
    compared = [first.parity, *(_compared_run(first, other, tolerance) for other in others)]
    data = ParityData(tolerance=tolerance, runs=compared)
    findings = ranked(findings_of(data))
    return Report(
        schema=_SCHEMA,
        version=tool_version(),
        inputs=[item for each in (first, *others) for item in each.inputs],
        verdict=verdict(data, findings),
        findings=findings,
        data=data,
    )


def recorded(named: NamedRun, options: store.Options) -> Recorded:
    """Return the curves, the sums of tensors, and the files of a run; records that the run does not have are empty."""
    source = run.as_run(named.folder)
    manifest, logs = source.manifest(), source.of(Kind.STEPS)
    curves: dict[Curve, dict[int, float]] = {curve: {} for curve in Curve}
    inputs: list[Input] = []
    if logs:
        try:
            steps = load(logs, options)
            inputs = steps.inputs
            curves = {curve: _by_step(steps, curve) for curve in Curve}
        except InputError:
            pass  # a run that ended before its first step has none, which the verdict says
    parity = RunParity(
        name=named.name,
        folder=str(named.folder),
        world_size=whole_number(manifest.get("world_size")),
        mesh=mesh_of(manifest.get("mesh")),
        losses=curves[Curve.LOSS],
        grad_norms=curves[Curve.GRAD_NORM],
    )
    return Recorded(parity, _recorded_values(source, options), inputs)


def _by_step(steps: Steps, curve: Curve) -> dict[int, float]:
    """Return {step: mean over the ranks} for a logged quantity: the loss or the gradient norm (`curve`)."""
    values = mean_by_step(steps, curve.value)
    return dict(zip(values.index.to_numpy().tolist(), values.to_numpy().tolist(), strict=True))


def _recorded_values(source: Run, options: store.Options) -> pd.DataFrame | None:
    """Return the table of the sums of a run's tensors (see `value_table`); None if none can be read.

    Inputs of modules are left out, because they are recorded several times on some meshes.
    """
    files = source.of(Kind.VALUES)
    try:
        table = value_table(store.load([file.path for file in files], READER, options)) if files else None
    except WorkbenchError:
        return None
    # On some meshes several ranks have the same input.
    return None if table is None else table[~table["kind"].isin(_OF_INPUTS)]


def _compared_run(first: Recorded, other: Recorded, tolerance: float) -> RunParity:
    """Return `other` as a `RunParity`, with the differences of its curves and tensors from `first` filled in.

    `tolerance` is the relative difference that is allowed.
    """
    a, b = first.parity, other.parity
    pairs = ((Curve.LOSS, a.losses, b.losses), (Curve.GRAD_NORM, a.grad_norms, b.grad_norms))
    found = [curve_difference(curve, before, after, tolerance) for curve, before, after in pairs]
    result = msgspec.structs.replace(b, curves=[curve for curve in found if curve])
    if first.sums is None or other.sums is None:
        return result
    both = common_values(first.sums, other.sums)
    if both.empty:
        return result
    return msgspec.structs.replace(
        result,
        compared_values=len(both),
        missing_values=max(len(first.sums), len(other.sums)) - len(both),
        largest_value_difference=float(both["difference"].max()),
        first=first_difference(both, tolerance),
    )


def whole_number(value: Any) -> int | None:
    """Return a value of `run.json` if it is an integer, else None; the file may contain anything."""
    return value if isinstance(value, int) else None


def mesh_of(value: Any) -> dict[str, int]:
    """Return {mesh dimension: degree} from the field `mesh` of `run.json`; values that are no integers are left out."""
    pairs = value.items() if isinstance(value, dict) else ()
    return {str(name): degree for name, degree in pairs if isinstance(degree, int)}
