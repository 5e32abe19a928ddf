"""Explain the request that ran out of memory, and what would have let it succeed."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from analyzers.device_memory import FEWER_PROCESSES, Holder
from analyzers.memory.avoidable import IF_NOT_ENOUGH, WITHOUT_MORE, avoidable_advice, avoidable_uses
from analyzers.memory.categorise import Guess
from analyzers.memory.evidence import (
    BATCH,
    COMMON_POOL,
    SEQUENCE,
    about,
    advice,
    fact,
    in_words,
    innermost,
    largest,
    pool_words,
    ranks_of,
    remedy,
)
from analyzers.memory.fragmentation import defragment, is_served_by_pieces
from analyzers.memory.leaks import leak_advice
from analyzers.memory.lifetimes import Replay
from analyzers.memory.model import (
    AvoidableKind,
    CaughtRequest,
    Device,
    DifferenceKind,
    FreeBlocks,
    Growth,
    Oom,
    OomPattern,
    StepUse,
)
from analyzers.memory.phases import step_at
from analyzers.memory.rank_difference import difference_advice, difference_fact
from analyzers.memory.snapshot import Action, Category
from analyzers.memory.stacks import stack_lines
from analyzers.memory.training_loop import live_bytes_by_category
from analyzers.report import Evidence, Finding, Severity
from analyzers.words import capitalised, quantity, rank_names, share, size, uncapitalised

_BELOW_LAYER = re.compile(r"^(.*?\.\d+)\..*$")
"""Finds the layer in the name of a module: the memory of `layers.3.attention.wq` counts for `layers.3`."""
# Set by hand: a quarter above the highest step before is no ordinary variation.
_GROWN_SHARE, _SPIKE_RATIO = 0.1, 1.25
_MODULES_AT_MOST = 8
_ALLOCATIONS_AFTERWARDS = 50
"""After this many allocations the program has survived a failed request; handlers of the error make a few."""


def last_oom(replay: Replay, guess: Guess, growing: Sequence[Growth], steps: Sequence[StepUse]) -> Oom | None:
    """Return a description of the last allocation that failed; None if none failed.

    Earlier failures are left out, because the program survived them. `steps` has the memory use of the complete steps,
    with which the failing step is compared; `growing` has the stacks whose live bytes rise from step to step.
    """
    trace = replay.trace
    failed = trace.where(Action.OOM)
    if not len(failed) or survived(replay, int(failed[-1])):
        return None
    index = int(failed[-1])
    requested, allocated = int(trace.entry("size")[index]), int(replay.live_bytes[index])
    # The failing step itself has no end, or ends after the failure.
    before = [step for step in steps if step.last_entry < index]
    usual_peak = max((step.peak_bytes for step in before), default=None)
    at_peaks = live_bytes_by_category(replay, guess, np.array([step.peak_index for step in before], np.int64))
    pattern, since = _pattern_of(allocated + requested, usual_peak, growing)
    return Oom(
        modules=_bytes_by_module(replay, index),
        pattern=pattern,
        since_step=since,
        usual_peak_bytes=usual_peak,
        usual_inputs_bytes=int(at_peaks[Category.INPUTS].max()) if before else None,
        requested_bytes=requested,
        device_free_bytes=int(trace.entry("addr")[index]),  # what an `oom` entry has in place of an address
        allocated_bytes=allocated,
        reserved_bytes=int(replay.reserved[index]),
        index=index,
        step=step_at(trace, index),
        frames=stack_lines(trace.snapshot, int(trace.entry("stack")[index])),
        categories=guess.sums(replay.lifetimes, replay.lifetimes.alive(index)),
        avoidable=avoidable_uses(replay, guess, index) or msgspec.UNSET,
    )


def survived(replay: Replay, index: int) -> bool:
    """Return whether the program went on after the request that failed at this trace entry.

    It did if it then allocated often, and held at least as much memory again as when the request failed.
    """
    later = replay.trace.where(Action.ALLOC)
    later = later[later > index]
    if len(later) < _ALLOCATIONS_AFTERWARDS:
        return False
    return int(replay.live_bytes[later].max()) >= int(replay.live_bytes[index])


def caught_request(replay: Replay) -> CaughtRequest | None:
    trace = replay.trace
    failed = trace.where(Action.OOM)
    if not len(failed) or not survived(replay, index := int(failed[-1])):
        return None
    return CaughtRequest(
        requested_bytes=int(trace.entry("size")[index]),
        count=len(failed),
        index=index,
        frames=stack_lines(trace.snapshot, int(trace.entry("stack")[index])),
    )


def _pattern_of(wanted: int, usual_peak: int | None, growing: Sequence[Growth]) -> tuple[OomPattern, int | None]:
    """Return how the failing step differs from earlier steps, and the step in which growth began (None if unknown).

    `wanted` is the bytes allocated at the failure plus the bytes requested. `usual_peak` is the highest peak of earlier
    steps (None: there are none). `growing` has the stacks whose live bytes rise from step to step. Growth is checked
    first, because the last step of a leak may also look like a spike.
    """
    if growing and sum(growth.total_bytes for growth in growing) >= _GROWN_SHARE * wanted:
        return OomPattern.GROWTH, min((g.first_step for g in growing if g.first_step is not None), default=None)
    if usual_peak is None:
        return OomPattern.UNKNOWN, None
    return (OomPattern.SPIKE if wanted > _SPIKE_RATIO * usual_peak else OomPattern.STEADY), None


def _bytes_by_module(replay: Replay, index: int) -> dict[str, int]:
    """Return {module: bytes alive after the trace entry `index`}, the largest first.

    The submodules of a layer count for the layer; blocks without a label are left out.
    """
    lives = replay.lifetimes
    rows = lives.alive(index)
    total: Counter[str] = Counter()
    for label in np.unique(lives.label[rows]):
        name = replay.trace.snapshot.text(int(label))
        total[_BELOW_LAYER.sub(r"\1", name)] += int(lives.size[rows][lives.label[rows] == label].sum())
    # Unlabelled blocks are no module.
    del total[""]
    return dict(total.most_common(_MODULES_AT_MOST))


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
    if _abnormal_batch(oom):
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
    free = sum(pool.free_bytes for pool in device.fragmentation.pools if pool.pool != COMMON_POOL)
    return free if free + oom.device_free_bytes >= oom.requested_bytes else 0


def _end_growth(device: Device) -> str:
    worst = device.growing[0]
    line = innermost(worst.frames, "an unknown line")
    grown = size(worst.bytes_per_step)
    return leak_advice(device, worst, f"{line}, which grow by {grown} per step,")


def _crowded_layer(oom: Oom) -> str:
    name, held = next(iter(oom.modules.items()), ("", 0))
    return name if name.rpartition(".")[2].isdigit() and held >= _CROWDED_SHARE * oom.allocated_bytes else ""


def _abnormal_batch(oom: Oom) -> str:
    """Return a text on how many times larger than usual the inputs of the failing step are.

    It is empty unless only this step needed far more memory and its inputs are clearly larger.
    """
    return about(_input_growth(oom)) if oom.pattern is OomPattern.SPIKE and _input_growth(oom) else ""


def _input_growth(oom: Oom) -> float:
    """Return how many times larger than in earlier steps the failing step's inputs are; 0 if not clearly larger."""
    now, usual = oom.categories["inputs"], oom.usual_inputs_bytes
    return now / usual if usual and now >= _LARGER_INPUTS_RATIO * usual else 0.0


_NEAR_LIMIT_SHARE = 0.9
_LARGE_REQUEST_SHARE = 0.25
"""The share of the allocated bytes from which on a failed request has a finding of its own."""
_INPUT_LABEL = re.compile(r"input (\d+)")
_MODULES_SHOWN = _POOLS_SHOWN = 3
_WITHOUT_TENSORS = "Find out what else uses the device: `nvidia-smi` lists the processes on it and their memory."


def oom_findings(device: Device) -> Iterator[Finding]:
    """Yield the finding that an allocation failed, and a second one if one step or request was unusually large."""
    oom = device.oom
    if isinstance(device.caught, CaughtRequest):
        yield _caught_finding(device, device.caught)
    if oom is None:
        return
    yield _oom_finding(device, oom)
    if oom.pattern is OomPattern.SPIKE:
        yield _spike_finding(device, oom)
    elif oom.requested_bytes >= _LARGE_REQUEST_SHARE * max(oom.allocated_bytes, 1):
        yield _large_request_finding(device, oom)


def _caught_finding(device: Device, caught: CaughtRequest) -> Finding:
    where = f" in {innermost(caught.frames)}" if caught.frames else ""
    times = "" if caught.count == 1 else f" It is the last of {caught.count} failed requests in the recording."
    if caught.went_on_to is msgspec.UNSET:
        why = f"After it, the program allocated as much memory as before, so it caught the error.{times}"
        step = (
            "Nothing to do if the program tries what fits, as a search for the batch size or cuDNN's benchmark does."
            " But before it fails, each such request makes the allocator give back its cache, which takes time: do not"
            " repeat it in every step."
        )
    else:
        why = (
            f"A later snapshot of this rank was written after step {caught.went_on_to}: the program caught the error,"
            f" or was started again.{times}"
        )
        step = (
            "If the program left the batch out, training lacks its samples: limit the length or number of samples in a"
            " batch. If it was started again, the same step may fail again: look at what the request needed."
        )
    return Finding(
        id="memory.oom.caught",
        severity=Severity.INFO,
        title=f"A request for {size(caught.requested_bytes)} failed{where}, and the program went on",
        why=why,
        next=step,
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"the failed request is entry {caught.index} of the allocation history")],
        confidence=0.8,
    )


def _oom_finding(device: Device, oom: Oom) -> Finding:
    """Return the finding that an allocation failed: the request, the free memory, and the largest category in use."""
    category, total = largest(oom.categories)
    where = f" in {innermost(oom.frames)}" if oom.frames else ""
    title = f"Out of {_memory_name(device)}: a request for {size(oom.requested_bytes)} failed{where}"
    return Finding(
        id="memory.oom",
        severity=Severity.ERROR,
        title=f"{title}; the inputs were about {abnormal} times as large as in earlier steps"
        if (abnormal := _abnormal_batch(oom))
        else title,
        why=f"{_free_memory(device, oom)} {_what_tensors_held(oom)}",
        next=next_step(device, oom, category) if total else _WITHOUT_TENSORS,
        ranks=ranks_of(device),
        step=oom.step,
        evidence=list(_oom_evidence(device, oom)),
        confidence=1.0,
    )


def _what_tensors_held(oom: Oom) -> str:
    """Return a sentence on how much memory tensors used when a request failed, and on the largest category of them."""
    category, total = largest(oom.categories)
    if not oom.allocated_bytes:
        return "No tensor held any memory."
    return f"Tensors held {size(oom.allocated_bytes)}, {share(total, oom.allocated_bytes)} of it {in_words(category)}."


def _memory_name(device: Device) -> str:
    # Only recordings of a CPU have segments that are made up.
    if device.fragmentation.made_up_segments:
        return "host memory (CPU)"
    return f"device memory (GPU {device.device})" if device.device else "device memory (GPU)"


def _free_memory(device: Device, oom: Oom) -> str:
    """Return a sentence on how much memory was free when a request failed, and which limit this refers to."""
    free = size(oom.device_free_bytes)
    if not device.fragmentation.made_up_segments:
        return f"{f'Only {free}' if oom.device_free_bytes else 'None'} of the device's memory was free."
    if device.limit_bytes is None:
        return "The process has no memory limit of its own, so the machine or its container had no more."
    others = device.limit_bytes - oom.device_free_bytes - oom.allocated_bytes
    rest = f" Python, libraries and threads took {size(others)}." if others > 0 else ""
    limit = f"{size(device.limit_bytes)} ({_limit_words(device)})"
    return f"The process is limited to {limit}, and only {free} of this was free.{rest}"


LIMITS = {
    "RLIMIT_DATA": "RLIMIT_DATA, `ulimit -d`, which limits its data: heap, stacks and private memory maps",
    "RLIMIT_AS": "RLIMIT_AS, `ulimit -v`, which limits its address space: all that it maps, used or not",
}
"""{name of a memory limit of the process: its name with the command that shows it, and what counts towards it}."""
_UNKNOWN_LIMIT = "`ulimit -d` or `ulimit -v`: the recording does not say which"


def _limit_words(device: Device) -> str:
    return LIMITS.get(device.limit_name, _UNKNOWN_LIMIT)


def _oom_evidence(device: Device, oom: Oom) -> Iterator[Evidence]:
    """Yield the evidence of a failed allocation: request, largest category, earlier steps, inputs, modules, pools."""
    category, total = largest(oom.categories)
    request = f"requested: {size(oom.requested_bytes)}; free: {size(oom.device_free_bytes)}"
    limit = f" of {size(device.limit_bytes)}" if device.limit_bytes else ""
    yield fact(device, f"{request}{limit}", innermost(oom.frames))
    if total:
        part = share(total, oom.allocated_bytes)
        yield fact(device, f"{in_words(category)}: {size(total)} of the {size(oom.allocated_bytes)} allocated ({part})")
    if history := _step_history(oom):
        yield fact(device, history)
    if inputs := _larger_inputs(oom):
        yield fact(device, inputs)
    if oom.difference:
        yield fact(device, difference_fact(oom.difference), innermost(oom.difference.frames))
    for name, module_bytes in list(oom.modules.items())[:_MODULES_SHOWN]:
        part = f"{size(module_bytes)} of the {size(oom.allocated_bytes)} allocated"
        yield fact(device, f"{part} belong to {owner_words(name)}")
    for pool in device.fragmentation.pools[:_POOLS_SHOWN]:
        yield fact(device, _free_in_pool(pool, oom))


def owner_words(label: str) -> str:
    """Return a phrase for the owner of memory that the recorder labelled, such as `layers.0` or a parameter's name.

    The label `input 0` stands for the first argument in a call of the model, `loss` for operations outside of the
    model.
    """
    if input_number := _INPUT_LABEL.fullmatch(label):
        return f"argument {input_number[1]} of the model's forward()"
    return "operations outside of the model, such as the loss" if label == "loss" else label


def _step_history(oom: Oom) -> str:
    """Return a phrase that compares the failing step with earlier ones; empty if the trace has no earlier step."""
    usual = size(oom.usual_peak_bytes)
    match oom.pattern:
        case OomPattern.GROWTH:
            return "memory grew step by step" + (
                f", from step {oom.since_step} on" if oom.since_step is not None else ""
            )
        case OomPattern.SPIKE:
            return f"only this step needs so much: earlier steps had at most {usual} allocated"
        case OomPattern.STEADY:
            return f"every step needs so much: earlier steps had up to {usual} allocated"
        case OomPattern.UNKNOWN:
            return ""


def _larger_inputs(oom: Oom) -> str:
    growth = _input_growth(oom)
    if not growth:
        return ""
    now, usual = size(oom.categories["inputs"]), size(oom.usual_inputs_bytes)
    return f"the inputs take {now} in this step, about {about(growth)} times as much as in earlier steps ({usual})"


def _free_in_pool(free: FreeBlocks, oom: Oom) -> str:
    """Return a phrase on how much reserved memory is free in one pool, compared with the failed request."""
    too_small = free.largest_bytes < oom.requested_bytes
    return (
        f"{pool_words(free.pool)}, stream {free.stream}: {size(free.free_bytes)} free in"
        f" {quantity(free.count, 'block')}, the largest {size(free.largest_bytes)}"
        + (", smaller than the request" if too_small else "")
    )


def _spike_finding(device: Device, oom: Oom) -> Finding:
    wanted = oom.allocated_bytes + oom.requested_bytes
    return Finding(
        id="memory.oom.spike",
        severity=Severity.WARNING,
        title=f"{failing_step(device, oom)} needed at least {size(wanted)}, earlier steps at most"
        f" {size(oom.usual_peak_bytes)}",
        why=f"{_what_differs(oom)} {size(oom.allocated_bytes)} was allocated when the request for"
        f" {size(oom.requested_bytes)} failed, which makes {size(wanted)}.",
        next=_smaller_request(oom),
        ranks=ranks_of(device),
        step=oom.step,
        evidence=_spike_evidence(device, oom),
        confidence=0.7,
    )


def failing_step(device: Device, oom: Oom) -> str:
    step = "The failing step" if oom.step is None else f"Step {oom.step}"
    return f"{step} of {rank_names(ranks)}" if (ranks := ranks_of(device)) else step


def _large_request_finding(device: Device, oom: Oom) -> Finding:
    return Finding(
        id="memory.oom.spike",
        severity=Severity.WARNING,
        title=f"The request that failed is large by itself: {size(oom.requested_bytes)},"
        f" while all tensors together held {size(oom.allocated_bytes)}",
        why=f"This one request is {_part_of_allocated(oom)} all memory that was allocated at that moment."
        if oom.allocated_bytes
        else "No other memory was allocated at that moment.",
        next=_smaller_request(oom),
        ranks=ranks_of(device),
        step=oom.step,
        evidence=_spike_evidence(device, oom),
        confidence=0.7,
    )


def _part_of_allocated(oom: Oom) -> str:
    ratio = oom.requested_bytes / oom.allocated_bytes
    return f"{about(ratio)} times" if ratio > 1 else f"{share(oom.requested_bytes, oom.allocated_bytes)} of"


def _smaller_request(oom: Oom) -> str:
    where = innermost(oom.frames, "the failing operation")
    others = "Check"
    if not oom.allocated_bytes:
        others = "First see whether other processes fill the device (`nvidia-smi`), or a limit is set. If not, check"
    return (
        f"{others} the tensor shapes in {where}, where the request failed. Limit the batch size and the sequence"
        " length, or compute the batch in smaller pieces."
    )


def _what_differs(oom: Oom) -> str:
    inputs = _larger_inputs(oom)
    known = f"{capitalised(inputs)}."
    return known if inputs else "Earlier steps fitted into memory, so this step had larger inputs or kept more tensors."


def _spike_evidence(device: Device, oom: Oom) -> list[Evidence]:
    inputs = _larger_inputs(oom)
    request = fact(device, f"requested: {size(oom.requested_bytes)}; already allocated: {size(oom.allocated_bytes)}")
    return [request, *([fact(device, inputs)] if inputs else [])]


def near_limit_findings(device: Device) -> Iterator[Finding]:
    limit, peak = device.limit_bytes, device.peak_allocated_bytes
    if device.oom or not limit or peak < _NEAR_LIMIT_SHARE * limit:
        return
    category, total = largest(device.categories)
    yield Finding(
        id="memory.near_limit",
        severity=Severity.WARNING,
        title=f"Peak allocated memory is {share(peak, limit)} of the memory limit ({size(peak)} of {size(limit)})",
        why=f"At the peak {size(peak)} of {size(limit)} was allocated, so a slightly larger batch or sequence would"
        f" fail. The largest part is {in_words(category)}: {size(total)}.",
        next=remedy(device, device.categories),
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"peak: {size(peak)}, after entry {device.peak_index} of the allocation history")],
        confidence=0.9,
    )
