"""Write the finding about several devices of one process that work one after the other."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from os.path import commonpath
from pathlib import PurePath

import msgspec

from analyzers.report import Finding, Severity
from analyzers.traces.evidence import account_finding, lacks_kernels, less_fragmentation, times_fact
from analyzers.traces.model import DeviceMemory, MemoryMoment, RankTrace, UnfreedMemory
from analyzers.words import duration_ns, quantity, rank_ranges, share, size, size_change

_IDLE_AT_LEAST = 0.2
"""The share of its time that each device must wait for others, with kernels launched already."""
_TOGETHER_AT_MOST = 1.2
"""The sum of the devices' times at work over the longest recording of one, up to which they hardly work at once.

It is more than 1 even if they never do, because the recordings of the devices begin and end at different turns.
"""


def devices_in_turn(accounts: Sequence[RankTrace]) -> Iterator[Finding]:
    """Yield a finding for each process whose devices wait for one another, as in a model that is spread over them.

    Example: each of two devices works for 50 of 100 ms and waits for the other one for 50 ms, although its kernels were
    launched already. The sum of their times at work, 100 ms, is the time recorded.
    """
    by_process = defaultdict[tuple[str, int | None], list[RankTrace]](list)
    for account in accounts:
        if account.device is not None and account.span_ns and not lacks_kernels(account):
            by_process[account.path, account.rank].append(account)
    for devices in by_process.values():
        span = max(account.span_ns for account in devices)
        together = sum(account.busy_ns for account in devices) > _TOGETHER_AT_MOST * span
        wait = all(account.idle_dependency_ns > _IDLE_AT_LEAST * account.span_ns for account in devices)
        if len(devices) > 1 and wait and not together:
            yield _turns_finding(devices, span)


def _turns_finding(devices: Sequence[RankTrace], span: int) -> Finding:
    rank, busiest = devices[0].rank, max(account.busy_ns for account in devices)
    whose = "" if rank is None else f" of rank {rank}"
    numbers = rank_ranges(account.device for account in devices if account.device is not None)
    return Finding(
        id="trace.devices_in_turn",
        severity=Severity.WARNING,
        title=f"The devices {numbers}{whose} work one after the other: none has work for more than"
        f" {share(busiest, span)} of the time",
        why="Each of them waits with kernels that were launched already, and they hardly ever work at once: parts of"
        " the model are on several devices of one process, and each part needs the result of the one before.",
        next="Split the batch into microbatches that go through the devices as a pipeline"
        " (torch.distributed.pipelining), or run one process per device with FSDP. If the model fits on one device, use"
        " DDP, or only that device.",
        ranks=[] if rank is None else [rank],
        evidence=[
            times_fact(account, f"; {duration_ns(account.idle_dependency_ns)} of it with kernels launched")
            for account in devices
        ],
        confidence=0.8,
    )


STEPS_AT_LEAST, _STEPS_CERTAIN = 3, 5
_FACTS_AT_MOST = 5
# Least growth of each step that is reported: so many bytes, or that part of the peak if this is less.
_GROWTH_BYTES, _GROWTH_SHARE = 1 << 20, 0.01
# How many times the least growth the largest may be, where as few steps as `STEPS_AT_LEAST` make a warning.
_EVEN_FACTOR = 2
# Unused memory that is reported: more than so many bytes, that part of what is reserved, and, if the size of the
# device's memory is known, that part of it; and from which part of the device's memory on it is a warning.
_UNUSED_BYTES, _UNUSED_SHARE, _UNUSED_OF_DEVICE, _WARNING_OF_DEVICE = 512 << 20, 0.3, 0.01, 0.1
NEAR_LIMIT = 0.9


def memory_findings(account: RankTrace) -> Iterator[Finding]:
    for memory in account.device_memory:
        growth = _step_growth(memory)
        if len(growth) >= STEPS_AT_LEAST and grows(growth, memory.peak.bytes):
            yield growth_finding(account, memory, growth)
        reserved = memory.reserved_peak
        unused = reserved.bytes - memory.peak.bytes if reserved else 0
        if reserved and unused > _least_unused(memory, reserved):
            yield _unused_finding(account, memory, reserved, unused)
        if memory.total_bytes and _most_bytes(memory) > NEAR_LIMIT * memory.total_bytes:
            yield _limit_finding(account, memory, memory.total_bytes)


def _least_unused(memory: DeviceMemory, reserved: MemoryMoment) -> float:
    """Return the number of unused bytes from which a finding is reported: less memory could not hold a larger batch."""
    return max(_UNUSED_BYTES, _UNUSED_SHARE * reserved.bytes, _UNUSED_OF_DEVICE * (memory.total_bytes or 0))


def _step_growth(memory: DeviceMemory) -> list[int]:
    """Return by how many bytes memory grew in each step, from its start to the start of the next step.

    For the last step, the growth up to its own end counts.
    """
    starts = [step.start_bytes for step in memory.steps]
    return [after - before for before, after in pairwise([*starts, *(step.end_bytes for step in memory.steps[-1:])])]


def grows(growth: Sequence[int], peak: int) -> bool:
    """Return whether memory grew in every step, by enough to matter.

    A leak grows in every step; a cache that fills up does not. `growth` has the bytes by which memory grew in each
    step, `peak` is the most memory in use, in bytes.
    """
    return min(growth) >= min(_GROWTH_BYTES, max(1, _GROWTH_SHARE * peak))


def growth_finding(account: RankTrace, memory: DeviceMemory, growth: Sequence[int]) -> Finding:
    certain = len(growth) >= _STEPS_CERTAIN or max(growth) <= _EVEN_FACTOR * min(growth)
    mean = sum(growth) / len(growth)
    free = (memory.total_bytes or 0) - _most_bytes(memory)
    forecast = f" At this rate the device is full in {free // mean:.0f} steps." if free > 0 else ""
    return account_finding(
        account,
        "trace.memory_grows",
        f"Memory of {device_name(memory)} grows in each of the {len(growth)} profiled steps, by {size(mean)} on"
        " average",
        f"Allocated memory rose from {size(memory.steps[0].start_bytes)} at the start of the first step to"
        f" {size(memory.steps[-1].end_bytes)} at the end of the last one.{forecast}",
        "Find what is kept from step to step; the evidence names the lines that allocate it. Common causes are a"
        " loss or metric that keeps its autograd graph (use .detach() or .item()), and a list or cache that is never"
        " cleared.",
        severity=Severity.WARNING if certain else Severity.INFO,
        confidence=0.8 if certain else 0.5,
        facts=[
            "growth in each step: " + ", ".join(size_change(amount) for amount in growth[:_FACTS_AT_MOST]),
            *(
                f"allocated and not freed by the end: {_unfreed_fact(unfreed)}"
                for unfreed in memory.unfreed[:_FACTS_AT_MOST]
            ),
        ],
        with_times=False,
    )


def _unused_finding(account: RankTrace, memory: DeviceMemory, reserved: MemoryMoment, unused: int) -> Finding:
    name, total = device_name(memory), memory.total_bytes
    large = total and unused > _WARNING_OF_DEVICE * total
    return account_finding(
        account,
        "trace.memory_unused",
        f"{size(unused)} of the memory that PyTorch reserved on {name} ({share(unused, reserved.bytes)} of it) was not"
        " used by tensors during the recording",
        f"PyTorch's allocator had reserved {size(reserved.bytes)}, but tensors used at most {size(memory.peak.bytes)}"
        f" of it at the same time. The other {size(unused)} was reserved for an earlier peak, or is lost to"
        " fragmentation; other processes cannot use it.",
        "If you need this memory, record a memory snapshot and run `workbench inspect` on it: it shows whether an"
        f" earlier peak or fragmentation is the reason. {less_fragmentation(account)}",
        severity=Severity.WARNING if large else Severity.INFO,
        confidence=0.7,
        facts=[
            f"highest reserved size: {size(reserved.bytes)}{f' of the {size(total)} of {name}' if total else ''}",
            f"highest allocated size: {_moment_fact(account, memory.peak)}",
        ],
        with_times=False,
    )


def _limit_finding(account: RankTrace, memory: DeviceMemory, total: int) -> Finding:
    name, most = device_name(memory), _most_bytes(memory)
    held = "reserved by PyTorch" if most > memory.peak.bytes else "allocated"
    return account_finding(
        account,
        "trace.memory_near_limit",
        f"{name[:1].upper()}{name[1:]} uses {share(most, total)} of its memory at the peak",
        f"{size(most)} of {size(total)} are {held}, so a slightly longer sequence or a little fragmentation would end"
        " the job with an out-of-memory error.",
        "Enable activation checkpointing, shard over more ranks, or use a smaller batch. The memory tables of"
        " `workbench trace` show which modules allocate most.",
        severity=Severity.WARNING,
        confidence=0.9,
        facts=[f"highest allocated size: {_moment_fact(account, memory.peak)}"],
        with_times=False,
    )


def _most_bytes(memory: DeviceMemory) -> int:
    return max(memory.peak.bytes, memory.reserved_peak.bytes if memory.reserved_peak else 0)


def device_name(memory: DeviceMemory) -> str:
    kind = memory.type.upper() if memory.type in ("cuda", "hip", "xpu", "mtia") else memory.type
    return "the host (CPU)" if memory.type == "cpu" else f"{kind} device {memory.device}"


def _moment_fact(account: RankTrace, moment: MemoryMoment) -> str:
    begin = next((step.start_ns for step in account.step_times if step.step == moment.step), None)
    step = f" in step {moment.step}, {duration_ns(moment.at_ns - begin)} after its start" if begin is not None else ""
    phase = "" if moment.phase == "other" else f", {moment.phase}"
    return f"{size(moment.bytes)}{step}{phase}, reached in {_code_names(moment.operator, moment.module, moment.line)}"


def _unfreed_fact(unfreed: UnfreedMemory) -> str:
    """Return a text on how much memory was not freed, and where it was allocated.

    Example: `2 allocations, 3.0 MiB, in aten::mm, Linear_0, train.py(12): step`.
    """
    allocations = quantity(unfreed.count, "allocation")
    return f"{allocations}, {size(unfreed.bytes)}, in {_code_names(unfreed.operator, unfreed.module, unfreed.line)}"


def _code_names(*names: str) -> str:
    return ", ".join(name for name in names if name) or "code outside of all operators"


def with_folders(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; where the first facts of several files are about the same, the file's folder is added.

    Example: `rank 0, CPU, step 10: 1.62 s recorded` becomes `rank 0, CPU, step 10, in job_a: 1.62 s recorded`.
    """
    files: dict[tuple[str, int | None, str], set[str]] = {}
    for finding in findings:
        for fact in finding.evidence[:1]:
            files.setdefault((finding.id, fact.rank, fact.where or fact.text), set()).add(fact.source)
    return [_with_folder(finding, files) for finding in findings]


def _with_folder(finding: Finding, files: dict[tuple[str, int | None, str], set[str]]) -> Finding:
    """Return a finding; if the first facts of several files are about the same, its own names the file's folder.

    `files` is {(id of a finding, rank, and what a first fact is about or says): paths of the files}.
    """
    if not finding.evidence:
        return finding
    first, *others = finding.evidence
    same = files[finding.id, first.rank, first.where or first.text]
    if len(same) < 2 or "" in same:
        return finding
    folder = PurePath(first.source).relative_to(commonpath(sorted(same))).parts[0]
    where = ", ".join(filter(None, [first.where, f"in {folder}"]))
    return msgspec.structs.replace(finding, evidence=[msgspec.structs.replace(first, where=where), *others])
