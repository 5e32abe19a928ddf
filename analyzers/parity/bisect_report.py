"""Compare two recorded runs: `bisect` returns a report on the first operation with equal input and another result."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd

from analyzers import run, store
from analyzers.columns import Floats
from analyzers.errors import InputError
from analyzers.parity.model import OF_PARAMETERS, BisectData, Cause, Divergence, Phase, RecordedRun, ValueKind
from analyzers.parity.reading import KEY, KINDS, common_values, facts_at, value_table
from analyzers.parity.report import KIND_PLURALS, READER, agreed_text, distinct_figures, mesh_of, value_name_of
from analyzers.report import Evidence, Finding, Input, Report, Severity, Status, Verdict
from analyzers.run import Kind, Run
from analyzers.store import Options
from analyzers.words import capitalised, figures, joined_sentences, quantity, relative, relative_pair

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


def _compare_values(
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


def _first_value(compared: Compared) -> Divergence | None:
    both = compared.both
    beyond = np.flatnonzero(both["difference"] > both["tolerance"])
    return _divergence(compared, int(beyond[0])) if len(beyond) else None


def _first_inexact(compared: Compared) -> Divergence | None:
    """Return the first tensor whose recorded norm, sums or projection differ at all, as a `Divergence`; else None.

    The result is also None if the runs have different meshes.
    """
    different = np.flatnonzero(compared.both["difference"] > 0)
    return _divergence(compared, int(different[0])) if compared.is_same_layout and len(different) else None


def _first_precision(compared: Compared) -> Divergence | None:
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
        cause=cause,
        tensor=str(row["name"]),
        module=module,
        module_type=type_of(compared.types, module),
        after="" if before is None else str(before["name"]),
        after_kind=None if before is None else KINDS[int(before["kind"])],
        tolerance=float(row["tolerance"]),
        dtype_a=str(row["dtype_a"]),
        dtype_b=str(row["dtype_b"]),
        elements_a=round(float(row["elements_a"])),
        elements_b=round(float(row["elements_b"])),
        alike=int((same["difference"] > same["tolerance"]).sum()),
        of=len(same),
        **facts_at(both, index),
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


TITLES = {
    Cause.DATA: "the data of step {step} differ, so the model gets a different input",
    Cause.WEIGHTS: "{tensor} differs before step {step}: the runs do not start from the same weights",
    Cause.MODULE: "{module} gets the same input in step {step} and returns a different output (forward pass)",
    Cause.BETWEEN: "{module} computes a different {tensor} in step {step} (forward pass)",
    Cause.PRECISION: "{tensor} is {dtype_b} instead of {dtype_a} in step {step} (forward pass)",
    Cause.LOSS: "the forward passes of step {step} agree, but the gradient that the loss gives to the model does not",
    Cause.BACKWARD: "{module} gets the same gradient in step {step} and passes on a different one (backward pass)",
    Cause.WEIGHT_GRADIENT: "{tensor} differs in step {step}, although all activations and their gradients agree",
    Cause.OPTIMIZER: "{tensor} differs in step {step}, although all gradients agree",
    Cause.UPDATE: "{tensor} differs after the update before step {step}, although all tensors compared before it agree",
    Cause.BUFFER: "{tensor} differs before step {step}, although all tensors compared before it agree",
    Cause.DRIFT: "{tensor} differs in step {step} by {difference}; the differences grew gradually up to there",
}
NEXT = {
    Cause.DATA: "Compare the sequences of step {step}: the text, its order (seed, shuffling), the batch size, and where"
    " the data loader resumed. No operation is at fault up to here.",
    Cause.WEIGHTS: "Start both runs from the same weights: one checkpoint or one seed. Look at what sets {name}.",
    Cause.MODULE: "Compare how {module} is built in both runs (arguments, attention kernel, seed of dropout), or call"
    " the module alone on one saved input.",
    Cause.BETWEEN: "Read the forward of {module} between {after} and the input of {name}: scale, mask, residual,"
    " reshape, or a function outside of modules.",
    Cause.PRECISION: "Look at autocast, .to(dtype) and mixed-precision settings around {module}. If the different dtype"
    " is intended, only a finding on values matters.",
    Cause.LOSS: "Compare the labels, the loss function, its reduction and scale (gradient accumulation, loss scaling).",
    Cause.BACKWARD: "Look at the backward pass of {module} and of the code around it: custom autograd functions,"
    " hooks, detach, recomputation.",
    Cause.WEIGHT_GRADIENT: "Look at how gradients are summed, scaled and clipped: accumulation, all-reduce, hooks on"
    " {name}, max_norm.",
    Cause.OPTIMIZER: "Give the optimizer the same settings in both runs. After a resume, also load its state and that"
    " of the learning-rate schedule from the checkpoint.",
    Cause.UPDATE: "Look at what changes {name} between the gradients and the next step: clipping, the optimizer's"
    " implementation (fused, foreach), weight averaging.",
    Cause.BUFFER: "Compare what changes {name} in the forward passes of the step before: momentum, train() or eval(),"
    " how many passes there are (gradient accumulation, recomputation), and what ranks exchange (SyncBatchNorm,"
    " broadcast_buffers of DDP).",
    Cause.DRIFT: "Rounding errors that add up from module to module can do this. Start both runs from one checkpoint,"
    " and use deterministic kernels or float32; then see whether the difference jumps at one module.",
}
_SETTINGS = {"lr": "learning rate (lr)", "state.step": "count of steps (state.step)"}
_NO_COMMON = "a step and tensor that both runs recorded"
_DIFFERENCE = (
    "The largest relative difference among its norm, the sums of its elements and their product with a fixed random"
    " vector is"
)
"""The words before the difference of a tensor; they name the recorded numbers that are compared between runs."""


def findings_of(data: BisectData) -> list[Finding]:
    """Return the finding on the first difference of two runs.

    If only dtypes differ there, a finding on the first difference of values follows. Runs without a difference that are
    not identical get a note instead.
    """
    different = [one for one in (data.first, data.value if data.value != data.first else None) if one]
    findings = [finding(one, data) for one in different]
    if not findings and data.inexact:
        findings = [rounding(data.inexact)]
    return findings


def finding(one: Divergence, data: BisectData) -> Finding:
    """Return the finding on one difference between the runs; `data` is the whole comparison."""
    is_soft = one.cause in (Cause.PRECISION, Cause.DRIFT)
    return Finding(
        id=f"bisect.{one.cause}",
        severity=Severity.WARNING if is_soft else Severity.ERROR,
        title=f"Run B differs from run A: {title(one)}",
        why=why(one),
        next=NEXT[one.cause].format(**words(one)),
        step=one.step,
        evidence=[Evidence(text=text) for text in evidence(one, data)],
        confidence=0.6 if one.cause is Cause.DRIFT else 0.95,
    )


def rounding(one: Divergence) -> Finding:
    """Return the note that two runs agree within the tolerance, but are not identical.

    `one` is the first tensor that is not identical.
    """
    difference, tolerance = relative_pair(one.difference, one.tolerance)
    return Finding(
        id="bisect.rounding",
        severity=Severity.INFO,
        title=f"Runs A and B agree except for rounding; {value_name_of(one.kind, one.tensor)} in step {one.step} is"
        " the first tensor that is not identical",
        why=f"{_DIFFERENCE} {difference}; rounding in"
        f" {one.dtype_b or 'its dtype'} explains up to {tolerance}{margin(one)}."
        f" {agreed_text(one.agreed, 0.0)}".rstrip(),
        next="There is nothing to do if kernels may add numbers in a different order in the two runs, as they do on"
        " other devices, meshes or batch sizes. Otherwise look at the code that computes this tensor: a slightly"
        " changed setting can cause a difference this small, too.",
        step=one.step,
        evidence=[Evidence(text=f"norm in run A: {one.a:.9g}; in run B: {one.b:.9g}")],
        confidence=0.6,
    )


def margin(one: Divergence) -> str:
    ratio = one.tolerance / one.difference if one.difference else 0.0
    return f", which is {ratio:.0f} times as much" if ratio >= 2 else ""


def title(one: Divergence) -> str:
    """Return the title of the finding: what differs between the runs, without their names."""
    return TITLES[one.cause].format(**words(one))


def words(one: Divergence) -> dict[str, object]:
    """Return the values that are filled into the texts of `TITLES` and `NEXT`, by the names of their placeholders.

    `one` is the difference between the runs that these texts are about.
    """
    kind = f" ({one.module_type})" if one.module_type else ""
    name = _SETTINGS.get(one.tensor, one.tensor)
    return {
        "step": one.step,
        "name": name,
        "tensor": value_name_of(one.kind, name).removeprefix("the ") if one.cause is Cause.BETWEEN
        else value_name_of(one.kind, name),
        "module": f"{one.module}{kind}",
        "after": after(one) or "its input",
        "dtype_a": one.dtype_a,
        "dtype_b": one.dtype_b,
        "difference": relative(one.difference),
    }  # fmt: skip


def why(one: Divergence) -> str:
    """Return a text with the numbers behind a difference: norms, the relative difference, and the tolerance."""
    name = value_name_of(one.kind, _SETTINGS.get(one.tensor, one.tensor))
    tensor = capitalised(name)
    if one.elements_a != one.elements_b:
        numbers = f"{tensor} has {one.elements_a} elements in run A and {one.elements_b} in run B."
    elif one.cause is Cause.PRECISION:
        numbers = f"The values of {name} differ by {relative(one.difference)}."
    elif not math.isfinite(one.difference):
        numbers = f"{tensor} is not finite in {_not_finite_runs(one)}."
    elif one.tensor in _SETTINGS:
        numbers = f"{tensor} is {_both_numbers(one)}."
    else:
        numbers = f"The norm of {name} is {_both_numbers(one)}. {_DIFFERENCE} {_allowed_text(one)}."
    return f"{numbers} {agreed_text(one.agreed, one.agreed_to)}".rstrip()


def _not_finite_runs(one: Divergence) -> str:
    runs = [run for run, norm in (("run A", one.a), ("run B", one.b)) if not math.isfinite(norm)]
    return " and ".join(runs) or "one of the two runs"


def _both_numbers(one: Divergence) -> str:
    """Return the norm of a tensor in both runs, with as many digits as are needed for the norms to differ."""
    if math.isclose(one.a, one.b, rel_tol=1e-6):
        return f"{figures(one.a)} in both runs"
    a, b = distinct_figures(one.a, one.b)
    return f"{a} in run A and {b} in run B"


def _allowed_text(one: Divergence) -> str:
    if not one.tolerance:
        return f"{relative(one.difference)}; none is allowed"
    tolerance, difference = relative_pair(one.tolerance, one.difference)
    return f"{difference}; rounding in {one.dtype_b or 'its dtype'} explains up to {tolerance}"


def after(one: Divergence) -> str:
    return value_name_of(one.after_kind, one.after) if one.after_kind else ""


def evidence(one: Divergence, data: BisectData) -> list[str]:
    """Return sentences with further facts about a difference, such as how many other tensors differ."""
    texts = []
    if one.of > 1:
        verb = "differs" if one.alike == 1 else "differ"
        texts.append(f"{one.alike} of {one.of} {KIND_PLURALS[one.kind]} {verb} in step {one.step}")
    if one.after:
        texts.append(f"the last tensor that agrees: {after(one)}")
    first = data.inexact
    if first and (first.step, first.tensor, first.kind) != (one.step, one.tensor, one.kind):
        name = value_name_of(first.kind, first.tensor)
        texts.append(f"first tensor that is not identical: {name} in step {first.step} ({relative(first.difference)})")
    if data.not_finite:
        texts.append(f"{quantity(data.not_finite, 'compared tensor')} are not finite in both runs")
    for side, names in (("A", data.only_a), ("B", data.only_b)):
        if names:
            texts.append(f"only run {side} has {', '.join(names)}")
    return texts


def verdict(data: BisectData, findings: Sequence[Finding]) -> Verdict:
    """Return the verdict: where run B differs from run A, that both agree, or unknown if nothing can be compared."""
    if not data.compared:
        steps = [f"{run.first_step} to {run.last_step}" for run in (data.a, data.b)]
        return Verdict(
            status=Status.UNKNOWN,
            kind="unknown",
            sentence=f"nothing to compare: A recorded steps {steps[0]}, B steps {steps[1]}, and no tensor is in both",
            confidence=0.0,
            missing=[_NO_COMMON],
        )
    if data.first is None:
        return Verdict(status=Status.OK, kind="equal", sentence=_equal_sentence(data), confidence=0.9)
    severity = Severity.ERROR if any(each.severity is Severity.ERROR for each in findings) else Severity.WARNING
    return Verdict(
        status=Status(severity),
        kind=data.first.cause,
        sentence=joined_sentences([each.title for each in findings]),
        confidence=findings[0].confidence,
        missing=[] if data.is_same_layout else ["equal meshes: the order of values is compared only there"],
    )


def _equal_sentence(data: BisectData) -> str:
    """Return a sentence on how closely two runs agree that differ nowhere by more than the tolerance."""
    tensors, steps = quantity(data.compared, "tensor"), quantity(data.steps, "step")
    if data.is_same_layout and data.inexact is None:
        return f"both runs compute the same: {tensors} of {steps} are identical by norm, sums and projection"
    return f"both runs compute the same: {tensors} of {steps} agree within the rounding of their dtypes"


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
    first, second, compared = _compared_runs(run.as_run(a), run.as_run(b), options or store.Options(), tolerance)
    data = _data_of(first, second, compared, tolerance)
    findings = findings_of(data)
    return Report(
        schema=_SCHEMA,
        inputs=[*first.inputs, *second.inputs],
        verdict=verdict(data, findings),
        findings=findings,
        data=data,
    )


def _compared_runs(
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
    compared = _compare_values(
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
        first_step=min(steps := _computed_steps(table)),
        last_step=max(steps),
        tensors=len(table),
    )
    return Recording(
        facts,
        table,
        {str(name): str(kind) for name, kind in columns.meta["types"].items()},
        [file.as_input() for file in files],
    )


def _computed_steps(table: pd.DataFrame) -> list[int]:
    """Return the steps in a table of tensors, without a last step that has only weights.

    The weights at the start of each step are recorded, too. They are the result of the update in the previous step, so
    a run that ends after three steps has the weights of a fourth.
    """
    computed = table.loc[~table["kind"].isin((PARAMETER, BUFFER)), "step"]
    return sorted(map(int, (computed if len(computed) else table["step"]).unique()))


def _data_of(a: Recording, b: Recording, compared: Compared, tolerance: float | None) -> BisectData:
    """Return the data of the report: both runs, what was compared, and the first differences.

    `tolerance` is the relative difference that the user allows; None: what rounding in the dtype of a tensor can
    cause.
    """
    both = compared.both
    value, precision = _first_value(compared), _first_precision(compared)
    different = sorted((one for one in (precision, value) if one), key=lambda one: one.agreed)
    is_finite = np.isfinite(both["square_a"]) | np.isfinite(both["square_b"])
    allowed = {str(dtype): float(rows["tolerance"].max()) for dtype, rows in both.groupby("dtype_b") if dtype}
    steps = set(a.table["step"]) & set(b.table["step"])
    return BisectData(
        a=a.run,
        b=b.run,
        steps=len(_computed_steps(both)) if len(both) else 0,
        compared=len(both),
        not_compared=compared.not_compared,
        is_same_layout=compared.is_same_layout,
        longest_sum=compared.longest_sum,
        tolerances=allowed,
        tolerance=tolerance,
        not_finite=int((~is_finite).sum()),
        first=different[0] if different else None,
        value=value,
        inexact=_first_inexact(compared),
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


# Make the tables about two recorded runs for the user interfaces: all tensors that both have, in order.
#
# | view | one row |
# |---|---|
# | `operation_table` | a tensor of a step: its norms in both runs, their difference, and what its dtype allows |
# | `around` | the same, only for tensors near the first difference, and those of the module that caused it |
# | `step_table` | a step: its largest difference, and how many tensors differ by more than is allowed |

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
    _, _, compared = _compared_runs(a, b, options, tolerance)
    both = compared.both
    value = _first_value(compared)
    # The weights after the last update are no step of their own, unless they are all that differs.
    both = both[both["step"].isin([*_computed_steps(both), *([value.step] if value else [])])]
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
    if data.first:
        return data.first.step
    return int(table["step"].min()) if len(table) else 0
