"""Two sets of traces: what devices held at most, and how much operators and modules allocate a step."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from analyzers.traces.memory_structs import DeviceMemory, NamedAllocationTotals
from analyzers.traces.structs import RankTrace

CHANGES_AT_MOST = 20


class MemoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes in both. `where` is a type of device ("cpu", "cuda"), the fullest of all ranks.

    `kind`: "most allocated", "most reserved", "growth a step"; "operator" and "module", of that name: allocated in a
    mean step of a rank, without what is called.
    """

    where: str
    kind: str
    name: str = ""
    a_bytes: float
    b_bytes: float
    change_bytes: float


def memory_changes(a: Sequence[RankTrace], b: Sequence[RankTrace]) -> list[MemoryChange]:
    """For each type of device that both tell of, the totals, then what allocates more or less, most first."""
    first, second = by_type(a), by_type(b)
    shared = [where for where in first if where in second]
    return [one for where in shared for one in of_type(where, first[where], second[where])]


def by_type(accounts: Sequence[RankTrace]) -> dict[str, list[DeviceMemory]]:
    found = defaultdict[str, list[DeviceMemory]](list)
    for memory in (memory for account in accounts for memory in account.device_memory):
        found[memory.type].append(memory)
    return dict(found)


def of_type(where: str, a: Sequence[DeviceMemory], b: Sequence[DeviceMemory]) -> list[MemoryChange]:
    totals = [change(where, kind, "", total(a), total(b)) for kind, total in TOTALS.items()]
    found = [one for one in totals if one.a_bytes or one.b_bytes]
    for kind, named in NAMED.items():
        before, after = per_step(named, a), per_step(named, b)
        both = (change(where, kind, name, before.get(name, 0.0), after.get(name, 0.0)) for name in before | after)
        found += sorted((one for one in both if one.change_bytes), key=lambda one: -abs(one.change_bytes))[
            :CHANGES_AT_MOST
        ]
    return found


def change(where: str, kind: str, name: str, a: float, b: float) -> MemoryChange:
    return MemoryChange(where=where, kind=kind, name=name, a_bytes=a, b_bytes=b, change_bytes=b - a)


def growth(memories: Sequence[DeviceMemory]) -> float:
    known = [one.steps for one in memories if one.steps]
    return max(((steps[-1].end_bytes - steps[0].start_bytes) / len(steps) for steps in known), default=0.0)


TOTALS: dict[str, Callable[[Sequence[DeviceMemory]], float]] = {
    "most allocated": lambda memories: max(one.peak.bytes for one in memories),
    "most reserved": lambda memories: max(one.reserved_peak.bytes if one.reserved_peak else 0 for one in memories),
    "growth a step": growth,
}
NAMED: dict[str, Callable[[DeviceMemory], Sequence[NamedAllocationTotals]]] = {
    "operator": lambda memory: memory.operators,
    "module": lambda memory: memory.modules,
}


def per_step(
    named: Callable[[DeviceMemory], Sequence[NamedAllocationTotals]], memories: Sequence[DeviceMemory]
) -> dict[str, float]:
    """What each name allocates itself in a mean step; a recording without steps counts as one."""
    total = defaultdict[str, int](int)
    for one in (one for memory in memories for one in named(memory)):
        total[one.name] += one.own_allocated_bytes
    steps = sum(max(1, len(memory.steps)) for memory in memories)
    return {name: size / steps for name, size in total.items()}
