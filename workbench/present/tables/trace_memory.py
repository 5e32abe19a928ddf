"""Tables of the memory of a traced rank's devices, for traces that recorded allocations."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from analyzers.traces.kernel_names import user_function
from analyzers.words import duration_ns, size
from workbench.present.table import Table, table
from workbench.present.tables.trace_rank import rank_suffix

if TYPE_CHECKING:
    from analyzers.traces.memory_model import (
        Allocation,
        DeviceMemory,
        NamedAllocationTotals,
        StepMemory,
        UnfreedMemory,
    )
    from analyzers.traces.model import RankTrace

_ROWS = 8


def memory_tables(rank: "RankTrace") -> list[Table]:
    """Return the tables of the memory of each traced device; empty if allocations were not recorded."""
    return [devices(rank), *(section for memory in rank.device_memory for section in _device_tables(rank, memory))]


def devices(rank: "RankTrace") -> Table:
    """Return a table of each device's peak memory, and the operator and module that were running at the peak."""
    rows = (
        (
            device_name(memory),
            size(memory.start_bytes),
            size(memory.peak.bytes),
            memory.peak.step,
            memory.peak.phase,
            user_function(memory.peak.operator),
            user_function(memory.peak.module),
            size(memory.reserved_peak.bytes) if memory.reserved_peak else "not recorded",
            size(memory.end_bytes),
            size(memory.unfreed_bytes),
        )
        for memory in rank.device_memory
    )
    peak = "peak> | in step> | phase | operator | module | peak reserved>"
    heads = f"device | at the start> | {peak} | at the end> | never freed>"
    return table(f"Memory during the recording{rank_suffix(rank)}", heads, rows)


def _device_tables(rank: "RankTrace", memory: "DeviceMemory") -> list[Table]:
    """Return the memory tables of one device."""
    suffix = f", {device_name(memory)}{rank_suffix(rank)}"
    return [
        totals(f"Memory by operator{suffix}", memory.operators),
        totals(f"Memory by module{suffix}", memory.modules),
        totals(f"Memory by function in user code{suffix}", memory.lines),
        totals(f"Memory by phase{suffix}", memory.phases),
        steps(f"Memory by step{suffix}", memory.steps),
        largest(f"Largest allocations{suffix}", memory.largest),
        _never_freed(f"Memory never freed during the recording{suffix}", memory.unfreed),
    ]


def totals(title: str, items: "Iterable[NamedAllocationTotals]") -> Table:
    """Return a table of the memory allocated inside each operator, module, function or phase.

    The "own" columns exclude memory that was allocated by operators called inside.
    """
    rows = (
        (
            user_function(item.name),
            item.allocations,
            size(item.allocated_bytes),
            size(item.net_bytes),
            size(item.own_allocated_bytes),
            size(item.own_net_bytes),
        )
        for item in items
    )
    heads = "name | allocations> | allocated> | net> | own allocated> | own net>"
    return table(title, heads, rows, _ROWS)


def steps(title: str, items: "Iterable[StepMemory]") -> Table:
    """Return a table of the allocated memory at the start, peak and end of each step, and its growth over the step."""
    rows = (
        (
            step.step,
            size(step.start_bytes),
            size(step.peak_bytes),
            size(step.peak_reserved_bytes) if step.peak_reserved_bytes else "not recorded",
            size(step.end_bytes),
            size(step.end_bytes - step.start_bytes),
            step.allocations,
            size(step.allocated_bytes),
        )
        for step in items
    )
    heads = "step> | at the start> | peak> | peak reserved> | at the end> | growth> | allocations> | allocated>"
    return table(title, heads, rows, _ROWS)


def largest(title: str, items: "Iterable[Allocation]") -> Table:
    """Return a table of the largest allocations and their lifetimes."""
    rows = (
        (
            size(allocation.bytes),
            allocation.step,
            allocation.phase,
            user_function(allocation.operator),
            user_function(allocation.module),
            user_function(allocation.line),
            "not freed" if allocation.lifetime_ns is None else duration_ns(allocation.lifetime_ns),
        )
        for allocation in items
    )
    return table(title, "size> | step> | phase | operator | module | function | lifetime>", rows, _ROWS)


def _never_freed(title: str, items: "Iterable[UnfreedMemory]") -> Table:
    """Return a table of the source lines that allocated memory which was not freed before the recording ended."""
    rows = (
        (size(k.bytes), k.count, user_function(k.operator), user_function(k.module), user_function(k.line))
        for k in items
    )
    return table(title, "size> | allocations> | operator | module | function", rows, _ROWS)


def device_name(memory: "DeviceMemory") -> str:
    """Return the name of a device, such as `cuda 0`; the host CPU has no number."""
    return memory.type if memory.device is None else f"{memory.type} {memory.device}"
