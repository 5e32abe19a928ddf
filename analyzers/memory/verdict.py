"""Write the verdict on the memory of a run: one class of problem, the ranks concerned, and one sentence."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

import msgspec

from analyzers.device_memory import (
    Holder,
    is_large,
    nccl_words,
    part_text,
    untracked_advice,
    untracked_reason,
    untracked_title,
    would_fit,
)
from analyzers.memory.diff import Diff, Instant
from analyzers.memory.evidence import ADVICE, fact, in_words, innermost, largest, rank_subject, ranks_of
from analyzers.memory.fragmentation import fragmentation_findings, unused_memory_findings
from analyzers.memory.leaks import leak_advice
from analyzers.memory.model import Device, Growth, MemoryClass, MissingEvidence, Oom
from analyzers.memory.oom import near_limit_findings, oom_findings
from analyzers.memory.peak import peak_findings
from analyzers.memory.rank_difference import difference_clause
from analyzers.report import Evidence, Finding, Severity, Status, Verdict, status_of
from analyzers.words import percent_change, quantity, rank_names, share, size, uncapitalised

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


def _trust_findings(device: Device) -> Iterator[Finding]:
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
    with_stack = sum(stack.bytes for stack in device.top_stacks if stack.category == "unknown" and stack.frames)
    how_many = f"{size(unknown - with_stack)} of it has no stack" if with_stack else "none of them has a stack"
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
        evidence=[*(fact(device, part_text(part)) for part in device.account), *communicators(device)],
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


_CLASSES = (MemoryClass.OOM, MemoryClass.LEAK, MemoryClass.FRAGMENTATION, MemoryClass.NEAR_LIMIT)
"""The classes in order of priority; `oom` is first, because a leak or fragmentation may be why memory ran out."""
_CONFIDENCE_IF_HEALTHY, _CONFIDENCE_PER_MISSING, _CONFIDENCE_AT_LEAST = 0.9, 0.2, 0.2

MISSING = {
    MissingEvidence.HISTORY: "a history of allocations (only the state at the snapshot is known)",
    MissingEvidence.STACKS: "stacks (no entry has frames)",
    MissingEvidence.TIMES: "times (no entry has one)",
    MissingEvidence.SEGMENTS: "segments (blocks older than the trace that were never freed cannot be seen)",
    MissingEvidence.OLDEST_ENTRIES: "the oldest entries (the ring buffer overflowed: raise max_entries)",
    MissingEvidence.ORIGIN_OF_OLDER_BLOCKS: "where blocks older than the first entry were allocated",
    MissingEvidence.SOME_ENTRIES: "some entries (the replay does not end at the blocks of the snapshot)",
    MissingEvidence.FAILING_STEP: "the allocations of the failing step (the recorder had left that step out)",
}


def verdict(devices: Sequence[Device], findings: Sequence[Finding]) -> Verdict:
    """Return the verdict: the first class in `_CLASSES` that has a finding; if there is none, healthy or unknown."""
    present = {finding.id: finding for finding in findings}
    kind = next((kind for kind in _CLASSES if finding_id(kind) in present), None)
    if kind is None:
        return _quiet_verdict(devices, findings)
    finding = present[finding_id(kind)]
    subject = subject_of(devices, finding.ranks, finding.evidence[0].source if finding.evidence else "")
    sentence = (
        _oom_sentence(devices, present) if kind is MemoryClass.OOM else f"{subject}: {uncapitalised(finding.title)}"
    )
    return Verdict(
        status=status_of(findings),
        kind=kind,
        ranks=finding.ranks,
        sentence=_oom_sentence(devices, present) if kind is MemoryClass.OOM else sentence,
        confidence=finding.confidence,
        missing=missing_evidence(devices),
    )


def finding_id(kind: str) -> str:
    return f"memory.{kind}"


def _quiet_verdict(devices: Sequence[Device], findings: Sequence[Finding]) -> Verdict:
    missing = missing_evidence(devices)
    recorded = [device for device in devices if _has_history(device)]
    if not recorded:
        held = any(device.reserved_bytes for device in devices)
        empty = "the snapshot is empty: memory history was not being recorded"
        return Verdict(
            status=Status.UNKNOWN,
            kind=MemoryClass.UNKNOWN,
            sentence=state_sentence(devices) if held else empty,
            confidence=_CONFIDENCE_AT_LEAST if held else 0.0,
            missing=missing,
        )
    status, peak = status_of(findings), _peak_clause(recorded, devices)
    # A device without a history that holds nothing was not used.
    unrecorded = [device for device in devices if device.reserved_bytes and not _has_history(device)]
    return Verdict(
        status=Status.UNKNOWN if unrecorded and status is Status.OK else status,
        kind=MemoryClass.UNKNOWN if unrecorded else MemoryClass.HEALTHY,
        sentence=(
            f"no failure is recorded: {peak}; {_unrecorded_clause(devices, unrecorded)}"
            if unrecorded
            else f"nothing failed: {peak}"
        ),
        confidence=max(_CONFIDENCE_AT_LEAST, _CONFIDENCE_IF_HEALTHY - _CONFIDENCE_PER_MISSING * len(missing)),
        missing=missing,
    )


def _has_history(device: Device) -> bool:
    return MissingEvidence.HISTORY not in device.missing


def state_sentence(devices: Sequence[Device]) -> str:
    fullest = max(devices, key=lambda device: device.end_allocated_bytes)
    subject = _subject_with_device(devices, fullest)
    return (
        f"{subject} holds {size(fullest.end_allocated_bytes)} allocated of {size(fullest.reserved_bytes)} reserved;"
        " without a history of allocations it is unknown whether memory ran out, leaked or peaked higher"
    )


def _unrecorded_clause(devices: Sequence[Device], unrecorded: Sequence[Device]) -> str:
    """Return a clause on the devices in `unrecorded`, of which only the state at the snapshot is known."""
    unknown = "no history of allocations, so what happened there is unknown"
    if len(unrecorded) == 1:
        return f"{_subject_with_device(devices, unrecorded[0])} has {unknown}"
    files, unrecorded_files = (len({device.path for device in some}) for some in (devices, unrecorded))
    of_files = f"{unrecorded_files} of {files} snapshots"
    counted = of_files if unrecorded_files > 1 else f"{len(unrecorded)} of {len(devices)} devices"
    ranks = sorted({rank for device in unrecorded for rank in ranks_of(device)})
    named = f" ({rank_names(ranks)})" if ranks else ""
    return f"{counted}{named} have {unknown}"


def _peak_clause(recorded: Sequence[Device], devices: Sequence[Device]) -> str:
    """Return a clause on the highest peak: which device has it, how many bytes, and the largest category of them.

    `recorded` are the devices in `devices` that have a history of allocations.
    """
    fullest = max(recorded, key=lambda device: device.peak_allocated_bytes)
    category, total = largest(fullest.categories)
    peak = fullest.peak_allocated_bytes
    subject = _subject_with_device(devices, fullest)
    return f"{subject} peaked at {size(peak)}, {share(total, peak)} of it {in_words(category)}"


def subject_of(devices: Sequence[Device], ranks: Sequence[int], path: str) -> str:
    """Return the subject of the verdict's sentence: the ranks, such as `rank 3`.

    If no rank is known and `devices` come from several files, the subject is the file name of `path`.
    """
    several = len({device.path for device in devices}) > 1
    return PurePath(path).name if path and several and not ranks else rank_subject(ranks)


def _subject_with_device(devices: Sequence[Device], fullest: Device) -> str:
    subject = subject_of(devices, ranks_of(fullest), fullest.path)
    others = [device for device in devices if device.path == fullest.path and device.device != fullest.device]
    return f"{subject} on device {fullest.device} (of {len(others) + 1})" if others else subject


def _oom_sentence(devices: Sequence[Device], present: Mapping[str, Finding]) -> str:
    """Return the verdict's sentence for an OOM: which rank, when, where, the request, and what used most of the memory.

    `present` has the findings by id.
    """
    ranks = present[finding_id(MemoryClass.OOM)].ranks
    path, oom = next((device.path, device.oom) for device in devices if device.oom)
    leak = present.get(finding_id(MemoryClass.LEAK))
    difference = f"; {difference_clause(oom.difference)}" if oom.difference and not leak else ""
    return (
        f"{subject_of(devices, ranks, path)} ran out of memory{_when_and_where(oom)}:"
        f" it requested {size(oom.requested_bytes)} with {size(oom.device_free_bytes)} free;"
        f" {_allocated_share(oom)}{difference}"
        + (f"; {uncapitalised(leak.title)}" if leak and set(leak.ranks) & set(ranks) else "")
    )


def _allocated_share(oom: Oom) -> str:
    """Return a clause on the largest category when a request failed: its share of the memory of all tensors."""
    category, total = largest(oom.categories)
    if not oom.allocated_bytes:
        return "no tensor held any memory"
    return f"{share(total, oom.allocated_bytes)} of the {size(oom.allocated_bytes)} allocated is {in_words(category)}"


def _when_and_where(oom: Oom) -> str:
    step = "" if oom.step is None else f" at step {oom.step}"
    return step + (f" in {innermost(oom.frames)}" if oom.frames else "")


def missing_evidence(devices: Sequence[Device]) -> list[str]:
    """Return, as phrases, the missing evidence that would have made the verdict more certain."""
    # A dict keeps the order of first mention and drops repetitions.
    recorded = dict.fromkeys(MISSING[lack] for device in devices for lack in device.missing)
    wanted = {
        "exact categories (these are guessed from stacks and lifetimes)": any(
            not device.categories_exact for device in devices
        ),
        "the memory limit of the device": not any(device.limit_bytes or device.oom for device in devices),
    }
    return [*recorded, *(evidence for evidence, lacks in wanted.items() if lacks)]


def device_findings(device: Device) -> Iterator[Finding]:
    yield from oom_findings(device)
    yield from fragmentation_findings(device)
    yield from peak_findings(device)
    yield from unused_memory_findings(device)
    yield from untracked_findings(device)
    yield from near_limit_findings(device)
    yield from _trust_findings(device)


# A smaller change is noise: caches, workspaces and the order of frees differ between two equal runs.
_NOISE_SHARE, _NOISE_BYTES = 0.05, 1 << 20
_GROUPS_SHOWN = 3
_STATES = {"went": "is gone"}
"""{state of a group of blocks: words for it in a sentence}, for a state that is not a verb of a sentence."""


def comparison_findings(
    diff: Diff, a: Instant, b: Instant, device: Device | None, leak: Growth | None
) -> list[Finding]:
    """Return a list with the finding that the peak changed; empty if the change is no more than noise.

    The rank and step of the finding are those of `b`, the second of the two compared states. `leak` is what grows from
    step to step on `device` if both are snapshots of one run (None: they are not, or nothing does).
    """
    if abs(diff.bytes) < max(_NOISE_BYTES, _NOISE_SHARE * diff.a_bytes):
        return []
    grew = diff.bytes > 0
    most = (max if grew else min)(diff.categories, key=lambda change: change.bytes)
    verb, category = "grew" if grew else "shrank", in_words(most.what)
    title = f"Peak allocated memory {verb} by {size(abs(diff.bytes))}"
    leaking_line = innermost(leak.frames, "an unknown line") if grew and leak else ""
    mostly = f" from step {a.artefact.step} to step {b.artefact.step}, in {leaking_line}" if leaking_line else ""
    if_intended = f"If the growth is intended: {uncapitalised(ADVICE[most.what])}."
    return [
        Finding(
            id=f"compare.memory.{verb}",
            severity=Severity.WARNING if grew else Severity.INFO,
            title=title + (mostly or f", mostly {category}"),
            why=f"The peak went from {size(diff.a_bytes)} to {size(diff.b_bytes)}"
            f" ({percent_change(diff.a_bytes, diff.b_bytes)}), {category} from {size(most.a_bytes)} to"
            f" {size(most.b_bytes)}.",
            next=leak_advice(device, leak, leaking_line)
            if device and leak and leaking_line
            else f"Look at the modules and lines in the evidence: they grew most. {if_intended}"
            if grew
            else "Nothing to do; the evidence lists the modules and lines that shrank most.",
            ranks=[] if b.artefact.rank is None else [b.artefact.rank],
            step=b.artefact.step,
            evidence=evidence(diff, b, grew=grew),
            confidence=0.9,
        )
    ]


def evidence(diff: Diff, b: Instant, *, grew: bool) -> list[Evidence]:
    """Return the modules and lines that changed most: those that grew if `grew` is true, or else those that shrank."""
    most = [*diff.modules[:_GROUPS_SHOWN], *diff.lines[:_GROUPS_SHOWN]]
    return [
        Evidence(
            text=f"{change.what} {_STATES.get(change.state, change.state)}: {size(change.a_bytes)} ->"
            f" {size(change.b_bytes)}",
            source=str(b.artefact.path),
        )
        for change in most
        if change.bytes and (change.bytes > 0) == grew
    ]
