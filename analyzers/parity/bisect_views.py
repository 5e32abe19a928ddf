"""Make the tables about two recorded runs for the user interfaces: all tensors that both have, in order.

| view | one row |
|---|---|
| `operation_table` | a tensor of a step: its norms in both runs, their difference, and what its dtype allows |
| `around` | the same, only for tensors near the first difference, and those of the module that caused it |
| `step_table` | a step: its largest difference, and how many tensors differ by more than is allowed |
"""

import numpy as np
import pandas as pd

from analyzers.parity.bisect_model import BisectData, Divergence
from analyzers.parity.bisect_report import compared_runs, computed_steps
from analyzers.parity.bisection import base, first_value, type_of
from analyzers.parity.model import OF_PARAMETERS, ValueKind
from analyzers.parity.reading import KINDS
from analyzers.run import Run
from analyzers.store import Options

_NEIGHBOURS = 2
"""The number of tensors that `around` returns before and after the first difference."""


def operation_table(a: Run, b: Run, options: Options, tolerance: float | None = None) -> pd.DataFrame:
    """Return a row for each tensor that both runs recorded, in the order in which the steps compute them.

    Columns: `step`, `kind`, `name`, `module`, `type` (the class of the module), `dtype_a`, `dtype_b`, the norms `a`
    and `b`, `difference` (relative; infinite if only one run is finite, or the sizes differ), `tolerance`, and
    `position`, which counts the tensors of a step from 1.

    Raises:
        InputError: One of the runs has no recorded tensors any more.
    """
    _, _, compared = compared_runs(a, b, options, tolerance)
    both = compared.both
    value = first_value(compared)
    # The weights after the last update are no step of their own, unless they are all that differs.
    both = both[both["step"].isin([*computed_steps(both), *([value.step] if value else [])])]
    kinds = [KINDS[kind] for kind in both["kind"]]
    modules = [_module_of(str(name), kind) for name, kind in zip(both["name"], kinds, strict=True)]
    return pd.DataFrame(
        {
            "step": both["step"].to_numpy(np.int64),
            "position": both.groupby("step").cumcount().to_numpy() + 1,
            "kind": [str(kind) for kind in kinds],
            "name": both["name"].astype(str).to_numpy(),
            "module": modules,
            "type": [type_of(compared.types, module) for module in modules],
            "dtype_a": both["dtype_a"].astype(str).to_numpy(),
            "dtype_b": both["dtype_b"].astype(str).to_numpy(),
            "a": np.sqrt(both["square_a"].to_numpy(np.float64)),
            "b": np.sqrt(both["square_b"].to_numpy(np.float64)),
            "difference": both["difference"].to_numpy(np.float64),
            "tolerance": both["tolerance"].to_numpy(np.float64),
        }
    )


def _module_of(name: str, kind: ValueKind) -> str:
    """Return the name of the module that a recorded tensor of this `kind` belongs to; empty for batch and optimizer."""
    if kind in (ValueKind.DATA, ValueKind.OPTIMIZER):
        return ""
    return name.rpartition(".")[0] if kind in OF_PARAMETERS else base(name)


def around(table: pd.DataFrame, first: Divergence) -> pd.DataFrame:
    """Return the rows of `table`, the result of `operation_table`, that show the first difference.

    These are rows of the step of the difference: the tensors of the module that returned something else, and the
    `_NEIGHBOURS` tensors before and after the tensor that differs.
    """
    step = table[table["step"] == first.step]
    at = step[(step["name"] == first.tensor) & (step["kind"] == str(first.kind))]["position"]
    place = int(at.iloc[0]) if len(at) else 0
    is_near = (step["position"] - place).abs() <= _NEIGHBOURS
    is_of_module = (step["module"] == first.module) if first.module else pd.Series(data=False, index=step.index)
    return step[is_near | is_of_module]


def step_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each step of `operation_table`, whose result is `table`.

    Columns: the `largest` difference, how many tensors are `beyond` their tolerance, and the number of `tensors`.
    """
    beyond = table["difference"] > table["tolerance"]
    grouped = table.assign(beyond=beyond).groupby("step")
    return pd.DataFrame(
        {"largest": grouped["difference"].max(), "beyond": grouped["beyond"].sum(), "tensors": grouped.size()}
    )


def first_step(data: BisectData, table: pd.DataFrame) -> int:
    """Return the step to show first: that of the first difference, else the first common step (0: there is none)."""
    if data.first:
        return data.first.step
    return int(table["step"].min()) if len(table) else 0
