"""Write the findings that an allocation failed, or that the peak came close to the memory limit."""

import re
from collections.abc import Iterator

from analyzers.memory.findings.evidence import about, fact, in_words, innermost, largest, pool_words, ranks_of
from analyzers.memory.findings.oom_advice import abnormal_batch, input_growth, next_step
from analyzers.memory.findings.rank_difference import difference_fact
from analyzers.memory.findings.remedies import remedy
from analyzers.memory.model import CaughtRequest, Device, FreeBlocks, Oom, OomPattern
from analyzers.report import Evidence, Finding, Severity
from analyzers.words import capitalised, quantity, rank_names, share, size

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
    """Return the finding that the program survived failed requests."""
    where = f" in {innermost(caught.frames)}" if caught.frames else ""
    times = "" if caught.count == 1 else f" It is the last of {caught.count} failed requests in the recording."
    return Finding(
        id="memory.oom.caught",
        severity=Severity.INFO,
        title=f"A request for {size(caught.requested_bytes)} failed{where}, and the program went on",
        why=f"After it, the program allocated as much memory as before, so it caught the error.{times}",
        next="Nothing to do if the program tries what fits, as a search for the batch size or cuDNN's benchmark does."
        " But before it fails, each such request makes the allocator give back its cache, which takes time: do not"
        " repeat it in every step.",
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
        if (abnormal := abnormal_batch(oom))
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
    """Return the name of the memory that ran out: the host's for a recording on a CPU, or else the device's."""
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
    """Return which limit of a process its memory limit is, how to see it, and what counts towards it."""
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
    """Return a phrase on how much larger the inputs of the failing step are than usual; empty if they are not."""
    growth = input_growth(oom)
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
    """Return the finding that the failing step needed far more memory than the steps before it."""
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
    """Return the name of the step in which a request failed, such as `Step 6 of rank 3`, as far as it is known."""
    step = "The failing step" if oom.step is None else f"Step {oom.step}"
    return f"{step} of {rank_names(ranks)}" if (ranks := ranks_of(device)) else step


def _large_request_finding(device: Device, oom: Oom) -> Finding:
    """Return the finding that the failed request is unusually large by itself."""
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
    """Return the size of a failed request relative to what the text names next: `31 % of`, or `2.3 times`."""
    ratio = oom.requested_bytes / oom.allocated_bytes
    return f"{about(ratio)} times" if ratio > 1 else f"{share(oom.requested_bytes, oom.allocated_bytes)} of"


def _smaller_request(oom: Oom) -> str:
    """Return advice on how to make the failed request smaller."""
    where = innermost(oom.frames, "the failing operation")
    others = "Check"
    if not oom.allocated_bytes:
        others = "First see whether other processes fill the device (`nvidia-smi`), or a limit is set. If not, check"
    return (
        f"{others} the tensor shapes in {where}, where the request failed. Limit the batch size and the sequence"
        " length, or compute the batch in smaller pieces."
    )


def _what_differs(oom: Oom) -> str:
    """Return a sentence on how the failing step differs from earlier steps, as far as that is known."""
    inputs = _larger_inputs(oom)
    known = f"{capitalised(inputs)}."
    return known if inputs else "Earlier steps fitted into memory, so this step had larger inputs or kept more tensors."


def _spike_evidence(device: Device, oom: Oom) -> list[Evidence]:
    """Return the evidence on an unusually large step or request: requested and allocated bytes, and larger inputs."""
    inputs = _larger_inputs(oom)
    request = fact(device, f"requested: {size(oom.requested_bytes)}; already allocated: {size(oom.allocated_bytes)}")
    return [request, *([fact(device, inputs)] if inputs else [])]


def near_limit_findings(device: Device) -> Iterator[Finding]:
    """Yield a finding if the peak came close to the memory limit and no allocation failed."""
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
