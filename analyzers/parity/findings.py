"""Write the findings on runs whose training differs from that of the first run, with the first tensor that differs."""

import math
from collections.abc import Sequence

from analyzers.parity.model import Curve, CurveDifference, ParityData, RunParity, ValueDifference, ValueKind
from analyzers.report import Evidence, Finding, Severity, Status, Verdict
from analyzers.words import figures, joined_sentences, quantity, relative

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
        differs = (
            f"its norm is {_norm_text(value.b, value.a)}, and norm or sums of elements differ by up to"
            f" {relative(value.difference)}"
        )
    return f"The first tensor that differs is {_value_name(value)} in step {value.step}: {differs}. {agreed}"


def agreed_text(tensors: int, largest: float) -> str:
    """Return a sentence on how closely the tensors before the first differing one agree."""
    if not tensors:
        return ""
    how = f"within {relative(largest)}" if largest else "exactly"
    return f"All {tensors} tensors before it agree {how}." if tensors > 1 else f"The one tensor before it agrees {how}."


def _norm_text(norm: float, first: float) -> str:
    if figures(norm) != figures(first):
        return f"{figures(norm)} instead of {figures(first)}"
    return f"{norm:.7g} instead of {first:.7g}"


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
