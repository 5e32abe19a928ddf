"""Compare two recorded runs: `bisect` returns a report on the first operation with equal input and another result."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd

from analyzers import run, store
from analyzers.errors import InputError
from analyzers.parity.answers import KEY, value_table
from analyzers.parity.bisect_findings import findings_of, verdict
from analyzers.parity.bisect_model import BisectData, RecordedRun
from analyzers.parity.bisection import (
    BUFFER,
    PARAMETER,
    Compared,
    compare_values,
    first_inexact,
    first_precision,
    first_value,
)
from analyzers.parity.report import READER, mesh_of
from analyzers.report import Input, Report, tool_version
from analyzers.run import Kind, Run

_SCHEMA = "workbench.bisect/1"
_NAMES_SHOWN = 3
_HINT = "record both runs: --debug.record_tensors, or recorders.record_tensors(model) in a script"
BisectReport = Report[BisectData]


@dataclass(frozen=True)
class Recording:
    """The records of a run: facts about the run, a table of its tensors (see `value_table`), and its modules' classes.

    `types` maps the name of a module's input or output to the class of the module.
    """

    run: RecordedRun
    table: pd.DataFrame
    types: dict[str, str]
    inputs: list[Input]


def bisect(
    a: Run | str | PathLike[str],
    b: Run | str | PathLike[str],
    options: store.Options | None = None,
    tolerance: float | None = None,
) -> Report[BisectData]:
    """Return a report on the first operation that gets the same input in both runs and returns something else in `b`.

    `tolerance` is the relative difference that is allowed; None: the difference that rounding in the dtype of a tensor
    can cause.

    Raises:
        InputError: One of the folders holds no recorded tensors.
    """
    first, second, compared = compared_runs(run.as_run(a), run.as_run(b), options or store.Options(), tolerance)
    data = _data_of(first, second, compared, tolerance)
    findings = findings_of(data)
    return Report(
        schema=_SCHEMA,
        version=tool_version(),
        inputs=[*first.inputs, *second.inputs],
        verdict=verdict(data, findings),
        findings=findings,
        data=data,
    )


def compared_runs(
    a: Run, b: Run, options: store.Options, tolerance: float | None
) -> tuple[Recording, Recording, Compared]:
    """Return (records of `a`, records of `b`, their common tensors with the differences).

    `tolerance` is the relative difference that is allowed; None: the difference that rounding in the dtype of a tensor
    can cause.

    Raises:
        InputError: One of the runs has no recorded tensors.
    """
    first, second = recording(a, options), recording(b, options)
    is_same = first.run.ranks == second.run.ranks and first.run.mesh == second.run.mesh
    compared = compare_values(
        first.table, second.table, first.types | second.types, is_same_layout=is_same, tolerance=tolerance
    )
    return first, second, compared


def recording(source: Run, options: store.Options) -> Recording:
    """Return the records of a run.

    Raises:
        InputError: The run recorded no tensors.
    """
    files = source.of(Kind.VALUES)
    if not files:
        raise InputError(f"{source.root}: no recorded tensors there", _HINT)
    columns = store.load([file.path for file in files], READER, options)
    table = value_table(columns)
    if table.empty:
        raise InputError(f"{source.root}: no step was recorded", "let the script do at least one step of its optimizer")
    facts = RecordedRun(
        folder=str(source.root),
        ranks=len(files),
        mesh=mesh_of(source.manifest().get("mesh")),
        first_step=min(steps := computed_steps(table)),
        last_step=max(steps),
        tensors=len(table),
    )
    return Recording(facts, table, _types_in(columns.meta), [file.as_input() for file in files])


def computed_steps(table: pd.DataFrame) -> list[int]:
    """Return the steps in a table of tensors, without a last step that has only weights.

    The weights at the start of each step are recorded, too. They are the result of the update in the previous step, so
    a run that ends after three steps has the weights of a fourth.
    """
    computed = table.loc[~table["kind"].isin((PARAMETER, BUFFER)), "step"]
    return sorted(map(int, (computed if len(computed) else table["step"]).unique()))


def _types_in(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return {name of a module's input or output: class of the module}.

    `meta` is the dict that `reading.read` returns beside the columns.
    """
    return {str(name): str(kind) for name, kind in meta["types"].items()}


def _data_of(a: Recording, b: Recording, compared: Compared, tolerance: float | None) -> BisectData:
    """Return the data of the report: both runs, what was compared, and the first differences.

    `tolerance` is the relative difference that the user allows; None: what rounding in the dtype of a tensor can
    cause.
    """
    both = compared.both
    value, precision = first_value(compared), first_precision(compared)
    different = sorted((one for one in (precision, value) if one), key=lambda one: one.agreed)
    is_finite = np.isfinite(both["square_a"]) | np.isfinite(both["square_b"])
    allowed = {str(dtype): float(rows["tolerance"].max()) for dtype, rows in both.groupby("dtype_b") if dtype}
    steps = set(a.table["step"]) & set(b.table["step"])
    return BisectData(
        a=a.run,
        b=b.run,
        steps=len(computed_steps(both)) if len(both) else 0,
        compared=len(both),
        not_compared=compared.not_compared,
        is_same_layout=compared.is_same_layout,
        longest_sum=compared.longest_sum,
        tolerances=allowed,
        tolerance=tolerance,
        not_finite=int((~is_finite).sum()),
        first=different[0] if different else None,
        value=value,
        inexact=first_inexact(compared),
        only_a=only(a.table, b.table, steps),
        only_b=only(b.table, a.table, steps),
    )


def only(table: pd.DataFrame, other: pd.DataFrame, steps: set[int]) -> list[str]:
    """Return the first few names of tensors in `table` that are not in `other`, in the steps that both runs have."""
    rows = table[table["step"].isin(steps)]
    missing = ~pd.MultiIndex.from_frame(rows[KEY]).isin(pd.MultiIndex.from_frame(other[KEY]))
    return [str(name) for name in dict.fromkeys(rows[missing].sort_values(["step", "phase", "row"])["name"])][
        :_NAMES_SHOWN
    ]
