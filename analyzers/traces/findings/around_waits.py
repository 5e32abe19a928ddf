"""Write when a device waits for its host: in few of the steps, or after a call that emptied the launch queue."""

from collections.abc import Iterator

from analyzers.traces.columns.phases import GC, PHASE_NAMES, phase_of
from analyzers.traces.kernel_names import user_function
from analyzers.traces.model import RankTrace
from analyzers.traces.opportunity_model import Opportunity, OpportunityKind
from analyzers.words import duration_ns, quantity, share, times

FIRST_BATCH = (
    "Most likely this is the first batch of an epoch, for which new workers start and load. Set persistent_workers=True"
    " in the DataLoader, so that they stay, and keep one iterator for all epochs if you can. More workers help only if"
    " the other steps wait, too."
)
_PAUSE = (
    "A pause in so few steps is typical of garbage collection, a checkpoint, an evaluation or logging: look what the"
    " program does in that step. "
)

_ON_HOST = (
    "The host itself computes in {name} meanwhile, on tensors in its memory (an offloaded optimizer, or metrics). Let"
    " the device do this, or compute on the host beside the next forward pass."
)
_PHASE_ADVICE = {
    GC: "Call gc.disable() once before the loop, and gc.collect() every n steps, on all ranks in the same step.",
    "checkpoint": "Save checkpoints asynchronously (torch.distributed.checkpoint.async_save), which only copies the"
    " state in the loop, or less often.",
    "eval": "Evaluate less often, or on fewer samples. If evaluation is no part of what you want to measure, leave it"
    " out of the recording.",
}
"""{phase that takes most of the host's time while the device waits: what to change}."""
_ONLY_SOMETIMES = "Make the call {call} only every n steps"
_REMEDIES = {
    ("aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::index"): "Avoid {call}, whose result has a size"
    " that the host must read: use torch.where and fixed sizes, and for experts one grouped matrix product",
    ("aten::to", "aten::_to_copy", "aten::copy_", "aten::cpu"): "Let the copy {call} not wait: copy to pinned memory"
    " with non_blocking=True, and use the result some steps later",
    (
        "cudaDeviceSynchronize",
        "hipDeviceSynchronize",
    ): "Remove the call {call} (torch.cuda.synchronize()) from the step",
}
"""{operators or calls that wait for the device: what to do about them}; `{call}` stands for the call and its place."""


def _call_before(one: Opportunity) -> str:
    """Return the call that emptied the launch queue before the waits, with its place in the user's code; or ''."""
    if not one.after:
        return ""
    name, *place = one.after
    return f"{name.name} in {user_function(place[0].name, 60)}" if place else name.name


def emptied_sentence(one: Opportunity) -> str:
    """Return a sentence that the waits follow a call that emptied the queue, beginning with a space; '' if not so.

    A wait in few steps is longer than any queue, so there the call does not matter.
    """
    call = "" if "in_steps" in one.measures else _call_before(one)
    return (
        f" Most of these waits follow {call}, in which the host waited until the device had ended all its work: so no"
        " kernel was left in the queue."
        if call
        else ""
    )


def ahead_advice(one: Opportunity) -> str:
    """Return the advice against the call that emptied the queue, ending with a space; '' if there is none.

    A pause in few steps is too long for any queue, so there the call does not matter.
    """
    if not one.after or "in_steps" in one.measures:
        return ""
    remedy = next((text for names, text in _REMEDIES.items() if one.after[0].name in names), _ONLY_SOMETIMES)
    return (
        f"{remedy.format(call=_call_before(one))}: then the host launches kernels ahead, which hides its other work. "
    )


def few_steps_advice(one: Opportunity) -> str:
    """Return the first sentences of the advice on a wait that only few steps have; '' if many have it."""
    return _PAUSE if "in_steps" in one.measures and one.kind is OpportunityKind.PYTHON else ""


def host_work_advice(account: RankTrace, one: Opportunity) -> str:
    """Return what to change about the work of the host that takes most of the waiting, '' if the trace names none."""
    mostly = one.names[0] if one.names else None
    if mostly is None or 2 * mostly.total_ns < one.taken_ns * max(1, account.steps):
        return ""
    if mostly.name.startswith("aten::"):
        return _ON_HOST.format(name=mostly.name)
    return _PHASE_ADVICE.get(PHASE_NAMES[phase_of(mostly.name)], "")


def is_first_batch(one: Opportunity) -> bool:
    """Return whether the device waits for the data loader only in few steps, as at the start of an epoch."""
    return "in_steps" in one.measures and one.kind is OpportunityKind.DATA_LOADER


def facts_around(account: RankTrace, one: Opportunity) -> Iterator[str]:
    """Yield texts on the steps that have a wait, if they are few, and on the call before it."""
    if "in_steps" in one.measures:
        few, worst = int(one.measures["in_steps"]), int(one.measures["longest_step"])
        yield f"nearly all of it in {few} of {quantity(account.steps, 'step')}, most in step {worst}"
    if one.after:
        before = one.after[0]
        part = share(before.total_ns, one.taken_ns * max(1, account.steps))
        yield (
            f"{times(before.count)} it followed {_call_before(one)}, where the host waited for the device:"
            f" {duration_ns(before.total_ns)} in total, {part} of it"
        )
