"""Compute by how much the curves (losses, gradient norms) of two runs differ, and which tensor differs first."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from analyzers.columns import Floats
from analyzers.parity.model import PHASES, Curve, CurveDifference, Phase, ValueDifference, ValueKind
from analyzers.parity.reading import KINDS
from analyzers.store import Columns

_PHASE_OF_KIND = np.array([PHASES[kind] for kind in KINDS], dtype=np.int8)
LISTED = KINDS.index(ValueKind.GRADIENT)
"""The kind `GRADIENT`, whose recorded order must be reversed.

A recording lists the gradients of parameters in the order of the model, but a backward pass computes the last one
first.
"""
KEY = ["step", "kind", "name"]


def curve_difference(
    curve: Curve, before: Mapping[int, float], after: Mapping[int, float], tolerance: float
) -> CurveDifference | None:
    """Return how a logged quantity (`curve`, such as the loss) differs between two runs; None without a common step.

    `before` and `after` map steps to the values in the first and the second run. `tolerance` is the relative difference
    that is allowed.
    """
    steps = sorted(before.keys() & after.keys())
    if not steps:
        return None
    differences = {step: relative_difference(before[step], after[step]) for step in steps}
    first = next((step for step in steps if differences[step] > tolerance), None)
    ends = (None, None) if first is None else (before[first], after[first])
    return CurveDifference(
        curve=curve, steps=len(steps), largest=max(differences.values()), step=first, a=ends[0], b=ends[1]
    )


def relative_difference(a: float, b: float) -> float:
    """Return the absolute difference of two numbers, divided by the larger of their absolute values.

    If one of the numbers is NaN or infinite, the result is 0 if both are the same, else infinite.
    """
    if not (math.isfinite(a) and math.isfinite(b)):
        # By text, because NaN is not equal to itself.
        return 0.0 if repr(a) == repr(b) else math.inf
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


def value_table(columns: Columns) -> pd.DataFrame:
    """Return a table of the recorded tensors of a run, with one row per tensor and step.

    `columns` is the result of `reading.read` for the run. The table has the step, kind (index in `KINDS`), name and
    dtype of the tensor, and sums over its values: `sum`, `absolute` and `square`. Sorting by `phase`, `file` and `row`
    puts the rows of a step into the order in which the step computes the tensors.
    """
    names = np.array(columns.meta["names"], dtype=object)
    table = pd.DataFrame({name: np.asarray(columns[name]) for name in columns})
    table["name"] = names[table["name"].to_numpy()] if len(names) else table["name"].astype(object)
    dtypes = np.array(columns.meta["dtypes"], dtype=object)
    table["dtype"] = dtypes[table["dtype"].to_numpy()] if len(dtypes) else table["dtype"].astype(object)
    table["phase"] = _PHASE_OF_KIND[table["kind"].to_numpy()]
    backward, listed = table["phase"].isin((Phase.BACKWARD, Phase.GRADIENT)), table["kind"] == LISTED
    # Ranks are numbered along the pipeline: forward passes go up, backward passes down.
    table["file"] = table["file"].where(~backward, -table["file"])
    table["row"] = table["row"].where(~listed, -table["row"])
    return table


def common_values(a: pd.DataFrame, b: pd.DataFrame, columns: Sequence[str] = ()) -> pd.DataFrame:
    """Return the tensors that both runs recorded, with their difference, in the order in which a step computes them.

    The columns of the runs `a` and `b` have the suffixes `_a` and `_b`. The order is taken from the run with fewer
    pipeline stages. `columns` are further columns of both runs to keep.
    """
    ordered = a if a["file"].abs().max() <= b["file"].abs().max() else b
    kept = [*KEY, "sum", "absolute", "square", *columns]
    both = a[kept].merge(b[kept], on=KEY, suffixes=("_a", "_b"))
    both = both.merge(ordered[[*KEY, "phase", "file", "row"]], on=KEY)
    both = both.sort_values(["step", "phase", "file", "row"], kind="stable", ignore_index=True)
    both["difference"] = differences(both)
    return both


def differences(both: pd.DataFrame) -> Floats:
    """Return, for each row of `both`, the relative difference of a tensor between the two runs.

    It is the largest of three differences: of the norm, of the sum of absolute values, and of the sum. The sum may
    itself be close to zero if positive and negative values cancel, so its difference is relative to the sum of absolute
    values. The result is infinite if the tensor is finite in only one run, and 0 if it is finite in neither.
    """
    norms = [np.sqrt(both[f"square_{side}"].to_numpy(np.float64)) for side in "ab"]
    sizes = [both[f"absolute_{side}"].to_numpy(np.float64) for side in "ab"]
    totals = [both[f"sum_{side}"].to_numpy(np.float64) for side in "ab"]
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [
            np.abs(pair[0] - pair[1]) / np.maximum(*scale)
            for pair, scale in ((norms, norms), (sizes, sizes), (totals, sizes))
        ]
    known = [np.isfinite(norm) for norm in norms]
    largest = np.nan_to_num(np.maximum.reduce(parts), nan=0.0, posinf=np.inf)
    result: Floats = np.where(known[0] & known[1], largest, np.where(known[0] == known[1], 0.0, np.inf))
    return result


def first_difference(both: pd.DataFrame, tolerance: float) -> ValueDifference | None:
    """Return the first tensor that differs between two runs by more than the tolerance; None if none does.

    `both` has the tensors of both runs in the order in which a step computes them.
    """
    beyond = np.flatnonzero(both["difference"].to_numpy() > tolerance)
    if not len(beyond):
        return None
    first = int(beyond[0])
    row = both.iloc[first]
    return ValueDifference(
        step=int(row["step"]),
        kind=KINDS[int(row["kind"])],
        name=str(row["name"]),
        a=float(np.sqrt(row["square_a"])),
        b=float(np.sqrt(row["square_b"])),
        difference=float(row["difference"]),
        agreed=first,
        agreed_to=float(both["difference"].to_numpy()[:first].max(initial=0.0)),
    )
