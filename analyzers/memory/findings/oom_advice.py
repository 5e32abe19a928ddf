"""Choose the advice on a failed request: first the change that would have satisfied it, judged by the recording."""

from analyzers.device_memory import FEWER_PROCESSES, Holder
from analyzers.memory.difference_model import DifferenceKind
from analyzers.memory.findings.evidence import about, innermost
from analyzers.memory.findings.fragmentation import defragment, would_have_served
from analyzers.memory.findings.leak import LEAK_CAUSES
from analyzers.memory.findings.rank_difference import difference_advice
from analyzers.memory.findings.remedies import BATCH, SEQUENCE, advice, remedy, saving_by
from analyzers.memory.model import Device, Oom, OomPattern, Remedy
from analyzers.words import size, uncapitalised

LARGER_INPUTS_RATIO = 1.5
CROWDED_SHARE = 0.7
"""If one layer holds at least this share of the allocated bytes, recomputing it would need as much memory again."""
# Checkpointing computes the activations of one layer at a time again: those of one layer must fit in any case.
ONE_LAYER = (
    f"Use a smaller batch ({BATCH}) or sequence ({SEQUENCE}). Activation checkpointing would not help: {{module}} alone"
    " needs {held} of activations at once."
)
REMOVABLE = (DifferenceKind.NO_RECOMPUTATION, DifferenceKind.OUTSIDE)
"""Differences without which the rank needs what the others need, so that nothing else must change."""
IF_INTENDED = "If that cannot change:"
CHECK_BATCH = (
    "First check why the failing step's batch is so large (collation, packing, long samples that are not"
    " truncated), and cap the sequence length. If the size is intended:"
)


def next_step(device: Device, oom: Oom, category: str) -> str:
    """Return what to do about a failed request, as sentences; `category` takes most of the memory.

    Memory that grows, and what differs from the other ranks or from earlier steps, come first, because they would fill
    any memory. Then come changes that alone would have satisfied the request. Last comes a reduction of the largest
    category.
    """
    module = crowded_layer(oom) if category == "activations" else ""
    of_layer = ONE_LAYER.format(module=module, held=size(oom.modules[module])) if module else ""
    less = of_layer or remedy(device, oom.categories)
    if oom.difference and oom.pattern is not OomPattern.GROWTH:
        first = difference_advice(device.rank or 0, oom, oom.difference)
        return first if oom.difference.kind in REMOVABLE else f"{first} {IF_INTENDED} {uncapitalised(less)}"
    if abnormal_batch(oom):
        return f"{CHECK_BATCH} {uncapitalised(of_layer or f'{advice(device, category)}.')}"
    if oom.pattern is OomPattern.GROWTH and device.growing:
        return f"{end_growth(device)} A smaller batch only delays the failure."
    enough = serving_advice(device, oom)
    return f"{enough} If another request fails then: {uncapitalised(less)}" if enough else less


def serving_advice(device: Device, oom: Oom) -> str:
    """Return the change that would have satisfied the failed request as it is, in sentences; empty if none is known."""
    if is_served_by_pieces(device, oom):
        return f"{defragment(device)} The free memory together was enough for this request."
    others = sum(part.low_bytes for part in device.account if part.holder is Holder.OTHER_PROCESSES)
    if others + oom.device_free_bytes >= oom.requested_bytes and others:
        return f"{FEWER_PROCESSES}. Other processes use at least {size(others)}."
    return ""


def is_served_by_pieces(device: Device, oom: Oom) -> bool:
    """Return whether free memory was enough but fragmented, and no estimate contradicts expandable segments."""
    free = device.fragmentation.decisive
    if free is None or not would_have_served(free, oom.requested_bytes):
        return False
    saving = saving_by(device, Remedy.EXPANDABLE_SEGMENTS)
    return saving is None or saving.frees_bytes + oom.device_free_bytes >= oom.requested_bytes


def end_growth(device: Device) -> str:
    """Return advice against memory that grows from step to step, with the line that grows most."""
    worst = device.growing[0]
    line = innermost(worst.frames, "an unknown line")
    grown = size(worst.bytes_per_step)
    return f"Find what keeps the tensors of {line} alive: they grow by {grown} per step. {LEAK_CAUSES}"


def crowded_layer(oom: Oom) -> str:
    """Return the name of the layer, such as `layers.0`, that alone holds most of the memory; empty if none does."""
    name, held = next(iter(oom.modules.items()), ("", 0))
    return name if name.rpartition(".")[2].isdigit() and held >= CROWDED_SHARE * oom.allocated_bytes else ""


def abnormal_batch(oom: Oom) -> str:
    """Return a text on how many times larger than usual the inputs of the failing step are.

    It is empty unless only this step needed far more memory and its inputs are clearly larger.
    """
    return about(input_growth(oom)) if oom.pattern is OomPattern.SPIKE and input_growth(oom) else ""


def input_growth(oom: Oom) -> float:
    """Return how many times larger than in earlier steps the failing step's inputs are; 0 if not clearly larger."""
    now, usual = oom.categories["inputs"], oom.usual_inputs_bytes
    return now / usual if usual and now >= LARGER_INPUTS_RATIO * usual else 0.0
