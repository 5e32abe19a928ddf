"""Compare several runs of one training: `analyze` returns a report on whether they compute the same."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from analyzers import run, store
from analyzers.errors import InputError, WorkbenchError
from analyzers.files import read_whole, write_whole
from analyzers.parity.model import (
    Curve,
    CurveDifference,
    NamedRun,
    ParityData,
    Phase,
    RunParity,
    ValueDifference,
    ValueKind,
)
from analyzers.parity.reading import (
    KINDS,
    common_values,
    curve_difference,
    first_difference,
    relative_difference,
    value_table,
)
from analyzers.report import Evidence, Finding, Input, Report, Severity, Status, Verdict, ranked
from analyzers.run import Artefact, Kind, Run
from analyzers.steps.loading import load
from analyzers.steps.losses import mean_by_step
from analyzers.steps.table import Steps
from analyzers.words import figures, joined_sentences, quantity, relative

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


FILE = "parity.json"
_RUNS_AT_MOST = 1000


class RunFolder(msgspec.Struct, frozen=True):
    """The name of a run, and the name of its folder beside `parity.json`."""

    name: str
    folder: str


class Meshes(msgspec.Struct, frozen=True):
    """The content of `parity.json`: the runs, and the relative difference that is allowed between them."""

    runs: list[RunFolder]
    tolerance: float = TOLERANCE
    schema: str = "workbench.meshes/1"


CURVE_NAMES = {Curve.LOSS: "loss", Curve.GRAD_NORM: "gradient norm"}
KIND_NAMES = {
    ValueKind.DATA: "the batch ({name})",
    ValueKind.PARAMETER: "the parameter {name}",
    ValueKind.ACTIVATION: "the activation of {name}",
    ValueKind.ACTIVATION_GRADIENT: "the gradient of the activation of {name}",
    ValueKind.GRADIENT: "the gradient of {name}",
    ValueKind.BUFFER: "the buffer {name}",
    ValueKind.INPUT: "the input of {name}",
    ValueKind.INPUT_GRADIENT: "the gradient of the input of {name}",
    ValueKind.OPTIMIZER: "the optimizer's {name}",
}
KIND_PLURALS = {
    ValueKind.DATA: "tensors of the batch",
    ValueKind.PARAMETER: "parameters",
    ValueKind.ACTIVATION: "activations",
    ValueKind.ACTIVATION_GRADIENT: "gradients of activations",
    ValueKind.GRADIENT: "gradients of parameters",
    ValueKind.BUFFER: "buffers",
    ValueKind.INPUT: "inputs of modules",
    ValueKind.INPUT_GRADIENT: "gradients of inputs of modules",
    ValueKind.OPTIMIZER: "settings and states of the optimizer",
}
_WHOLE = {"(model)": "the whole model", "model": "module model"}
"""{name of the outermost module: phrase for it}; it is recorded as `(model)` if it has an attribute `model`."""
_NEXT_STEPS = {
    ValueKind.DATA: "Give all runs the same sequences in each step: the same text, seed and sequence length, and the"
    " same product of batch size and data-parallel degree.",
    ValueKind.ACTIVATION: "Look at the forward pass of {name} in run {run}: all that comes before it agrees.",
    ValueKind.ACTIVATION_GRADIENT: "Look at the backward pass of what takes the output of {name} in run {run}: the"
    " whole forward pass agrees.",
    ValueKind.BUFFER: "Look at what changes the buffer {name}.",
    ValueKind.INPUT: "Look at the code that calls {name} in run {run}: all that comes before it agrees.",
    ValueKind.INPUT_GRADIENT: "Look at the backward pass of {name} in run {run}: the whole forward pass agrees.",
    ValueKind.OPTIMIZER: "Give all runs the same settings and state of the optimizer.",
    ValueKind.GRADIENT: "Look at how the gradient of {name} is computed and summed over ranks in run {run}: all"
    " activations and their gradients agree.",
}
_FIRST_PARAMETER = "Start all runs from the same weights: one seed checkpoint, or one seed."
_LATER_PARAMETER = (
    "Look at the optimizer's step in run {run}: the gradients of the step before agree, so clipping, the learning rate"
    " or the optimizer's state differ."
)
_NO_VALUES = "tensors of both runs (debug.record_values), to name the first one that differs"


def findings_of(data: ParityData) -> list[Finding]:
    first, *others = data.runs
    return [finding for run in others if (finding := _difference_finding(first, run, data.tolerance))]


def _difference_finding(first: RunParity, run: RunParity, tolerance: float) -> Finding | None:
    """Return the finding on how the training of `run` differs from that of the first run; None if it does not.

    `tolerance` is the relative difference that is allowed.
    """
    curve = min(
        (curve for curve in run.curves if curve.step is not None), key=lambda curve: curve.step or 0, default=None
    )
    if curve is None and run.first is None:
        return None
    step = curve.step if curve else run.first.step if run.first else None
    return Finding(
        id="parity.difference" if curve else "parity.value",
        severity=Severity.ERROR if curve else Severity.WARNING,
        title=_curve_title(first, run, curve) if curve else _value_title(first, run),
        why=why(run.first, tolerance)
        if run.first
        else "Only the logged curves differ: no recorded tensor does, or no tensors were recorded.",
        next=next_step(run),
        step=step,
        evidence=[Evidence(text=_curve_text(curve)) for curve in run.curves],
        confidence=0.95 if run.first else 0.8,
    )


def _curve_title(first: RunParity, run: RunParity, curve: CurveDifference) -> str:
    """Return the title of the finding on a curve: the first step that differs from the first run, with both values."""
    before, after = (math.nan if value is None else value for value in (curve.a, curve.b))
    # Two values that look the same would contradict the sentence.
    digits = 6 if f"{before:.6g}" != f"{after:.6g}" else 10
    return (
        f"run {run.name} differs from run {first.name} from step {curve.step} on: {CURVE_NAMES[curve.curve]}"
        f" {_value_text(after, digits)} instead of {_value_text(before, digits)}"
    )


def _value_text(value: float, digits: int) -> str:
    if math.isfinite(value):
        return f"{value:.{digits}g}"
    return "NaN" if math.isnan(value) else "infinite"


def _value_title(first: RunParity, run: RunParity) -> str:
    """Return the title of the finding on a run in which a tensor differs from `first`, although the curves agree.

    The curves are loss and gradient norm by step.
    """
    assert run.first
    return (
        f"losses and gradient norms of run {run.name} agree with those of run {first.name} within the tolerance, but"
        f" {_value_name(run.first)} differs in step {run.first.step}"
    )


def _value_name(value: ValueDifference) -> str:
    return value_name_of(value.kind, value.name)


def value_name_of(kind: ValueKind, name: str) -> str:
    """Return a phrase for the tensor `name` of a kind, such as `the gradient of layers.0.attention.wq.weight`."""
    return KIND_NAMES[kind].format(name=_WHOLE.get(name, name))


def why(value: ValueDifference, tolerance: float) -> str:
    """Return sentences on the first tensor that differs, and on how closely all tensors before it agree.

    `tolerance` is the relative difference that is allowed.
    """
    agreed = agreed_text(value.agreed, value.agreed_to) or "It is the first tensor of the step."
    if not math.isfinite(value.difference):
        differs = "it is not finite in one of the two runs"
    elif math.isclose(value.a, value.b, rel_tol=tolerance):
        differs = f"its norm agrees, the sums of its elements differ by up to {relative(value.difference)}"
    else:
        first, norm = distinct_figures(value.a, value.b)
        differs = (
            f"its norm is {norm} instead of {first}, and norm or sums of elements differ by up to"
            f" {relative(value.difference)}"
        )
    return f"The first tensor that differs is {_value_name(value)} in step {value.step}: {differs}. {agreed}"


def agreed_text(tensors: int, largest: float) -> str:
    """Return a sentence on how closely the tensors before the first differing one agree."""
    if not tensors:
        return ""
    how = f"within {relative(largest)}" if largest else "exactly"
    return f"All {tensors} tensors before it agree {how}." if tensors > 1 else f"The one tensor before it agrees {how}."


def distinct_figures(a: float, b: float) -> tuple[str, str]:
    """Return two norms as text, with more digits if they look the same with few."""
    short = figures(a), figures(b)
    return short if short[0] != short[1] else (f"{a:.7g}", f"{b:.7g}")


def next_step(run: RunParity) -> str:
    """Return what to do next, for the first tensor of a run that differs from that of the first run."""
    value = run.first
    if value is None:
        return "Run both again with --debug.record_values, which finds the first tensor that differs."
    if value.kind is ValueKind.PARAMETER:
        return _LATER_PARAMETER.format(run=run.name) if value.agreed else _FIRST_PARAMETER
    return _NEXT_STEPS[value.kind].format(name=value.name, run=run.name)


def _curve_text(curve: CurveDifference) -> str:
    return f"{CURVE_NAMES[curve.curve]}: {_closeness(curve.largest)} in {quantity(curve.steps, 'step')}"


def _closeness(largest: float) -> str:
    if not largest:
        return "identical"
    return f"differs by at most {relative(largest)}" if math.isfinite(largest) else "not finite in one of the two runs"


def verdict(data: ParityData, findings: Sequence[Finding]) -> Verdict:
    """Return the verdict: all runs train alike, some differ from the first, or unknown if a run logged no step."""
    first, *others = data.runs
    missing = [_NO_VALUES] if any(not run.compared_values for run in others) else []
    empty = [run.name for run in data.runs if not run.losses] + [run.name for run in others if not run.curves]
    if findings:
        severity = Severity.ERROR if any(f.severity is Severity.ERROR for f in findings) else Severity.WARNING
        return Verdict(
            status=Status(severity),
            kind="different",
            sentence=joined_sentences([finding.title for finding in findings]),
            confidence=findings[0].confidence,
            missing=missing,
        )
    if empty or not others:
        names = ", ".join(dict.fromkeys(empty)) or "a second run"
        return Verdict(
            status=Status.UNKNOWN,
            kind="unknown",
            sentence=f"no steps to compare with those of {first.name}: {names} logged none",
            confidence=0.0,
            missing=[f"steps of {names}", *missing],
        )
    return Verdict(
        status=Status.OK,
        kind="equal",
        sentence=_equal_sentence(data),
        confidence=0.9 if missing else 0.97,
        missing=missing,
    )


def _equal_sentence(data: ParityData) -> str:
    largest = {
        name: max((c.largest for run in data.runs for c in run.curves if c.curve is curve), default=0.0)
        for curve, name in ((Curve.LOSS, "losses"), (Curve.GRAD_NORM, "gradient norms"))
    }
    steps = min(curve.steps for run in data.runs for curve in run.curves)
    agreements = [f"{name} {agreement(value)}" for name, value in largest.items()]
    values = max((run.largest_value_difference or 0.0 for run in data.runs), default=0.0)
    compared = min(run.compared_values for run in data.runs[1:])
    tensors = [f"{quantity(compared, 'recorded tensor')} of each {agreement(values)}"] if compared else []
    return (
        f"{quantity(len(data.runs), 'run')} are the same training over {quantity(steps, 'step')}:"
        f" {', '.join([*agreements, *tensors])}"
    )


def agreement(largest: float) -> str:
    return f"agree within {relative(largest)}" if largest else "are identical"


def write_runs(folder: Path, runs: Sequence[NamedRun], tolerance: float) -> None:
    """Write the names and folders of runs to `parity.json` in `folder`, which holds the folders of the runs.

    Raises:
        OSError: The file cannot be written.
    """
    meshes = Meshes([RunFolder(run.name, Path(run.folder).name) for run in runs], tolerance)
    write_whole(folder / FILE, msgspec.json.encode(meshes).decode() + "\n")


def read_runs(folder: Path) -> tuple[list[NamedRun], float]:
    """Return (runs, relative difference allowed between them) from the `parity.json` in a folder.

    Raises:
        InputError: There is no such file, or it is damaged, or it names folders outside of `folder`.
    """
    try:
        meshes = msgspec.json.decode(read_whole(folder / FILE), type=Meshes)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{folder / FILE}: {error}", "give the --folder of workbench parity, or --run again"
        ) from error
    # A file from elsewhere may not lead to other folders.
    is_below = all(run.folder == Path(run.folder).name not in ("", "..") for run in meshes.runs)
    if not (is_below and meshes.tolerance >= 0 and len(meshes.runs) <= _RUNS_AT_MOST):
        raise InputError(f"{folder / FILE}: no list of runs of this folder", "run workbench parity again")
    return [NamedRun(run.name, folder / run.folder) for run in meshes.runs], meshes.tolerance


def analyze_folder(run: Run, options: store.Options | None = None) -> Report[ParityData]:
    """Return a report on the runs that a folder of `workbench parity` lists.

    Raises:
        InputError: The list is missing or damaged, or one of its folders holds no run.
    """
    runs, tolerance = read_runs(run.root)
    return analyze(runs, options, tolerance)


# Find the tensor of a recorded run whose norm jumped first: where a spike of the loss began.
#
# `debug.record_values` and `recorders.record_tensors` record the tensors that are read here. A tensor jumps in a step
# if its norm is above `FACTOR` times its largest norm in all recorded steps before, of which there are at least
# `STEPS_BEFORE`.

FACTOR = 2.0
STEPS_BEFORE = 2
PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "gradient": Phase.GRADIENT}


class Jump(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded tensor whose norm jumped in a step.

    `norm` is its norm in `step` (infinite, null in JSON, if the tensor is not finite). `before` is its largest norm in
    the earlier recorded steps. A norm jumps if it is more than twice as large as `before`.
    """

    step: int
    kind: ValueKind
    tensor: str
    norm: float
    before: float

    @property
    def factor(self) -> float:
        """How many times larger the norm is than the largest norm before; infinite if the largest norm before was 0."""
        return self.norm / self.before if self.before else math.inf


class Jumps(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors that jumped first, in the first step in which the gradient of a parameter jumped.

    `forward` is the first output of a module that jumped in this step, and `backward` is the first gradient of a
    module's output that jumped (None: none did). `gradient` is the first gradient of a parameter that jumped. The order
    is the order of computation. `largest` is the gradient of a parameter that grew by the largest factor. `share` is
    the fraction of the parameters' gradients that jumped, from 0 to 1.
    """

    step: int
    forward: Jump | None
    backward: Jump | None
    gradient: Jump
    largest: Jump
    share: float


def first_jumps(files: Sequence[Artefact], last_step: int, options: store.Options | None = None) -> Jumps | None:
    """Return the first jumps up to the step `last_step`; None if no gradient jumped, or too few steps are recorded."""
    columns = store.load([file.path for file in files], READER, options or store.Options())
    return _jumps_in(value_table(columns), last_step)


def _jumps_in(table: pd.DataFrame, last_step: int) -> Jumps | None:
    """Return the first jumps in a table of recorded tensors (see `value_table`); None if no gradient jumped.

    Only the steps up to `last_step` count.
    """
    table = _with_norms(table[table["step"] <= last_step])
    gradients = table[table["phase"] == Phase.GRADIENT]
    jumped = gradients[_is_jump(gradients)]
    if jumped.empty:
        return None
    step = int(jumped["step"].min())
    at = table[table["step"] == step].sort_values(["phase", "file", "row"], kind="stable")
    first = {name: _first_of(at[at["phase"] == phase]) for name, phase in PHASES.items()}
    now = jumped[jumped["step"] == step]
    largest = now.iloc[int((now["norm"] / now["before"]).to_numpy().argmax())]
    own = gradients[gradients["step"] == step]
    gradient = first["gradient"]
    assert gradient is not None, "a gradient jumped in this step"
    return Jumps(
        step=step,
        forward=first["forward"],
        backward=first["backward"],
        gradient=gradient,
        largest=_jump_of(largest),
        share=float(_is_jump(own).mean()),
    )


def _with_norms(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with three columns added, which compare a tensor with earlier steps.

    `norm` is the norm of the tensor (infinite if it is not finite), `before` its largest norm in the earlier recorded
    steps, and `steps_before` the number of these steps.
    """
    square = table["square"].to_numpy(np.float64)
    table = table.assign(norm=np.where(np.isfinite(square), np.sqrt(np.abs(square)), np.inf))
    grouped = table.sort_values("step", kind="stable").groupby(["kind", "name"], sort=False)["norm"]
    # Shifted by one, because a norm is compared with those of earlier steps only.
    before = grouped.transform(lambda norms: norms.cummax().shift())
    # These are in the order of steps; pandas aligns them with the rows by their index.
    return table.assign(before=before, steps_before=grouped.cumcount())


def _is_jump(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return, for each row of `_with_norms`, whether the norm of its tensor jumps in this step.

    It jumps if it is more than `FACTOR` times the largest norm in the earlier recorded steps, and there are at least
    `STEPS_BEFORE` of these.
    """
    return (rows["steps_before"] >= STEPS_BEFORE) & (rows["norm"] > FACTOR * rows["before"])


def _first_of(rows: pd.DataFrame) -> Jump | None:
    jumped = rows[_is_jump(rows)]
    return None if jumped.empty else _jump_of(jumped.iloc[0])


def _jump_of(row: "pd.Series[float]") -> Jump:
    """Return a row of `_with_norms` as a `Jump`."""
    return Jump(
        step=int(row["step"]),
        kind=KINDS[int(row["kind"])],
        tensor=str(row["name"]),
        norm=float(row["norm"]),
        before=float(row["before"]),
    )


# Make the tables about several runs for the user interfaces, with one column per run and one row per step.
#
# | view | one cell |
# |---|---|
# | `curve_table` | the value of a curve in that step |
# | `difference_table` | the relative difference from the first run; the first run has no column |


def labels(data: ParityData) -> list[str]:
    """Return the names of the runs, each unique: a repeated name gets a number, as in `tp=2`, then `tp=2 (2)`."""
    seen = Counter[str]()
    unique: list[str] = []
    for each in data.runs:
        seen[each.name] += 1
        unique.append(each.name if seen[each.name] == 1 else f"{each.name} ({seen[each.name]})")
    return unique


def _curve_of(run: RunParity, curve: Curve) -> dict[int, float]:
    return run.losses if curve is Curve.LOSS else run.grad_norms


def curve_table(data: ParityData, curve: Curve) -> pd.DataFrame:
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
    for label, other in zip(labels(data)[1:], others, strict=True):
        after = _curve_of(other, curve)
        shares = {step: relative_difference(before[step], after[step]) for step in before.keys() & after.keys()}
        columns[label] = pd.Series(shares, dtype=float)
    return pd.DataFrame(columns).sort_index().rename_axis("step")
