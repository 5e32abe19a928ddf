"""Exceptions and CUDA errors that no other entry knows."""

from analyzers.case.facts import EventKind, LogClass, Reason
from analyzers.case.hypothesis import Case, Tier
from analyzers.case.wording import at_step, place, quoted, who
from analyzers.failures.entry import Failure
from analyzers.words import rank_names


def crashed(case: Case) -> str:
    """Return the title for an exception, or for an error of a CUDA kernel."""
    lead = case.lead
    if lead.kind is EventKind.CUDA_ERROR:
        return cuda_error(case)
    return f"{who(case.ranks)} failed with {quoted(lead)}{place(lead)}{at_step(lead)}"


def cuda_error(case: Case) -> str:
    """Return the title for a CUDA error; if a device-side assertion failed, it names the condition."""
    lead = case.lead
    condition = next(
        (e.facts.name for e in case.failure.events if e.facts.reason is Reason.DEVICE_ASSERT and ".cu:" in e.message),
        "",
    )
    what = f"a CUDA kernel's assertion failed: {condition}" if condition else f"CUDA error: {lead.facts.name}"
    if _is_caught(case):
        whose = f" on {rank_names(case.ranks)}" if case.ranks else ""
        return f"{what}{whose}{at_step(lead)}; the program caught it, but the CUDA context is unusable afterwards"
    where = f", reported{place(lead)}" if lead.source else ""
    return f"{who(case.ranks)} failed: {what}{where}{at_step(lead)}"


def _is_caught(case: Case) -> bool:
    """Return whether the program itself printed the CUDA errors of a cause, which means that it had caught them."""
    errors = [event for event in case.failure.events if event.kind is EventKind.CUDA_ERROR]
    return bool(errors) and all(event.facts.caught and not event.source for event in errors)


# DistributedDataParallel raises this where two backward passes reach a parameter, not where none does.
_READ_TRACEBACK = "read the traceback in the log, and the lines above it, which show what was read or computed"
_READY_TWICE = "mark a variable ready only once"


_RECOMPUTED = (
    "pass `use_reentrant=False` to torch.utils.checkpoint, because reentrant recomputation of a layer that is used"
    " twice reaches its parameters twice. If nothing is recomputed, use the parameters only within the wrapped"
    " forward(), or pass `static_graph=True` to DistributedDataParallel if all steps have the same graph"
)


_NOT_IMPORTED = (
    "install the module in the environment that this rank uses, or, if it is a file of your project, add its folder to"
    " PYTHONPATH there. If other ranks import it, compare `python -c 'import sys; print(sys.executable, sys.path)'` on"
    " their nodes and on that of this rank"
)


def _for_crash(case: Case) -> str:
    """Return what to do about an exception.

    After a CUDA error the text says how to find the line that caused it, because another line reports the error. If an
    error of this project has a hint, the hint is repeated.
    """
    if case.lead.kind is EventKind.CUDA_ERROR:
        suspects = (
            "check indices and labels against the sizes that they index"
            if case.reason is Reason.DEVICE_ASSERT
            else "suspect custom kernels first, then indices out of range"
        )
        return (
            "run once with CUDA_LAUNCH_BLOCKING=1, so that the traceback points to the failing kernel, or under"
            f" compute-sanitizer; {suspects}"
        )
    if case.lead.facts.hint:
        return case.lead.facts.hint
    if case.lead.message.startswith(("ModuleNotFoundError", "ImportError")):
        return _NOT_IMPORTED
    if _READY_TWICE in case.lead.message:
        return _RECOMPUTED
    return _OPEN_LINE if place(case.lead) else _READ_TRACEBACK


_OPEN_LINE = (
    "open the line that the title names; the lines above the traceback in the log show what was read or computed"
)


ENTRIES = (
    Failure(
        id="exceptions.cuda",
        kind=LogClass.CRASHED,
        what="A kernel of CUDA failed; the error is reported later, at another line.",
        when=lambda case: case.kind is LogClass.CRASHED and case.lead.kind is EventKind.CUDA_ERROR,
        headline=crashed,
        sentence=crashed,
        why="",
        next=(_for_crash,),
        tier=Tier.NATIVE_CRASH,
    ),
    Failure(
        id="exceptions.other",
        kind=LogClass.CRASHED,
        what="An exception that the program did not catch, and that the catalogue does not know.",
        when=lambda case: case.kind is LogClass.CRASHED,
        headline=crashed,
        sentence=crashed,
        why=lambda case: (
            "an exception that nothing catches ends the process of its rank, and with it the job"
            if case.lead.kind is EventKind.EXCEPTION
            else ""
        ),
        next=(_for_crash,),
    ),
)
