"""Losses and gradients that are not finite."""

from analyzers.case.facts import LogClass, LogEvent, Reason
from analyzers.case.hypothesis import Case, Tier
from analyzers.case.wording import at_step, place, quoted
from analyzers.failures.entry import Failure
from analyzers.words import rank_names


def nonfinite_loss(case: Case) -> str:
    """Return the title for a loss or gradient that is not finite."""
    lead = case.lead
    if case.reason is Reason.SCALE_EXHAUSTED:
        return f"fp16 gradients overflowed at every loss scale{at_step(lead)}: the training diverged"
    if case.ranks and case.reason is Reason.LOSS:
        return f"the loss of {rank_names(case.ranks)} is not finite{at_step(lead)}{place(lead)}: {quoted(lead)}"
    if case.ranks:
        return f"gradients of {rank_names(case.ranks)} became NaN{at_step(lead)}{place(lead)}"
    step = f" at step {lead.step}" if lead.step is not None else ""
    return f"{_what_is_nonfinite(lead)} is NaN or infinite{step}{place(lead)}: {quoted(lead)}"


def _what_is_nonfinite(lead: LogEvent) -> str:
    """Return what is not finite according to an event: `the loss`, `the gradient`, or both if it does not say which."""
    text = lead.headline.lower()
    named = [f"the {name}" for name in ("loss", "gradient") if name[:4] in text]
    return " or ".join(named or ("the loss", "the gradient"))


def _for_numbers(case: Case) -> str:
    """Return how to find where NaN or infinity first occurs."""
    if case.ranks:
        ranks = rank_names(case.ranks)
        return f"look at the batch and the device of {ranks}: NaN appeared there before ranks exchanged gradients"
    return (
        "find where the first NaN appears: in the forward pass by a forward hook that checks each module's output with"
        " `torch.isfinite`, in the backward pass by `torch.autograd.set_detect_anomaly(True)`. If the loss rose before,"
        " lower the learning rate or clip gradients; if one batch causes it, check that batch or leave it out"
    )


ENTRIES = (
    Failure(
        id="numerics.nonfinite",
        kind=LogClass.NONFINITE_LOSS,
        what="The loss or a gradient is NaN or infinite.",
        when=lambda case: case.kind is LogClass.NONFINITE_LOSS,
        headline=nonfinite_loss,
        sentence=nonfinite_loss,
        why=lambda case: (
            ""
            if case.reason is Reason.SCALE_EXHAUSTED
            else "once a NaN is in the loss, its gradients and the updated weights become NaN, too"
        ),
        next=(_for_numbers,),
        tier=Tier.BROKEN_NUMBERS,
    ),
)
