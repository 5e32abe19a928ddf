"""Compute how the memory of devices changed between two sets of traces, in total and by operator and module."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec

from analyzers import store
from analyzers.report import Evidence, Finding, Severity
from analyzers.run import Artefact
from analyzers.traces.loading import load
from analyzers.traces.model import DeviceMemory, NamedAllocationTotals, RankTrace, StepTime
from analyzers.words import duration_change_ns, duration_ns, percent, quantity

_MEMORY_CHANGES_AT_MOST = 20


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
        rows += changed[:_MEMORY_CHANGES_AT_MOST]
    return rows


def _memory_change(where: str, kind: str, name: str, a: float, b: float) -> MemoryChange:
    return MemoryChange(where=where, kind=kind, name=name, a_bytes=a, b_bytes=b, change_bytes=b - a)


def growth(memories: Sequence[DeviceMemory]) -> float:
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
    """Return {operator or module: bytes that it allocates directly in a step}, as a mean over the steps of all
    devices.
    """
    total = defaultdict[str, int](int)
    for row in (row for memory in memories for row in named(memory)):
        total[row.name] += row.own_allocated_bytes
    steps = sum(max(1, len(memory.steps)) for memory in memories)
    return {name: size / steps for name, size in total.items()}


# Compute by how much a step changed between two sets of traces, in which part, and in which kernels and operators.
#
# All times are means over steps and ranks, so that runs of different lengths can be compared. The changes of the
# parts add up to the change of the step.
#
# Example: a step took 100 ms (computing 80, exposed communication 15, idle 5) and now takes 130 ms (80, 45, 5). The
# parts change by 0, +30 and 0 ms, which add up to +30 ms. The list of kernels shows the reason:
# `ncclDevKernel_AllGather` runs twice as often and takes 28 ms more (manner: more calls).

_CHANGES_AT_MOST = 30
# Relative change of one kernel, in time or number, below which it counts as unchanged: about what repeated runs of one
# job differ by.
_CHANGE_AT_LEAST = 0.02


class StepPart(StrEnum):
    """A part of the wall time of a step; the parts add up to the step.

    `before and behind the work` is the time of the step before its first and after its last kernel or copy. It is
    negative if the work goes on after the end of the step. `idle between work` is the time between these two without
    any work.
    """

    COMPUTING = "computing"
    EXPOSED_COMMUNICATION = "exposed communication"
    EXPOSED_COPIES = "exposed copies"
    IDLE = "idle between work"
    OUTSIDE_WORK = "before and behind the work"


class Manner(StrEnum):
    """The way in which a kernel, operator, module or phase changed.

    For example, `more of them` means that it ran more often, and `slower` that each run took longer.
    """

    APPEARED = "appeared"
    VANISHED = "vanished"
    MORE = "more of them"
    FEWER = "fewer of them"
    SLOWER = "slower"
    FASTER = "faster"


_PART_NS: dict[StepPart, Callable[[StepTime], int]] = {
    StepPart.COMPUTING: lambda step: step.compute_ns,
    StepPart.EXPOSED_COMMUNICATION: lambda step: step.exposed_communication_ns,
    StepPart.EXPOSED_COPIES: lambda step: step.exposed_memory_ns,
    StepPart.IDLE: lambda step: step.idle_ns,
    # Negative where work outlasts the step that launched it.
    StepPart.OUTSIDE_WORK: lambda step: step.dur_ns - step.span_ns,
}


class PartChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one part of a step (`what`) from traces a to traces b.

    `a_ns` and `b_ns` are its durations in ns, as means over all steps and ranks.
    """

    what: StepPart
    a_ns: float
    b_ns: float
    change_ns: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one kernel, operator, module or phase from traces a to traces b.

    `kind` says which of the four it is, and `how` in which way it changed. `a_ns` and `b_ns` are its times per step, in
    ns, and `a_count` and `b_count` how often it ran per step: all are means over steps and ranks.
    """

    kind: str
    name: str
    how: Manner
    a_ns: float
    b_ns: float
    change_ns: float
    a_count: float
    b_count: float


class TraceDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a step from traces a to traces b; all times are in ns, as means over all steps and ranks.

    `ranks` are the compared ranks, and `a_steps` and `b_steps` the numbers of recorded steps. `step_a_ns` and
    `step_b_ns` are the durations of a step. `parts` divides the change of the step into parts that add up to it.
    `changes` has the largest changes of kernels, operators, modules and phases. `memory` is empty unless allocations
    were recorded in both sets of traces.
    """

    ranks: list[int | None]
    a_steps: int
    b_steps: int
    step_a_ns: float
    step_b_ns: float
    parts: list[PartChange]
    changes: list[Change]
    memory: list[MemoryChange] = []


def compare(a: Sequence[Artefact], b: Sequence[Artefact], options: store.Options | None = None) -> TraceDiff | None:
    """Return the changes from the traces `a` to the traces `b`, on the ranks that both have.

    If the two sides have no rank in common, all ranks of each side are used. The result is None if no trace of one side
    can be read.
    """
    sides = [[recording.account for recording in load(side, options or store.Options())[0]] for side in (a, b)]
    common_ranks = {account.rank for account in sides[0]} & {account.rank for account in sides[1]}
    if common_ranks:
        sides = [[account for account in side if account.rank in common_ranks] for side in sides]
    return diff(*sides) if all(sides) else None


def diff(a: Sequence[RankTrace], b: Sequence[RankTrace]) -> TraceDiff:
    """Return the changes from traces `a` to traces `b`; both have a `RankTrace` for each device or host."""
    steps = [[step for account in side for step in steps_of(account)] for side in (a, b)]
    return TraceDiff(
        ranks=sorted({account.rank for account in a}, key=lambda rank: -1 if rank is None else rank),
        a_steps=len(steps[0]),
        b_steps=len(steps[1]),
        step_a_ns=mean(step.dur_ns for step in steps[0]),
        step_b_ns=mean(step.dur_ns for step in steps[1]),
        parts=[_part_change(part, *(mean(map(part_ns, side)) for side in steps)) for part, part_ns in _PART_NS.items()],
        changes=[change for kind, listing in _LISTINGS.items() for change in changes(kind, listing, (a, b))],
        memory=memory_changes(a, b),
    )


def steps_of(account: RankTrace) -> list[StepTime]:
    """Return the steps of a device or host; a recording without step marks counts as one step."""
    if account.step_times:
        return account.step_times
    whole = {name: getattr(account, name, 0) for name in StepTime.__struct_fields__}
    return [msgspec.convert(whole | {"name": "", "dur_ns": account.span_ns}, StepTime)]


def _part_change(part: StepPart, a: float, b: float) -> PartChange:
    return PartChange(what=part, a_ns=a, b_ns=b, change_ns=b - a)


def mean(values: Iterable[int]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.0


Listing = Callable[[RankTrace], Iterable[tuple[str, int, int]]]
# (name, ns, count) of everything of a kind in an account.
_LISTINGS: dict[str, Listing] = {
    "kernel": lambda a: [(k.name, k.total_ns, k.count) for k in a.kernels],
    "operator": lambda a: [(o.name, o.own_ns if a.device is None else o.device_ns, o.count) for o in a.operators],
    "module": lambda a: [(m.name, m.host_ns if a.device is None else m.device_ns, m.count) for m in a.modules],
    "phase": lambda a: [(p.name, p.busy_ns, p.events) for p in a.phases],
}


def changes(kind: str, listing: Listing, sides: tuple[Sequence[RankTrace], Sequence[RankTrace]]) -> list[Change]:
    """Return the changes of all kernels, operators, modules or phases (`kind`), the largest change of time first.

    `listing` is a function that returns (name, ns, count) of each of them for one device or host. `sides` are the two
    sets of traces. Changes below 2 % are left out.
    """
    first, second = (_mean_step(listing, side) for side in sides)
    rows = []
    for name in first | second:
        before, after = first.get(name, (0.0, 0.0)), second.get(name, (0.0, 0.0))
        if abs(after[0] - before[0]) > _CHANGE_AT_LEAST * max(before[0], after[0]):
            rows.append(
                Change(
                    kind=kind,
                    name=name,
                    how=_manner(before, after),
                    a_ns=before[0],
                    b_ns=after[0],
                    change_ns=after[0] - before[0],
                    a_count=before[1],
                    b_count=after[1],
                )
            )
    return sorted(rows, key=lambda change: -abs(change.change_ns))[:_CHANGES_AT_MOST]


def _mean_step(listing: Listing, side: Sequence[RankTrace]) -> dict[str, tuple[float, float]]:
    """Return {name: (ns, count) per step} of kernels, operators, modules or phases, as means over all steps.

    `listing` is a function that returns (name, ns, count) of each of them for one device or host. `side` is the set of
    traces.
    """
    total, count = defaultdict[str, int](int), defaultdict[str, int](int)
    for account in side:
        for name, spent, times in listing(account):
            total[name] += spent
            count[name] += times
    steps = sum(len(steps_of(account)) for account in side)
    return {name: (total[name] / steps, count[name] / steps) for name in total}


def _manner(before: tuple[float, float], after: tuple[float, float]) -> Manner:
    """Return how a kernel, operator, module or phase changed, from its (ns, count) per step before and after.

    A change of the number of calls is reported first, because it explains the change of time.
    """
    if not before[1]:
        return Manner.APPEARED
    if not after[1]:
        return Manner.VANISHED
    if abs(after[1] - before[1]) > _CHANGE_AT_LEAST * before[1]:
        return Manner.MORE if after[1] > before[1] else Manner.FEWER
    return Manner.SLOWER if after[0] > before[0] else Manner.FASTER


# Relative growth of a mean step that is worth a finding, and that is a warning where both sides have several steps.
_INFO_FROM, _WARNING_FROM = 0.05, 0.1
STEPS_AT_LEAST = 3
_KERNELS_AT_MOST, _NAME_AT_MOST = 5, 80


def step_change_finding(diff: TraceDiff) -> Finding | None:
    """Return the finding that a traced step takes longer in run b than in run a; None if it did not grow by much."""
    growth = diff.step_b_ns - diff.step_a_ns
    if growth <= _INFO_FROM * diff.step_a_ns:
        return None
    certain = growth > _WARNING_FROM * diff.step_a_ns and min(diff.a_steps, diff.b_steps) >= STEPS_AT_LEAST
    largest = max(diff.parts, key=lambda part: part.change_ns)
    parts = ", ".join(f"{part.what} {duration_change_ns(part.change_ns)}" for part in diff.parts if part.change_ns)
    slower = [change for change in diff.changes if change.kind == "kernel" and change.change_ns > 0]
    return Finding(
        id="compare.trace",
        severity=Severity.WARNING if certain else Severity.INFO,
        title=f"A traced step takes {percent(growth / diff.step_a_ns)} longer in run b than in run a, most of it"
        f" {largest.what}",
        why=f"The mean step takes {duration_ns(diff.step_a_ns)} in run a ({quantity(diff.a_steps, 'step')}) and"
        f" {duration_ns(diff.step_b_ns)} in run b ({quantity(diff.b_steps, 'step')}). The change by part: {parts}.",
        next="Start with the kernels that grew most, which the evidence lists. `workbench trace` on each of the two"
        " runs shows the operators and source lines that launch them.",
        evidence=[
            Evidence(text=f"{change.name[:_NAME_AT_MOST]}: {change.how}, {duration_change_ns(change.change_ns)} a step")
            for change in slower[:_KERNELS_AT_MOST]
        ],
        confidence=0.8 if certain else 0.4,
    )
