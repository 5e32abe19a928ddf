"""Write how a rank that ran out of memory differs from the others, and what to do about it."""

from analyzers.device_memory import FEWER_PROCESSES
from analyzers.memory.answers.stacks import call_site
from analyzers.memory.difference_model import DifferenceKind, Purpose, RankDifference
from analyzers.memory.findings.evidence import about, innermost
from analyzers.memory.model import Oom
from analyzers.words import rank_names, size

PURPOSE_ADVICE = {
    Purpose.EVALUATION: "Evaluate under torch.no_grad(), with a batch that fits, and on all ranks, each with a part of"
    " the data.",
    Purpose.CHECKPOINT: "Save shards with torch.distributed.checkpoint, or gather with cpu_offload=True, so that no"
    " rank holds the whole state on its device.",
    Purpose.AVERAGE: "Keep the average on the CPU, or shard it over all ranks like the parameters.",
    Purpose.OUTPUT: "If this rank is the last pipeline stage, its output layer and the loss come on top of its layers:"
    " give it fewer layers, or compute the loss in pieces.",
    Purpose.UNKNOWN: "Do this on the CPU, or spread it over all ranks.",
}
NEXT = {
    DifferenceKind.BATCH: "Give all ranks about as many tokens or pixels a step: shards of equal size, and samples that"
    " are truncated, resized or packed.",
    DifferenceKind.PART: "If these lines belong to experts, the router sends too many tokens to those of this rank:"
    " limit them with a capacity factor, or balance the load with an auxiliary loss. Otherwise check on which data"
    " their sizes depend.",
    DifferenceKind.MORE: "If this rank is an early pipeline stage, let fewer microbatches be in flight, or give it"
    " fewer layers. Otherwise find what keeps these tensors alive.",
    DifferenceKind.LAYERS: "Split the layers more evenly over the pipeline stages, or shard what only this rank keeps"
    " whole.",
    DifferenceKind.NO_RECOMPUTATION: "Turn on activation checkpointing on this rank, too: compare its configuration and"
    " its environment with those of another rank.",
    DifferenceKind.OUTSIDE: f"{FEWER_PROCESSES}.",
}


def difference_advice(rank: int, oom: Oom, difference: RankDifference) -> str:
    """Return the difference of a rank from the others and what to do about it, as sentences."""
    if difference.kind is DifferenceKind.BATCH and _may_be_everywhere(oom, difference):
        return _batch_before(rank, difference)
    sentence = _own_sentence(rank, oom, difference) if difference.kind is DifferenceKind.OWN else ""
    advice = NEXT.get(difference.kind) or PURPOSE_ADVICE[difference.purpose]
    return f"{sentence or _difference_sentence(rank, difference)} {advice}"


def _may_be_everywhere(oom: Oom, difference: RankDifference) -> bool:
    """Return whether the other ranks may do the same in the failing step: they are recorded up to an earlier step.

    If the failing rank did it in its own earlier steps already, the recordings of the others would show it.
    """
    if oom.step is None or difference.until_step is None or difference.is_new is False:
        return False
    return difference.until_step < oom.step


def _batch_before(rank: int, difference: RankDifference) -> str:
    """Return the advice on a batch that is larger than all that this rank and others had in earlier steps."""
    return (
        f"First check why the batch of rank {rank} in the failing step is so large (collation, packing, long samples"
        f" that are not truncated): its tensors are about {about(difference.ratio or 1)} times as large as any that it"
        f" or {_compared_ranks(difference)} had before in the same lines. Cap the tokens or pixels of a batch."
    )


def _own_sentence(rank: int, oom: Oom, difference: RankDifference) -> str:
    """Return a sentence on lines that are in no recording of another rank."""
    d = difference
    most = "" if d.line == d.frames[0] else f", most of it in {innermost(d.frames)}"
    first = f"First look at {call_site(d.line)}: it needs {size(d.bytes)} on rank {rank}{most}"
    if not _may_be_everywhere(oom, d):
        return f"{first}, and no other rank ran it."
    return (
        f"{first}. It is in no earlier step, and the recordings of {_compared_ranks(d)} end with step {d.until_step}."
    )


def _difference_sentence(rank: int, difference: RankDifference) -> str:
    """Return a sentence on how the memory of a rank differs from that of the other ranks."""
    d, others = difference, _compared_ranks(difference)
    ratio = about(d.ratio or 1)
    match d.kind:
        case DifferenceKind.PART:
            return (
                f"First check why rank {rank} gets more in {innermost(d.frames)}{when(d)}: these tensors are about"
                f" {ratio} times as large as the largest of {others}, while those of other lines are as large as there."
            )
        case DifferenceKind.MORE | DifferenceKind.NO_RECOMPUTATION:
            return _more_sentence(rank, d)
        case DifferenceKind.LAYERS:
            return (
                f"First compare the part of the model on rank {rank}: parameters, gradients and optimizer state take"
                f" {size(d.own_bytes)}, on {others} at most {size(d.usual_bytes)}."
            )
        case DifferenceKind.OUTSIDE:
            return (
                f"First find out what else uses the device of rank {rank}: PyTorch could get only"
                f" {size(d.own_bytes)} of it, while it reserved {size(d.usual_bytes)} on {others}."
            )
        case _:
            return (
                f"First check the batch of rank {rank}{when(d)}: its tensors are about {ratio} times as large as the"
                f" largest of {others} in the same lines."
            )


def difference_clause(difference: RankDifference) -> str:
    """Return the difference as a clause for the verdict, whose subject is the rank that ran out of memory."""
    d, others, ratio = difference, _compared_ranks(difference), about(difference.ratio or 1)
    match d.kind:
        case DifferenceKind.BATCH:
            return f"its tensors are about {ratio} times as large as any of {others}"
        case DifferenceKind.PART:
            return f"its tensors of {innermost(d.frames)} are about {ratio} times as large as any of {others}"
        case DifferenceKind.OWN:
            return f"{size(d.bytes)} come from {call_site(d.line)}, which no recording of {others} has"
        case DifferenceKind.OUTSIDE:
            return f"PyTorch could get {size(d.bytes)} less of its device than of those of {others}"
        case _:
            return f"it has {size(d.bytes)} more than {others}, in tensors of the same sizes"


def _more_sentence(rank: int, difference: RankDifference) -> str:
    """Return a sentence on a rank that keeps more tensors of the usual size alive than the others."""
    many = f"{about(difference.ratio)} times as many" if difference.ratio else "more"
    why = " keeps activations that they compute again in the backward pass, and so"
    return (
        f"First check why rank {rank} holds more than {_compared_ranks(difference)}: it"
        f"{why * (difference.kind is DifferenceKind.NO_RECOMPUTATION)} has {many} tensors of the same size alive, such"
        f" as those of {innermost(difference.frames, 'the backward pass')}, which makes {size(difference.bytes)}."
    )


def difference_fact(difference: RankDifference) -> str:
    """Return the difference as evidence: how many bytes more than on the ranks with which it was compared."""
    return f"{size(difference.bytes)} more than on {_compared_ranks(difference)}"


def _compared_ranks(difference: RankDifference) -> str:
    """Return the ranks of a comparison as a phrase: `rank 0` or `the 3 other ranks (ranks 0-2)`."""
    names = rank_names(difference.ranks)
    return f"the {len(difference.ranks)} other ranks ({names})" if len(difference.ranks) > 1 else names


def when(difference: RankDifference) -> str:
    """Return since when a rank differs, as a phrase: ` in this step`, or nothing if that is not known."""
    return {True: " in the failing step", False: " in every step", None: ""}[difference.is_new]
