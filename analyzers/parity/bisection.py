"""Find the first tensor that differs between two runs, and the module that computed it."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analyzers.columns import Floats
from analyzers.parity.model import Cause, Divergence, Phase, ValueKind
from analyzers.parity.reading import KEY, KINDS, common_values

_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
"""The unit roundoff of each dtype (half of the machine epsilon): the largest relative error of one rounding."""
EXACT = ("int64", "int32", "int16", "int8", "uint8", "bool")
_DEVIATIONS = 4
_SETTING = 1e-6
"""The tolerance for settings of an optimizer, such as the learning rate, which no mesh rounds."""
_DRIFT = 10
"""The factor that distinguishes drift from a mistake.

A difference is drift if it is less than this many times its tolerance, and less than this many times the largest
difference before it. Rounding errors grow by small factors from one tensor to the next; a mistake makes a jump.
"""
_PROJECTED = ("square", "projection")
EXTRA = ("projection", "dtype", "elements", "calls", "length")
PARAMETER, BUFFER, INPUT = (KINDS.index(kind) for kind in (ValueKind.PARAMETER, ValueKind.BUFFER, ValueKind.INPUT))
_INPUT_GRADIENT = KINDS.index(ValueKind.INPUT_GRADIENT)
ACTIVATION, OPTIMIZER = KINDS.index(ValueKind.ACTIVATION), KINDS.index(ValueKind.OPTIMIZER)


@dataclass(frozen=True)
class Compared:
    """The comparison of the tensors that two runs have in common.

    `both` has a row for each tensor, in the order of computation, with its `difference` and `tolerance`. `types` has
    the classes of modules, `longest_sum` the number of terms of the longest sum in the model. `not_compared` is the
    number of common tensors that cannot be compared. `is_same_layout`: the runs have the same ranks and mesh.
    """

    both: pd.DataFrame
    types: dict[str, str]
    longest_sum: int
    not_compared: int
    is_same_layout: bool


def tolerance_of(dtype: str, length: int) -> float:
    """Return the relative difference that rounding can cause in a tensor of `dtype`, after sums of `length` terms.

    It is 4 (u + sqrt(n) v): u is the unit roundoff of the dtype, n is `length`, and v is the unit roundoff in which
    sums are computed, which is float32's for shorter dtypes. Errors of a sum are random, so n roundings give an error
    of about sqrt(n) v. An error above four times this value occurs less than once in a thousand cases (Higham and Mary,
    2019, theorem 2.4: with probability 2 exp(-8) at most). Whole numbers are exact.
    """
    if dtype in EXACT:
        return 0.0
    unit = _ROUNDOFF.get(dtype, _ROUNDOFF["float32"])
    return _DEVIATIONS * (unit + math.sqrt(length) * min(unit, _ROUNDOFF["float32"]))


def compare_values(
    a: pd.DataFrame, b: pd.DataFrame, types: dict[str, str], *, is_same_layout: bool, tolerance: float | None
) -> Compared:
    """Return the tensors that two runs have in common, with their differences and tolerances.

    `a` and `b` are tables as `value_table` returns them, and `types` maps names of modules' inputs and outputs to
    classes. `tolerance` replaces the tolerances that follow from the dtypes. If the runs have different meshes
    (`is_same_layout` is False), only tensors with equally many elements can be compared. Gradients of inputs cannot:
    such a gradient is a sum, of which a rank may have only one term.
    """
    a, b = _with_absent_state(a, b), _with_absent_state(b, a)
    both = common_values(a, b, EXTRA)
    # Counts are sums of the ranks' shares, divided by the copies, so that equal ones may differ by rounding.
    is_sized = (both["elements_a"] - both["elements_b"]).abs() < 0.5
    count = len(both)
    if is_same_layout:
        both["difference"] = np.maximum(both["difference"], _projected_difference(both))
        both.loc[~is_sized, "difference"] = np.inf
    else:
        both = both[is_sized & (both["kind"] != _INPUT_GRADIENT)].reset_index(drop=True)
    length = int(max(both["length_a"].max(), both["length_b"].max())) if len(both) else 0
    both["tolerance"] = allowed(both, length, tolerance)
    return Compared(both, types, length, count - len(both), is_same_layout)


def _with_absent_state(table: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Return `table` with rows of zeros for optimizer states that only `other` has in a common step.

    An optimizer creates some states, such as momentum, only at their first use; until then they count as zero.
    """
    wanted = other[(other["kind"] == OPTIMIZER) & other["step"].isin(table["step"])]
    present = pd.MultiIndex.from_frame(table[KEY])
    absent = wanted[~pd.MultiIndex.from_frame(wanted[KEY]).isin(present)].copy()
    if absent.empty:
        return table
    absent[["sum", "absolute", "square", "projection"]] = 0.0
    return pd.concat([table, absent], ignore_index=True)


def _projected_difference(both: pd.DataFrame) -> Floats:
    """Return the difference of the projections relative to the norm, for each row of `both`.

    A projection is the scalar product of a tensor with a fixed random vector. It shows if elements changed places,
    which sums do not show. The result is 0 if the runs cannot be compared: with another number of microbatches each
    element has another random factor.
    """
    squares, projections = ([both[f"{name}_{side}"].to_numpy(np.float64) for side in "ab"] for name in _PROJECTED)
    norm = np.sqrt(np.maximum(*squares))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.abs(projections[0] - projections[1]) / norm
    is_comparable = (both["calls_a"] == both["calls_b"]).to_numpy() & np.isfinite(norm)
    result: Floats = np.where(is_comparable, np.nan_to_num(share, nan=0.0), 0.0)
    return result


def allowed(both: pd.DataFrame, length: int, tolerance: float | None) -> Floats:
    """Return the tolerance of each tensor: the largest among its own and those of earlier tensors, as errors propagate.

    `both` has the tensors in the order of computation, and `length` is the number of terms of the longest sum. If
    `tolerance` is not None, it replaces these tolerances. Whole numbers must be equal, and settings of the optimizer
    nearly equal.
    """
    pairs = zip(both["dtype_a"], both["dtype_b"], strict=True)
    own = np.array([max(tolerance_of(a, length), tolerance_of(b, length)) for a, b in pairs], dtype=np.float64)
    result: Floats = np.maximum.accumulate(own) if tolerance is None else np.full(len(both), tolerance)
    is_setting = (both["kind"] == OPTIMIZER) & ~both["name"].str.contains("state.", regex=False)
    return np.where(is_setting, min(_SETTING, tolerance or _SETTING), np.where(own == 0, 0.0, result))


def first_value(compared: Compared) -> Divergence | None:
    both = compared.both
    beyond = np.flatnonzero(both["difference"] > both["tolerance"])
    return _divergence(compared, int(beyond[0])) if len(beyond) else None


def first_inexact(compared: Compared) -> Divergence | None:
    """Return the first tensor whose recorded norm, sums or projection differ at all, as a `Divergence`; else None.

    The result is also None if the runs have different meshes.
    """
    different = np.flatnonzero(compared.both["difference"] > 0)
    return _divergence(compared, int(different[0])) if compared.is_same_layout and len(different) else None


def first_precision(compared: Compared) -> Divergence | None:
    """Return the first parameter, input or output whose dtypes differ, as a `Divergence`; None if there is none."""
    both = compared.both
    is_wanted = (both["phase"] <= Phase.FORWARD) & (both["dtype_a"] != "") & (both["dtype_b"] != "")
    different = np.flatnonzero(is_wanted & (both["dtype_a"] != both["dtype_b"]))
    return _divergence(compared, int(different[0]), Cause.PRECISION) if len(different) else None


def _divergence(compared: Compared, index: int, cause: Cause | None = None) -> Divergence:
    """Return the `Divergence` at row `index` of the compared tensors, with the module that computed the tensor there.

    `cause` is the kind of the difference; if it is None, it is derived from the phase of the step.
    """
    both = compared.both
    row = both.iloc[index]
    cause = cause or cause_of(compared, index)
    module = culprit(compared, index, cause)
    before = _before_it(both, index)
    same = both[(both["step"] == row["step"]) & (both["kind"] == row["kind"])]
    return Divergence(
        step=int(row["step"]),
        cause=cause,
        kind=KINDS[int(row["kind"])],
        tensor=str(row["name"]),
        module=module,
        module_type=type_of(compared.types, module),
        after="" if before is None else str(before["name"]),
        after_kind=None if before is None else KINDS[int(before["kind"])],
        a=float(np.sqrt(row["square_a"])),
        b=float(np.sqrt(row["square_b"])),
        difference=float(row["difference"]),
        tolerance=float(row["tolerance"]),
        dtype_a=str(row["dtype_a"]),
        dtype_b=str(row["dtype_b"]),
        elements_a=round(float(row["elements_a"])),
        elements_b=round(float(row["elements_b"])),
        agreed=index,
        agreed_to=float(both["difference"].to_numpy()[:index].max(initial=0.0)),
        alike=int((same["difference"] > same["tolerance"]).sum()),
        of=len(same),
    )


def cause_of(compared: Compared, index: int) -> Cause:
    """Return the kind of the first difference, at row `index`, from the phase of the step in which the row is."""
    both = compared.both
    row = both.iloc[index]
    phase, kind = int(row["phase"]), int(row["kind"])
    if _is_drift(compared, index):
        return Cause.DRIFT
    if phase == Phase.DATA or (phase == Phase.FORWARD and kind == INPUT and index == _first_of(both, index, INPUT)):
        return Cause.DATA
    if phase == Phase.STATE:
        # Nothing was updated before the first recorded step; later, the last update is at fault.
        updated = Cause.BUFFER if kind == BUFFER else Cause.UPDATE
        return Cause.WEIGHTS if int(row["step"]) == int(both["step"].iloc[0]) else updated
    if phase == Phase.FORWARD:
        return Cause.BETWEEN if kind == INPUT else Cause.MODULE
    if phase == Phase.BACKWARD:
        # The first gradient of a backward pass comes from the loss: no module has computed it.
        return Cause.LOSS if index == _first_of(both, index, kind) else Cause.BACKWARD
    return Cause.WEIGHT_GRADIENT if phase == Phase.GRADIENT else Cause.OPTIMIZER


def _is_drift(compared: Compared, index: int) -> bool:
    """Return whether the difference at row `index` has grown out of earlier differences, as rounding errors do.

    A difference that is much larger than all earlier ones, or than its tolerance, did not grow little by little: it has
    an origin at this row.
    """
    row = compared.both.iloc[index]
    before = float(compared.both["difference"].to_numpy()[:index].max(initial=0.0))
    limit = float(row["tolerance"]) * _DRIFT
    return int(row["phase"]) != Phase.DATA and before * _DRIFT > row["difference"] and row["difference"] < limit


def _first_of(both: pd.DataFrame, index: int, kind: int) -> int:
    return int(np.flatnonzero((both["step"] == both["step"].iloc[index]) & (both["kind"] == kind))[0])


def culprit(compared: Compared, index: int, cause: Cause) -> str:
    """Return the name of the module that computed the tensor at row `index` differently in both runs.

    The name is empty if no module computed it, for example for the batch, the loss and the optimizer.
    """
    both, row = compared.both, compared.both.iloc[index]
    name, kind = str(row["name"]), KINDS[int(row["kind"])]
    if cause in (Cause.DATA, Cause.LOSS, Cause.OPTIMIZER):
        return ""
    if kind in (ValueKind.PARAMETER, ValueKind.BUFFER, ValueKind.GRADIENT):
        return name.rpartition(".")[0]
    if cause is Cause.BACKWARD:
        return _taker(both, index)
    return caller(compared.types, base(name)) if kind is ValueKind.INPUT else base(name)


def base(name: str) -> str:
    """Return the name of a module from the name of its input or output, which may end in `#2` (the call) or `[0]`."""
    return name.partition("#")[0].partition("[")[0]


def type_of(types: dict[str, str], module: str) -> str:
    return types.get(module) or types.get(f"{module}[0]") or types.get(f"{module}#2") or ""


def caller(types: dict[str, str], module: str) -> str:
    """Return the innermost recorded module that contains `module` and so computes its input.

    If there is none, the result is the first recorded module, which is the model. `types` has the recorded modules.
    """
    recorded = {base(name) for name in types}
    while module:
        module = module.rpartition(".")[0]
        if module in recorded:
            return module
    return next(iter(types), "")


def _taker(both: pd.DataFrame, index: int) -> str:
    """Return the innermost module that gets the tensor at row `index` as its input and so computes its gradient.

    The input of a nested module is the same tensor: it is recorded after this tensor in the forward pass, with the same
    sums. The last of such inputs belongs to the innermost module.
    """
    row = both.iloc[index]
    kind = INPUT if KINDS[int(row["kind"])] is ValueKind.INPUT_GRADIENT else ACTIVATION
    forward = both[(both["step"] == row["step"]) & (both["phase"] == Phase.FORWARD)].reset_index(drop=True)
    at = np.flatnonzero((forward["kind"] == kind) & (forward["name"] == row["name"]))
    if not len(at):
        return base(str(row["name"]))
    source, result = forward.iloc[int(at[0])], base(str(row["name"]))
    for _, later in forward.iloc[int(at[0]) + 1 :].iterrows():
        if later["square_a"] != source["square_a"] or later["sum_a"] != source["sum_a"]:
            break
        if int(later["kind"]) == INPUT:
            result = base(str(later["name"]))
    return result


def _before_it(both: pd.DataFrame, index: int) -> "pd.Series[Any] | None":
    """Return the row of the tensor just before that at row `index`, in the same phase of the step; else None."""
    if not index:
        return None
    row, before = both.iloc[index], both.iloc[index - 1]
    return before if (before["step"], before["phase"]) == (row["step"], row["phase"]) else None
