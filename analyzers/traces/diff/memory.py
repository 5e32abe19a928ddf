"""Compute how the memory of devices changed between two sets of traces, in total and by operator and module."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from analyzers.traces.memory_model import DeviceMemory, NamedAllocationTotals
from analyzers.traces.model import RankTrace

_CHANGES_AT_MOST = 20


class MemoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of an amount of memory from traces a to traces b, in bytes.

    `where` is a type of device (`cpu`, `cuda`). If `kind` is `most allocated`, `most reserved` or `growth a step`, the
    amount is that of the rank with the largest amount. If `kind` is `operator` or `module`, the amount is what the
    operator or module `name` allocates in a mean step of a rank, without what other operators or modules inside it
    allocate.
    """

    where: str
    kind: str
    name: str = ""
    a_bytes: float
    b_bytes: float
    change_bytes: float


def memory_changes(a: Sequence[RankTrace], b: Sequence[RankTrace]) -> list[MemoryChange]:
    """Return the changes of memory from traces `a` to traces `b`, for each type of device that both have.

    Totals come first, then operators and modules.
    """
    first, second = _by_type(a), _by_type(b)
    shared = [where for where in first if where in second]
    return [change for where in shared for change in _changes_of_type(where, first[where], second[where])]


def _by_type(accounts: Sequence[RankTrace]) -> dict[str, list[DeviceMemory]]:
    memories = defaultdict[str, list[DeviceMemory]](list)
    for memory in (memory for account in accounts for memory in account.device_memory):
        memories[memory.type].append(memory)
    return dict(memories)


def _changes_of_type(where: str, a: Sequence[DeviceMemory], b: Sequence[DeviceMemory]) -> list[MemoryChange]:
    totals = [_memory_change(where, kind, "", total(a), total(b)) for kind, total in _TOTALS.items()]
    rows = [change for change in totals if change.a_bytes or change.b_bytes]
    for kind, named in NAMED.items():
        before, after = _allocated_by_name(named, a), _allocated_by_name(named, b)
        both = [
            _memory_change(where, kind, name, before.get(name, 0.0), after.get(name, 0.0)) for name in before | after
        ]
        changed = sorted((row for row in both if row.change_bytes), key=lambda row: -abs(row.change_bytes))
        rows += changed[:_CHANGES_AT_MOST]
    return rows


def _memory_change(where: str, kind: str, name: str, a: float, b: float) -> MemoryChange:
    return MemoryChange(where=where, kind=kind, name=name, a_bytes=a, b_bytes=b, change_bytes=b - a)


def growth(memories: Sequence[DeviceMemory]) -> float:
    """Return the growth of memory in bytes per step, on the device with the largest growth; 0 without steps."""
    known = [memory.steps for memory in memories if memory.steps]
    return max(((steps[-1].end_bytes - steps[0].start_bytes) / len(steps) for steps in known), default=0.0)


_TOTALS: dict[str, Callable[[Sequence[DeviceMemory]], float]] = {
    "most allocated": lambda memories: max(memory.peak.bytes for memory in memories),
    "most reserved": lambda memories: max(m.reserved_peak.bytes if m.reserved_peak else 0 for m in memories),
    "growth a step": growth,
}
NAMED: dict[str, Callable[[DeviceMemory], Sequence[NamedAllocationTotals]]] = {
    "operator": lambda memory: memory.operators,
    "module": lambda memory: memory.modules,
}


def _allocated_by_name(
    named: Callable[[DeviceMemory], Sequence[NamedAllocationTotals]], memories: Sequence[DeviceMemory]
) -> dict[str, float]:
    """Return {operator or module: bytes that it allocates directly in a step}, as a mean over the steps of all devices.

    `memories` has the memory of each device. `named` is a function that returns the operators or modules in one of
    them. A recording without steps counts as one step.
    """
    total = defaultdict[str, int](int)
    for row in (row for memory in memories for row in named(memory)):
        total[row.name] += row.own_allocated_bytes
    steps = sum(max(1, len(memory.steps)) for memory in memories)
    return {name: size / steps for name, size in total.items()}
