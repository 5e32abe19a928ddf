"""Make the report on a second run that looked for the origin of a NaN or a spike of the loss."""

import math
import shlex
from collections.abc import Sequence

from analyzers.parity.findings import value_name_of
from analyzers.parity.jumps import FACTOR, STEPS_BEFORE, Jump, Jumps
from analyzers.report import Evidence, Finding, Report, Severity, Status, Verdict, status_of, tool_version
from analyzers.words import percent, quantity
from workbench.rerun_data import SPIKE, RerunData


def rerun_report(data: RerunData, not_finite: Sequence[Finding]) -> Report[RerunData]:
    """Return the report on a second run; `not_finite` are the findings from its check for NaN and infinities."""
    findings = [*not_finite, *([_jump_finding(data, data.jumps)] if data.jumps else [])]
    if not findings and _is_batch(data):
        findings = [_batch_finding(data)]
    is_located = bool(findings)
    if not is_located:
        findings = [_nothing_finding(data)]
    kind = "located" if is_located else "not_run" if data.not_run else "not_located"
    return Report(
        schema="workbench.rerun/1",
        version=tool_version(),
        inputs=[],
        verdict=Verdict(
            status=status_of(findings) if is_located else Status.UNKNOWN,
            kind=kind,
            ranks=findings[0].ranks,
            sentence=findings[0].title,
            confidence=findings[0].confidence,
            missing=missing(data),
        ),
        findings=findings,
        data=data,
    )


def missing(data: RerunData) -> list[str]:
    """Return a list with a sentence on the second run's loss, if the second run did not break; else an empty list.

    The report shows this sentence as missing evidence.
    """
    if data.not_run or data.reproduced:
        return []
    return [f"the same loss in step {data.step}: the second run has {loss(data.repeated_loss)}"]


def _is_batch(data: RerunData) -> bool:
    """Return whether the batch explains a spike; the caller knows that no gradient jumped.

    The batch explains it if the loss rose again in the second run, and enough steps before it were recorded for
    comparison.
    """
    return data.event == SPIKE and data.reproduced and data.steps_compared >= STEPS_BEFORE


def _batch_finding(data: RerunData) -> Finding:
    """Return the finding that the batch of the step caused the spike, because no other cause is left."""
    late = _worst_rank(data)
    return Finding(
        id="rerun.batch",
        severity=Severity.WARNING,
        title=f"The batch of step {data.step} makes the loss spike: no gradient jumped in that step or before it",
        why=f"A second run of steps {data.first_compared} to {data.step} had the same loss in step {data.step}"
        f" ({loss(data.repeated_loss)}). In no step was the gradient of a parameter {FACTOR:g} times as large as in the"
        " steps before it.",
        next=f"Look at the batch of step {data.step} ({batch(data)}): text of another kind, padding, wrong labels."
        " If it is bad data, remove it. The training can continue as it is, because the weights are not damaged.",
        ranks=[] if late is None else [late],
        step=data.step,
        evidence=[Evidence(text=text) for text in facts(data)],
        confidence=0.8,
    )


def _jump_finding(data: RerunData, jumps: Jumps) -> Finding:
    """Return the finding on the layer whose gradient jumped first."""
    gradient = jumps.gradient
    early = data.step - jumps.step
    when = f"in step {jumps.step}" + (f", {quantity(early, 'step')} earlier" if early > 0 else "")
    late = _worst_rank(data)
    return Finding(
        id="rerun.gradient_jump",
        severity=Severity.WARNING,
        title=f"The spike of the loss in step {data.step} begins with the gradient of {gradient.tensor} {when}",
        why=reason(jumps),
        next=advice(data, jumps),
        ranks=[] if late is None else [late],
        step=jumps.step,
        evidence=[Evidence(text=text) for text in evidence(data, jumps)],
        confidence=0.9 if data.reproduced else 0.5,
    )


def reason(jumps: Jumps) -> str:
    """Return the facts about a jump of gradients: its size, the number of parameters with one, the forward pass."""
    first, largest = jumps.gradient, jumps.largest
    most = "" if largest.tensor == first.tensor else f"; that of {largest.tensor} grew most, {times(largest)} as large"
    return (
        f"The norm of this gradient is {number(first.norm)} in that step, and at most {number(first.before)} in the"
        f" recorded steps before. The gradients of {percent(jumps.share)} of the parameters became more than"
        f" {FACTOR:g} times as large as before{most}. {_forward_sentence(jumps)}"
    )


def _forward_sentence(jumps: Jumps) -> str:
    """Return a sentence on the forward pass of the step with the jump: the first output that jumped, if any."""
    if jumps.forward is None:
        return (
            f"The output of no module was more than {FACTOR:g} times as large as before in that step, so the cause is"
            " in the loss or in the backward pass."
        )
    name = value_name_of(jumps.forward.kind, jumps.forward.tensor)
    return f"In the forward pass {name} jumped first: its norm is {times(jumps.forward)} its largest before."


def advice(data: RerunData, jumps: Jumps) -> str:
    """Return what to do about a jump of gradients.

    If the jump came before the spike of the loss, clip gradients. If it came in the same step, lower the learning rate
    or look at the batch.
    """
    if jumps.step < data.step:
        return (
            f"Clip gradients (training.max_norm) or lower the learning rate before step {jumps.step}: the update of"
            f" step {jumps.step} caused the loss of step {data.step}."
        )
    if jumps.forward is not None:
        return (
            f"Lower the learning rate: the outputs jumped in the forward pass, by the update before step {data.step}."
        )
    return (
        f"Look at the batch of step {data.step} ({batch(data)}); leave it out, or clip gradients (training.max_norm)."
    )


def evidence(data: RerunData, jumps: Jumps) -> list[str]:
    """Return the facts as sentences; if a gradient of an activation jumped, the first such gradient comes first."""
    if jumps.backward is None:
        return facts(data)
    name = value_name_of(jumps.backward.kind, jumps.backward.tensor)
    first = f"first in the backward pass of step {jumps.step}: {name}, {times(jumps.backward)} as large"
    return [first, *facts(data)]


def facts(data: RerunData) -> list[str]:
    """Return sentences on the batch of the step, the losses of ranks and runs, and the second run's command."""
    texts = [f"batch of step {data.step}: {batch(data)}"]
    if len(data.losses) > 1:
        parts = (f"{number(value)} on rank {rank}" for rank, value in sorted(data.losses.items()))
        texts.append(f"loss of each rank's part of the batch: {', '.join(parts)}")
    both = f"{loss(data.recorded_loss)} in the run, {loss(data.repeated_loss)} when the step was run again"
    texts.append(f"loss of step {data.step}: {both}")
    return [*texts, shlex.join(data.command)] if data.command else texts


def batch(data: RerunData) -> str:
    """Return the batch of the step as a phrase, such as `sequences 8 to 15 of the data`."""
    return f"sequences {data.first_sequence} to {data.last_sequence} of the data"


def _worst_rank(data: RerunData) -> int | None:
    """Return the rank with the highest loss, if this loss is at least a tenth above the next highest; else None."""
    ordered = sorted(data.losses.items(), key=lambda item: -item[1])
    if len(ordered) < 2 or ordered[0][1] < 1.1 * ordered[1][1]:
        return None
    return ordered[0][0]


def _nothing_finding(data: RerunData) -> Finding:
    """Return the finding that the origin is unknown, with the reason.

    Either there was no second run, or it did not show the origin.
    """
    if data.not_run:
        title, why = f"Step {data.step} was not run again", f"{data.not_run}."
        advice_ = (
            "In a script, call recorders.check_finite(model) before the first step, and start it again. With our"
            " trainer, switch on checkpoints (checkpoint.enable), or debug.check_finite and debug.record_values from"
            " the start."
        )
    elif data.reproduced:
        title = f"Step {data.step} broke again, and the second run does not show where it began"
        earlier = f"only {quantity(data.steps_compared, 'earlier step')}" if data.steps_compared else "no earlier step"
        why = f"The second run recorded {earlier}, too few to compare with."
        advice_ = (
            "Begin the second run earlier: resume from an earlier checkpoint. Or look at how the loss is computed."
        )
    else:
        title = (
            f"The second run did not reproduce the loss of step {data.step}: it is {loss(data.repeated_loss)}, and was"
            f" {loss(data.recorded_loss)} in the first run"
        )
        why = "The same weights, data and settings gave a different result."
        advice_ = (
            "If the losses hardly differ, the order in which kernels add may be the reason: set debug.deterministic. If"
            " they differ much, suspect the machine, such as faulty memory (nvidia-smi -q -d ECC counts its errors)."
        )
    return Finding(
        id="rerun.not_run" if data.not_run else "rerun.not_located",
        severity=Severity.WARNING,
        title=title,
        why=why,
        next=advice_,
        step=data.step,
        evidence=[Evidence(text=shlex.join(data.command) or f"finding {data.event}")],
        confidence=0.6,
    )


def times(jump: Jump) -> str:
    """Return as text the factor by which a norm jumped."""
    return f"{jump.factor:.3g} times" if math.isfinite(jump.factor) else "not finite, unlike"


def number(value: float) -> str:
    """Return a norm or loss as short text."""
    return f"{value:.4g}" if math.isfinite(value) else "NaN or infinite"


def loss(value: float | None) -> str:
    """Return a loss as text; None means that it is not finite or not logged."""
    return "NaN, infinite or not logged" if value is None else f"{value:.6g}"
