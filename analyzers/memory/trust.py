"""Write findings about how far the numbers of a snapshot can be trusted."""

from collections.abc import Iterator

import msgspec

from analyzers.device_memory import (
    Holder,
    in_words,
    is_large,
    nccl_words,
    untracked_advice,
    untracked_reason,
    untracked_title,
    would_fit,
)
from analyzers.memory.evidence import fact, innermost, ranks_of
from analyzers.memory.model import Device, MissingEvidence
from analyzers.report import Evidence, Finding, Severity
from analyzers.words import quantity, share, size

_UNKNOWN_SHARE = 0.5
_STACKS_SHOWN = 3


_WITHOUT_STACK = (
    "These blocks have no stack: most often they are older than the recording, or stacks were not recorded.",
    "Call torch.cuda.memory._record_memory_history() before the model is created: then every allocation has a stack.",
)
_WITHOUT_STACK_ON_CPU = (
    _WITHOUT_STACK[0],
    (
        "Create the `workbench.recorders.MemoryRecorder` right after the model and the optimizer, and put"
        " `with recorder.step(N):` around each whole step: then every later allocation has a stack."
    ),
)
_UNTOLD = (
    "Most of these blocks have a stack, but it contains no forward or backward pass, no optimizer and no collective.",
    (
        "Run `workbench inspect` on this file with `--breakdown`, which lists the lines that allocated most. Or start"
        " the job with `workbench launch -- COMMAND`, which records the category of each block."
    ),
)
"""The reason why blocks with stacks are of unknown category, and the advice on it.

`_WITHOUT_STACK` is the same for blocks without stacks, and `_WITHOUT_STACK_ON_CPU` for those of a CPU.
"""


def trust_findings(device: Device) -> Iterator[Finding]:
    """Yield a finding if the trace contradicts the snapshot, and one if most of the peak is of unknown category."""
    if MissingEvidence.HISTORY in device.missing and device.reserved_bytes:
        yield _state_finding(device)
    if not device.consistent:
        yield _inconsistent_finding(device)
    elif device.exceeds_segments:
        yield _impossible_peak_finding(device)
    unknown = device.categories["unknown"]
    if device.peak_allocated_bytes and unknown > _UNKNOWN_SHARE * device.peak_allocated_bytes:
        yield uncategorised_finding(device, unknown)


def _state_finding(device: Device) -> Finding:
    """Return the finding that a snapshot shows one moment only."""
    return Finding(
        id="memory.state_only",
        severity=Severity.INFO,
        title="The snapshot has the memory of one moment, without a history of allocations",
        why="Without a history nobody can say when memory was fullest, what was freed, and whether it grows.",
        next="To see that, call torch.cuda.memory._record_memory_history(max_entries=100000) when the job starts, and"
        " torch.cuda.memory._dump_snapshot() after a few steps or where memory runs out.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"device {device.device}: {quantity(device.entries, 'entry')} of history")],
        confidence=1.0,
    )


def _inconsistent_finding(device: Device) -> Finding:
    """Return the finding that the bytes at the end of the trace differ from those of the snapshot's list of blocks."""
    return Finding(
        id="memory.inconsistent",
        severity=Severity.WARNING,
        title="The allocation history does not end with the blocks of the snapshot, so sizes over time are approximate",
        why=f"The history of {device.entries} allocations and frees ends with {size(device.end_allocated_bytes)}"
        f" allocated{listed(device)}. Most likely entries are missing from the history: newer versions of"
        " PyTorch leave entries out of it if `skip_actions` is passed.",
        next="If you passed `skip_actions` to torch.cuda.memory._record_memory_history, record again without it. In"
        " this recording, take all sizes over time as approximate.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"device {device.device}: {sums(device)}")],
        confidence=1.0,
    )


def sums(device: Device) -> str:
    """Return a text with the bytes at the end of the history, the bytes of the list of blocks, and the difference."""
    end = f"allocated at the end of the history: {size(device.end_allocated_bytes)}"
    if isinstance(device.listed_bytes, msgspec.UnsetType):
        return end
    apart = size(abs(device.listed_bytes - device.end_allocated_bytes))
    return f"{end}; sum of the list of blocks: {size(device.listed_bytes)}; difference: {apart}"


def _impossible_peak_finding(device: Device) -> Finding:
    peak, reserved = size(device.peak_allocated_bytes), size(device.peak_reserved_bytes)
    return Finding(
        id="memory.inconsistent",
        severity=Severity.WARNING,
        title="The allocation history does not fit into the segments of the snapshot, so sizes over time are"
        " approximate",
        why=f"The history of {device.entries} allocations and frees peaks at {peak} allocated, but by the list of"
        f" segments the allocator never had more than {reserved}. Entries are missing, or the file was changed.",
        next="Record again, without `skip_actions` (an argument of torch.cuda.memory._record_memory_history). In this"
        " recording, take all sizes over time as approximate.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"device {device.device}: peak {peak} allocated, {reserved} reserved")],
        confidence=1.0,
    )


def _has_stacks(device: Device) -> bool:
    unknown = [stack for stack in device.top_stacks if stack.category == "unknown"]
    return sum(stack.bytes if stack.frames else -stack.bytes for stack in unknown) > 0


def _unknown_stacks(device: Device) -> Iterator[Evidence]:
    """Yield the stacks that allocated most of the bytes of unknown category at the peak, as evidence."""
    unknown = [stack for stack in device.top_stacks if stack.category == "unknown" and stack.frames]
    for stack in unknown[:_STACKS_SHOWN]:
        text = f"of unknown category: {size(stack.bytes)} in {quantity(stack.count, 'block')}"
        yield fact(device, text, innermost(stack.frames))


def listed(device: Device) -> str:
    """Return a clause with the bytes of the snapshot's list of blocks; empty if they are not recorded.

    The clause states the difference in bytes instead if both sums round to the same text, such as 3.0 GiB.
    """
    if isinstance(device.listed_bytes, msgspec.UnsetType):
        return ""
    by_list = size(device.listed_bytes)
    if by_list == size(device.end_allocated_bytes):
        apart = device.listed_bytes - device.end_allocated_bytes
        by_list = f"{quantity(abs(apart), 'byte')} {'more' if apart > 0 else 'less'}"
    return f", but the list of blocks in the same file shows {by_list}"


def uncategorised_finding(device: Device, unknown: int) -> Finding:
    """Return the finding that most of the peak, `unknown` bytes, is of unknown category.

    Without a history of allocations there is no peak; the finding is then about the memory allocated at the snapshot.
    """
    peak = device.peak_allocated_bytes
    without_stack = _WITHOUT_STACK_ON_CPU if device.fragmentation.made_up_segments else _WITHOUT_STACK
    reason, advice = _UNTOLD if _has_stacks(device) else without_stack
    what = "allocated memory" if MissingEvidence.HISTORY in device.missing else "peak allocated memory"
    return Finding(
        id="memory.uncategorised",
        severity=Severity.INFO,
        title=f"{share(unknown, peak)} of {what} is of unknown category: {size(unknown)} of {size(peak)}",
        why="The category of a block (parameters, activations, ...) is derived from the stack that allocated it."
        f" {reason} The breakdown by category covers only the other blocks.",
        next=advice,
        ranks=ranks_of(device),
        step=device.step,
        evidence=[*_unknown_stacks(device)] if _has_stacks(device) else [_without_stacks(device, unknown)],
        confidence=1.0,
    )


def _without_stacks(device: Device, unknown: int) -> Evidence:
    told = sum(stack.bytes for stack in device.top_stacks if stack.category == "unknown" and stack.frames)
    how_many = f"{size(unknown - told)} of it has no stack" if told else "none of them has a stack"
    return fact(device, f"blocks of unknown category: {size(unknown)}; {how_many}")


def untracked_findings(device: Device) -> Iterator[Finding]:
    """Yield a finding if a large part of the device's memory is outside PyTorch's allocator.

    The finding is a warning if a failed request would have fitted into that part.
    """
    if not is_large(device.account):
        return
    process = device.nccl or None
    decisive = device.oom is not None and would_fit(device.account, device.oom.requested_bytes)
    yield Finding(
        id="memory.untracked",
        severity=Severity.WARNING if decisive else Severity.INFO,
        title=untracked_title(device.account),
        why=untracked_reason(device.account, decisive=decisive),
        next=untracked_advice(device.account, process),
        ranks=ranks_of(device),
        step=device.step,
        evidence=[*(fact(device, in_words(part)) for part in device.account), *communicators(device)],
        confidence=0.6,
    )


def communicators(device: Device) -> Iterator[Evidence]:
    """Yield the communicators with their buffers if NCCL's log has them, else the number of process groups.

    The number comes with the largest size that one of them can have on average.
    """
    if device.nccl:
        yield from (fact(device, text) for text in nccl_words(device.nccl))
        return
    groups = device.nccl_groups or 0
    holders = (Holder.LIBRARIES, Holder.OUTSIDE)
    for part in device.account if groups else ():
        if part.holder in holders:
            each = size(part.high_bytes // groups)
            yield fact(
                device,
                f"this rank is in {quantity(groups, 'process group')} of NCCL: on average at most {each} for each",
            )
