"""Write the findings on the loss and the gradient norm."""

from collections.abc import Sequence

from analyzers.report import EVIDENCE_AT_MOST, Evidence, Finding, Severity
from analyzers.steps.answers.losses import NonFinite, first_nonfinite, height, mean_by_step
from analyzers.steps.findings.common import SAME_MOMENT, log_of_rank, note
from analyzers.steps.model import Event, EventKind, Problem
from analyzers.steps.reading.log_lines import FINITE
from analyzers.steps.table import Steps
from analyzers.words import quantity, rank_names

STEPS_BEFORE, _STEPS_AFTER = 4, 2
"""The numbers of steps before and after a spike of the loss that the evidence shows."""


def nonfinite_finding(steps: Steps, broken: NonFinite) -> Finding:
    """Return the finding on a loss or gradient norm that became NaN or infinite."""
    return Finding(
        id=Problem.NONFINITE_LOSS.finding_id,
        severity=Severity.ERROR,
        title=f"the {broken.quantity} of {rank_names(broken.ranks)} is NaN or infinite from step {broken.step} on",
        why=f"step {broken.step} is the first one whose {broken.quantity} is not finite. If the optimizer used the"
        " gradients of that step, the weights are not finite either, and the run cannot recover"
        + _in_log(steps, broken),
        next=f"find the origin: check the batch, the learning rate and the gradient norm of step {broken.step}, and"
        f" the weight update of the step before. Then resume from a checkpoint before step {broken.step}",
        ranks=broken.ranks,
        step=broken.step,
        evidence=_nonfinite_facts(steps, broken),
        confidence=0.99,
    )


def _in_log(steps: Steps, broken: NonFinite) -> str:
    """Return a sentence with the number of the step in the script's own log, if that counts from 0; else no text."""
    return f". The script's log counts from 0: it calls it step {broken.step - 1}" if steps.log_counts_from_0 else ""


def _nonfinite_facts(steps: Steps, broken: NonFinite) -> list[Evidence]:
    """Return, as evidence for each rank, its loss or gradient norm that is not finite; the source is its log."""
    fact = f"{broken.quantity} not finite at step {broken.step}"
    return [
        Evidence(text=f"rank {rank}: {fact}{_last_finite(steps, broken, rank)}", source=log_of_rank(steps, rank))
        for rank in broken.ranks[:EVIDENCE_AT_MOST]
    ]


def _last_finite(steps: Steps, broken: NonFinite, rank: int) -> str:
    """Return a rank's last finite value before its loss or gradient norm became NaN or infinite, after a comma.

    The text is empty if there is no such value.
    """
    table, name = steps.table, broken.quantity.name.lower()
    before = table[(table["rank"] == rank) & (table["step"] < broken.step) & (table[f"{name}_state"] == FINITE)]
    if before.empty:
        return ""
    last = before.sort_values("step").iloc[-1]
    return f", last finite value {float(last[name]):.4g} at step {int(last['step'])}"


def recovered_notes(steps: Steps) -> list[Finding]:
    """Return a list with a note if a loss or gradient norm was NaN or infinite only in some steps; else empty."""
    broken = first_nonfinite(steps)
    return [_recovered_finding(steps, broken)] if broken and broken.finite_from is not None else []


def _recovered_finding(steps: Steps, broken: NonFinite) -> Finding:
    """Return the note that a loss or gradient norm was NaN or infinite in a few steps.

    Their weight updates were probably skipped.
    """
    return Finding(
        id=f"{Problem.NONFINITE_LOSS.finding_id}_recovered",
        severity=Severity.INFO,
        title=f"the {broken.quantity} of {rank_names(broken.ranks)} was NaN or infinite in some steps from step"
        f" {broken.step} on, and is finite again from step {broken.finite_from} on",
        why="the weights stayed finite, as later values show: the optimizer skipped the update of these steps, or the"
        f" {broken.quantity} was not used for it",
        next="nothing to do if it is only a few steps: a gradient scaler skips some while it looks for its loss scale."
        " If such steps come back, check their batches, or train in bfloat16",
        ranks=broken.ranks,
        step=broken.step,
        evidence=_nonfinite_facts(steps, broken),
        confidence=0.8,
    )


def loss_findings(steps: Steps, events: Sequence[Event]) -> list[Finding]:
    """Return findings on the highest spike of the loss, and on a lasting rise of the loss, if `events` has them."""
    spikes, jumps = _of_kind(events, EventKind.LOSS_SPIKE), _of_kind(events, EventKind.GRAD_NORM_JUMP)
    findings = [_spike_finding(steps, max(spikes, key=height), jumps)] if spikes else []
    return findings + [_rise_finding(steps, rise) for rise in _of_kind(events, EventKind.LOSS_RISE)]


def loss_notes(events: Sequence[Event]) -> list[Finding]:
    """Return notes on the highest jump of the gradient norm and on a plateau of the loss, if `events` has them.

    Neither of these is a fault by itself.
    """
    jumps = _of_kind(events, EventKind.GRAD_NORM_JUMP)
    notes = [_jump_note(max(jumps, key=height), len(jumps))] if jumps else []
    return notes + [_plateau_note(event) for event in _of_kind(events, EventKind.PLATEAU)]


def _of_kind(events: Sequence[Event], kind: EventKind) -> list[Event]:
    """Return the events of one kind."""
    return [event for event in events if event.kind is kind]


def _spike_finding(steps: Steps, spike: Event, jumps: Sequence[Event]) -> Finding:
    """Return the finding on a spike of the loss.

    Its evidence includes the jumps of the gradient norm just before the spike, from `jumps`.
    """
    # A jump just before the spike points to the batch that caused it.
    led = [jump for jump in jumps if 0 <= spike.step - jump.step <= SAME_MOMENT]
    return Finding(
        id=Problem.LOSS_SPIKE.finding_id,
        severity=Severity.WARNING,
        title=f"the loss jumps from {spike.before:.4g} to {spike.value:.4g} at step {spike.step}",
        why=f"in the steps before step {spike.step} the loss varies far less, as the evidence shows."
        + (f" It is back to normal at step {spike.until}" if spike.until else " It stays high until the last step"),
        next=f"check the batch and the gradient norm of step {spike.step}. If the run was started with `workbench"
        " launch --config`, `workbench inspect RUN --prove` runs that step again from the last checkpoint, and names"
        " the layer whose gradient jumped first",
        ranks=steps.ranks,
        step=spike.step,
        evidence=[_losses_around(steps, spike), *(Evidence(text=_jump_text(jump)) for jump in led)],
        confidence=0.8,
    )


def _losses_around(steps: Steps, spike: Event) -> Evidence:
    """Return, as evidence, the loss in the steps around a spike: the mean over the ranks that log it."""
    loss = mean_by_step(steps, "loss")
    at = int((loss.index < spike.step).sum())
    around = loss.iloc[max(0, at - STEPS_BEFORE) : at + _STEPS_AFTER + 1]
    texts = ", ".join(f"{value:.4g} (step {step})" for step, value in around.items())
    return Evidence(text=f"loss: {texts}", source=log_of_rank(steps, steps.ranks[0]))


def _rise_finding(steps: Steps, rise: Event) -> Finding:
    """Return the finding on a loss that rose and stayed up."""
    return Finding(
        id=Problem.LOSS_RISE.finding_id,
        severity=Severity.WARNING,
        title=f"the loss rises from {rise.before:.4g} to {rise.value:.4g}, from about step {rise.step} on",
        why=f"after step {rise.step} the loss stays higher until the last step, so this is no short spike",
        next=f"check the data and the gradient norm around step {rise.step}. Then resume from a checkpoint before it,"
        " with a lower learning rate or clipped gradients",
        ranks=steps.ranks,
        step=rise.step,
        confidence=0.7,
    )


def _jump_note(jump: Event, count: int) -> Finding:
    """Return the note on the highest jump of the gradient norm; `count` is the number of all jumps."""
    highest = f", the highest of {quantity(count, 'jump')}" if count > 1 else ""
    return note(
        "steps.grad_norm_jump",
        _jump_text(jump) + highest,
        "the gradient norms of the steps before it vary far less. A single jump is harmless if the loss does not"
        " follow",
        f"check the batch of step {jump.step}, and clip gradients if the loss rises too",
        jump.step,
    )


def _jump_text(jump: Event) -> str:
    """Return a clause on a jump of the gradient norm: its step, and the values before and after."""
    return f"the gradient norm jumps from {jump.before:.4g} to {jump.value:.4g} at step {jump.step}"


def _plateau_note(event: Event) -> Finding:
    """Return the note on a loss that no longer falls."""
    title = f"the loss no longer falls: it stays at {event.value:.4g} from step {event.step} on"
    why = "from that step to the last one the loss only varies around this value"
    return note(
        "steps.plateau",
        title,
        why,
        "if this loss is good enough, stop the run; otherwise change the learning rate, or check the data",
        event.step,
    )
