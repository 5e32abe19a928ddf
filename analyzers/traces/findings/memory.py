"""What is worth knowing about the memory that devices held while a trace was recorded."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from analyzers.report import Finding, Severity
from analyzers.traces.findings.findings import FACTS_AT_MOST, finding
from analyzers.traces.memory_structs import DeviceMemory, MemoryMoment, UnfreedMemory
from analyzers.traces.structs import RankTrace
from analyzers.words import duration_ns, quantity, share, size

STEPS_AT_LEAST, STEPS_ENOUGH = 3, 5
GROWTH_BYTES, GROWTH_PART = 1 << 20, 0.01
"""Least growth of a step that is told: so many bytes, or that part of the peak."""
EVEN = 2
"""Times the least growth that the largest may be, where so few steps as `STEPS_AT_LEAST` are to convince."""
UNUSED_BYTES, UNUSED_PART, UNUSED_OF_DEVICE = 64 << 20, 0.3, 0.1
NEAR_LIMIT = 0.9


def memory_findings(account: RankTrace) -> Iterator[Finding]:
    """The findings of one account's memory."""
    for memory in account.device_memory:
        growth = growths(memory)
        if len(growth) >= STEPS_AT_LEAST and grows(growth, memory.peak.bytes):
            yield growth_finding(account, memory, growth)
        unused = memory.reserved_peak.bytes - memory.peak.bytes if memory.reserved_peak else 0
        if memory.reserved_peak and unused > max(UNUSED_BYTES, UNUSED_PART * memory.reserved_peak.bytes):
            yield unused_finding(account, memory, memory.reserved_peak, unused)
        if memory.total_bytes and held(memory) > NEAR_LIMIT * memory.total_bytes:
            yield limit_finding(account, memory, memory.total_bytes)


def growths(memory: DeviceMemory) -> list[int]:
    """By how much each step began with more than the one before, and the last one ended with."""
    begins = [step.start_bytes for step in memory.steps]
    return [after - before for before, after in pairwise([*begins, *(step.end_bytes for step in memory.steps[-1:])])]


def grows(growth: Sequence[int], peak: int) -> bool:
    return min(growth) >= min(GROWTH_BYTES, max(1, GROWTH_PART * peak))


def growth_finding(account: RankTrace, memory: DeviceMemory, growth: Sequence[int]) -> Finding:
    sure = len(growth) >= STEPS_ENOUGH or max(growth) <= EVEN * min(growth)
    mean = sum(growth) / len(growth)
    left = (memory.total_bytes or 0) - held(memory)
    room = f" At this pace the device is full in {left // mean:.0f} steps." if left > 0 else ""
    return finding(
        account,
        "trace.memory_grows",
        f"Memory of {name(memory)} grows in each of {len(growth)} profiled steps, by {size(mean)} on average",
        f"{size(memory.steps[0].start_bytes)} were allocated when the first one began,"
        f" {size(memory.steps[-1].end_bytes)} when the last one ended.{room}",
        "Look at what was never freed: a tensor that is kept with its graph (use .detach() or .item()), or a list that"
        " nobody empties.",
        severity=Severity.WARNING if sure else Severity.INFO,
        confidence=0.8 if sure else 0.5,
        facts=[
            "steps: " + ", ".join(f"{amount / (1 << 20):+.2f} MiB" for amount in growth[:FACTS_AT_MOST]),
            *(f"never freed: {told(kept)}" for kept in memory.unfreed[:FACTS_AT_MOST]),
        ],
    )


def unused_finding(account: RankTrace, memory: DeviceMemory, reserved: MemoryMoment, unused: int) -> Finding:
    matters = memory.total_bytes and unused > UNUSED_OF_DEVICE * memory.total_bytes
    return finding(
        account,
        "trace.memory_unused",
        f"{share(unused, reserved.bytes)} of what {name(memory)} reserved was never allocated at once",
        f"{size(reserved.bytes)} were reserved, at most {size(memory.peak.bytes)} allocated: the rest is kept"
        " from an earlier peak, or lies in pieces that fit nothing.",
        "A memory snapshot tells which; expandable_segments:True helps against pieces.",
        severity=Severity.WARNING if matters else Severity.INFO,
        confidence=0.7,
        facts=[f"most allocated: {where(account, memory.peak)}"],
    )


def limit_finding(account: RankTrace, memory: DeviceMemory, total: int) -> Finding:
    return finding(
        account,
        "trace.memory_near_limit",
        f"{name(memory).capitalize()} holds {share(held(memory), total)} of its memory at the peak",
        f"{size(held(memory))} of {size(total)}: a longer batch, or pieces that fit nothing, end the job.",
        "Recompute activations, shard further, or make the batch smaller; see which modules allocate most.",
        severity=Severity.WARNING,
        confidence=0.9,
        facts=[f"most allocated: {where(account, memory.peak)}"],
    )


def held(memory: DeviceMemory) -> int:
    """Most that the device had given away."""
    return max(memory.peak.bytes, memory.reserved_peak.bytes if memory.reserved_peak else 0)


def name(memory: DeviceMemory) -> str:
    return "the host" if memory.type == "cpu" else f"{memory.type} device {memory.device}"


def where(account: RankTrace, moment: MemoryMoment) -> str:
    """How much, in which step, by what."""
    begin = next((step.start_ns for step in account.step_times if step.step == moment.step), None)
    step = f" in step {moment.step}, {duration_ns(moment.at_ns - begin)} after it began" if begin is not None else ""
    return f"{size(moment.bytes)}{step}, {moment.phase}: {place(moment.operator, moment.module, moment.line)}"


def told(kept: UnfreedMemory) -> str:
    """`2 allocations, 3.0 MiB: aten::mm, Linear_0, train.py(12): step`."""
    return f"{quantity(kept.count, 'allocation')}, {size(kept.bytes)}: {place(kept.operator, kept.module, kept.line)}"


def place(*parts: str) -> str:
    return ", ".join(part for part in parts if part) or "outside of all operators"
