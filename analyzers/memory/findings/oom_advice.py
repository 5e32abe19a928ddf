"""Choose the advice on a failed request: first the change that would have satisfied it, judged by the recording."""

from analyzers.device_memory import FEWER_PROCESSES, Holder
from analyzers.memory.difference_model import DifferenceKind
from analyzers.memory.findings.avoidable import IF_NOT_ENOUGH, WITHOUT_MORE, avoidable_advice
from analyzers.memory.findings.evidence import COMMON_POOL, about, innermost
from analyzers.memory.findings.fragmentation import defragment, is_served_by_pieces
from analyzers.memory.findings.leak import leak_advice
from analyzers.memory.findings.rank_difference import difference_advice
from analyzers.memory.findings.remedies import BATCH, SEQUENCE, advice, remedy
from analyzers.memory.model import AvoidableKind, Device, Oom, OomPattern
from analyzers.words import size, uncapitalised

_LARGER_INPUTS_RATIO = 1.5
_CROWDED_SHARE = 0.7
"""If one layer holds at least this share of the allocated bytes, recomputing it would need as much memory again."""
# Checkpointing computes the activations of one layer at a time again: those of one layer must fit in any case.
_ONE_LAYER = (
    f"Use a smaller batch ({BATCH}) or sequence ({SEQUENCE}). Activation checkpointing would not help: {{module}} alone"
    " needs {held} of activations at once."
)
_REMOVABLE = (DifferenceKind.NO_RECOMPUTATION, DifferenceKind.OUTSIDE)
"""Differences without which the rank needs what the others need, so that nothing else must change."""
_IF_INTENDED = "If that cannot change:"
_SHARE_POOLS = (
    "Capture all CUDA graphs into one memory pool (torch.cuda.graph(..., pool=...)), or fewer of them: each has a"
    " private pool."
)
_CHECK_BATCH = (
    "First check why the failing step's batch is so large (collation, packing, long samples that are not"
    " truncated), and cap the sequence length. If the size is intended:"
)


def next_step(device: Device, oom: Oom, category: str) -> str:
    """Return what to do about a failed request, as sentences; `category` takes most of the memory.

    Memory that grows, and what differs from the other ranks or from earlier steps, come first, because they would fill
    any memory. Then come changes that alone would have satisfied the request, and what a particular change of the code
    avoids. Last comes a reduction of the largest category.
    """
    module = _crowded_layer(oom) if category == "activations" else ""
    of_layer = _ONE_LAYER.format(module=module, held=size(oom.modules[module])) if module else ""
    less = of_layer or remedy(device, oom.categories, failed=True)
    if oom.difference and oom.pattern is not OomPattern.GROWTH:
        first = difference_advice(device.rank or 0, oom, oom.difference)
        return first if oom.difference.kind in _REMOVABLE else f"{first} {_IF_INTENDED} {uncapitalised(less)}"
    uses = oom.avoidable or []
    if uses and uses[0].kind is AvoidableKind.EVALUATION_GRAPH:
        return avoidable_advice(uses[0])
    if abnormal_batch(oom):
        return f"{_CHECK_BATCH} {uncapitalised(of_layer or f'{advice(device, category)}.')}"
    if oom.pattern is OomPattern.GROWTH and device.growing:
        return f"{_end_growth(device)} A smaller batch only delays the failure."
    enough, free = _serving_advice(device, oom), device.fragmentation.decisive
    if uses:
        particular = avoidable_advice(uses[0])
        alone = uses[0].kind in WITHOUT_MORE
        if enough and free and uses[0].bytes > free.split_bytes:
            return particular if alone else f"{particular} {IF_NOT_ENOUGH} {uncapitalised(enough)}"
        less = particular if alone else f"{particular} {IF_NOT_ENOUGH} {uncapitalised(less)}"
    return f"{enough} If another request fails then: {uncapitalised(less)}" if enough else less


def _serving_advice(device: Device, oom: Oom) -> str:
    """Return the change that would have satisfied the failed request as it is, in sentences; empty if none is known."""
    if is_served_by_pieces(device, oom):
        return f"{defragment(device)} The free memory together was enough for this request."
    if pools := _idle_pools(device, oom):
        return f"{_SHARE_POOLS} {size(pools)} in them were free, but only for their own graphs."
    others = sum(part.low_bytes for part in device.account if part.holder is Holder.OTHER_PROCESSES)
    if others + oom.device_free_bytes >= oom.requested_bytes and others:
        return f"{FEWER_PROCESSES}. Other processes use at least {size(others)}."
    return ""


def _idle_pools(device: Device, oom: Oom) -> int:
    """Return the free bytes in private pools, if they were enough for the failed request; else 0."""
    free = sum(pool.free_bytes for pool in device.fragmentation.pools if pool.pool != COMMON_POOL)
    return free if free + oom.device_free_bytes >= oom.requested_bytes else 0


def _end_growth(device: Device) -> str:
    """Return advice against memory that grows from step to step, with the line that grows most."""
    worst = device.growing[0]
    line = innermost(worst.frames, "an unknown line")
    grown = size(worst.bytes_per_step)
    return leak_advice(worst, f"{line}, which grow by {grown} per step,")


def _crowded_layer(oom: Oom) -> str:
    """Return the name of the layer, such as `layers.0`, that alone holds most of the memory; empty if none does."""
    name, held = next(iter(oom.modules.items()), ("", 0))
    return name if name.rpartition(".")[2].isdigit() and held >= _CROWDED_SHARE * oom.allocated_bytes else ""


def abnormal_batch(oom: Oom) -> str:
    """Return a text on how many times larger than usual the inputs of the failing step are.

    It is empty unless only this step needed far more memory and its inputs are clearly larger.
    """
    return about(input_growth(oom)) if oom.pattern is OomPattern.SPIKE and input_growth(oom) else ""


def input_growth(oom: Oom) -> float:
    """Return how many times larger than in earlier steps the failing step's inputs are; 0 if not clearly larger."""
    now, usual = oom.categories["inputs"], oom.usual_inputs_bytes
    return now / usual if usual and now >= _LARGER_INPUTS_RATIO * usual else 0.0
