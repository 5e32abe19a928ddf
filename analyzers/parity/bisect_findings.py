"""Write the findings on the first difference of two runs: which code got the same input but returned something else."""

import math
from collections.abc import Sequence

from analyzers.parity.bisect_model import BisectData, Cause, Divergence
from analyzers.parity.findings import KIND_PLURALS, agreed_text, value_name_of
from analyzers.report import Evidence, Finding, Severity, Status, Verdict
from analyzers.words import capitalised, figures, joined_sentences, quantity, relative, relative_pair

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
    """Return a text on how many times larger the tolerance is than the difference; empty if less than twice."""
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
    """Return the names of the runs in which a tensor is not finite, such as `run B`."""
    runs = [run for run, norm in (("run A", one.a), ("run B", one.b)) if not math.isfinite(norm)]
    return " and ".join(runs) or "one of the two runs"


def _both_numbers(one: Divergence) -> str:
    """Return the norm of a tensor in both runs, with as many digits as are needed for the norms to differ."""
    if math.isclose(one.a, one.b, rel_tol=1e-6):
        return f"{figures(one.a)} in both runs"
    a, b = figures(one.a), figures(one.b)
    if a == b:
        a, b = f"{one.a:.7g}", f"{one.b:.7g}"
    return f"{a} in run A and {b} in run B"


def _allowed_text(one: Divergence) -> str:
    """Return the relative difference of a tensor, and how much of it rounding explains."""
    if not one.tolerance:
        return f"{relative(one.difference)}; none is allowed"
    tolerance, difference = relative_pair(one.tolerance, one.difference)
    return f"{difference}; rounding in {one.dtype_b or 'its dtype'} explains up to {tolerance}"


def after(one: Divergence) -> str:
    """Return a phrase that names the tensor computed just before the differing one; empty if there is none."""
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
    for run, names in (("A", data.only_a), ("B", data.only_b)):
        if names:
            texts.append(f"only run {run} has {', '.join(names)}")
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
