"""Find the code that allocated and freed memory in a trace, what the peak was, and which memory was never freed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.traces.columns import NONE, OTHER, PHASE_NAMES, NestedEvents, Work, innermost_at, innermost_selected
from analyzers.traces.costs import Attribution
from analyzers.traces.model import (
    Allocation,
    DeviceMemory,
    MemoryMoment,
    NamedAllocationTotals,
    StepMemory,
    UnfreedMemory,
)
from analyzers.traces.reading.numbering import combined_codes, rows_by_value
from analyzers.traces.reading.trace import HOST_LANE, OPS, Trace

# Names of the device types that PyTorch numbers (c10/core/DeviceType.h).
TYPES = {
    0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 18: "ipu", 19: "mtia", 20: "privateuse1",
}  # fmt: skip
CPU = 0


@dataclass(frozen=True)
class Allocator:
    """The allocations and frees of one device, or of the host, in order of time, as its allocator reported them.

    Arrays have one entry for each allocation or free. `rows` are their rows in the columns `memory_...` of the trace.
    `type` is PyTorch's number of the device type; `number` is the number of the device, None for a host.
    """

    trace: Trace
    type: int
    number: int | None
    rows: Integers

    @property
    def type_name(self) -> str:
        return TYPES.get(self.type, f"device type {self.type}")

    @property
    def name(self) -> str:
        """The name of the device, such as `cuda 0`, or `cpu` for a host."""
        return self.type_name if self.number is None else f"{self.type_name} {self.number}"

    @property
    def on_host(self) -> bool:
        return self.type == CPU

    def column(self, name: str) -> Integers:
        """Return the column `memory_{name}` of the trace for the allocations and frees of this device, as int64.

        The trace's columns may be narrower than int64, so that differences of bytes and times could overflow.
        """
        return self.trace.columns[f"memory_{name}"][self.rows].astype(np.int64)

    @cached_property
    def at(self) -> Integers:
        return self.column("at")

    @cached_property
    def change(self) -> Integers:
        """For each allocation or free, the change of allocated bytes: positive for allocations, negative for frees."""
        return self.column("bytes")

    @cached_property
    def totals_recorded(self) -> bool:
        return bool((self.column("allocated") > 0).any())

    @cached_property
    def allocated(self) -> Integers:
        """For each allocation or free, how many bytes are allocated on the device after it.

        Bytes allocated before the recording are included. The totals that the recorder wrote are used. Where a total is
        missing, the changes since the last total are added to that total. If there is no total at all, the bytes at the
        start are assumed to be the least number that keeps the curve from falling below zero.
        """
        summed = np.cumsum(self.change)
        if not self.totals_recorded:
            return summed - min(0, int(summed.min()))
        totals = self.column("allocated")
        known = _latest_known(totals >= 0)
        return totals[known] + summed - summed[known]

    @cached_property
    def before(self) -> int:
        return int(self.allocated[0] - self.change[0])

    @cached_property
    def reserved(self) -> Integers:
        """For each allocation or free, the bytes reserved by the allocator from the driver after it.

        The values are 0 if the recorder did not write them.
        """
        totals = self.column("reserved")
        return totals[_latest_known(totals >= 0)] if (totals > 0).any() else np.zeros_like(totals)

    @cached_property
    def free_of(self) -> Integers:
        """For each allocation, the index of the free that ended it; NONE if it was never freed. For each free, NONE."""
        # Sorted by address and, as the sort is stable, by time: an allocation's free is the next event.
        address = self.column("address")
        order = np.argsort(address, kind="stable")
        here, then = order[:-1], order[1:]
        pairs = (address[here] == address[then]) & (address[here] != 0) & (self.change[here] > 0)
        pairs &= self.change[then] < 0
        free_of = np.full(len(order), NONE)
        free_of[here[pairs]] = then[pairs]
        return free_of

    @cached_property
    def unfreed(self) -> Integers:
        """The indices of the allocations that were not freed in the recording.

        Allocations without a recorded address are left out, as their frees cannot be found.
        """
        return np.flatnonzero((self.change > 0) & (self.free_of == NONE) & (self.column("address") != 0))

    def most_between(self, edges: Integers) -> tuple[Integers, Integers]:
        """Return two arrays: the maximum of allocated bytes, and of reserved bytes, between successive `edges` (ns)."""
        index = np.searchsorted(self.at, edges)
        # An interval begins with what was allocated before it. Every second maximum lies between two intervals.
        pairs = np.column_stack([index[:-1], index[1:] + 1]).ravel()
        totals = np.append(self.before, self.allocated), np.append(self.reserved[0], self.reserved)
        allocated, reserved = (np.maximum.reduceat(np.append(total, total[-1]), pairs)[::2] for total in totals)
        return allocated, reserved

    def allocated_before(self, moment: int) -> int:
        index = int(np.searchsorted(self.at, moment))
        return int(self.allocated[index - 1]) if index else self.before


def _latest_known(known: Mask) -> Integers:
    """Return, for each index of a mask, the nearest index at or before it whose value is True.

    An index before the first True gets the index of the first True. Example: False, True, False, True give 1, 1, 1, 3.
    """
    indices = np.flatnonzero(known)
    return indices[np.maximum(np.searchsorted(indices, np.arange(len(known)), side="right") - 1, 0)]


def allocators(trace: Trace) -> list[Allocator]:
    """Return the allocator of each device and host that recorded allocations or frees, hosts first."""
    kind, number = (np.asarray(trace.columns[f"memory_{name}"]) for name in ("device_type", "device"))
    by_device = []
    for _, rows in rows_by_value(combined_codes(kind, number)) if len(kind) else []:
        first = int(rows[0])
        ordered = rows[np.argsort(trace.columns["memory_at"][rows], kind="stable")]
        device = int(number[first])
        by_device.append(Allocator(trace, int(kind[first]), device if device >= 0 else None, ordered))
    return by_device


ROWS_AT_MOST, _LARGEST_AT_MOST = 100, 20
_CODE = ("operator", "module", "line")
_EVALUATES, _ACCUMULATES = "autograd::engine::evaluate_function: ", "torch::autograd::AccumulateGrad"
"""The beginning of the name of an event in which autograd runs an operator, and the operator of a leaf's gradient."""


class Whereabouts(TypedDict):
    """The fields of `MemoryMoment` except its size: the time of an allocation or free, and the code that ran then."""

    at_ns: int
    step: int | None
    phase: str
    operator: str
    module: str
    line: str


class Totals(TypedDict):
    """Counts and bytes of allocations and frees, as keyword arguments of `AllocationTotals`."""

    allocations: int
    frees: int
    allocated_bytes: int
    freed_bytes: int
    net_bytes: int


def memory_of_accounts(accounts: Sequence[Work]) -> list[list[DeviceMemory]]:
    """Return, for each device or host in `accounts`, a list with the memory of its device.

    `accounts` has the devices that worked, or the host if none did. The memory of the host, and the memory of devices
    that did not work, is added to the first list.
    """
    memories: list[list[DeviceMemory]] = [[] for _ in accounts]
    numbers = {account.device: i for i, account in enumerate(accounts)}
    for allocator in allocators(accounts[0].trace):
        account = 0 if allocator.on_host else numbers.get(allocator.number, 0)
        memories[account].append(AttributedAllocations(allocator, Attribution(accounts[account])).device_memory())
    return memories


@dataclass(frozen=True)
class AttributedAllocations:
    """The allocations and frees of one device, and the code that the host ran at the time of each.

    Arrays have one entry for each allocation or free, in order of time; `index` in the methods is an index into them.
    """

    allocator: Allocator
    attribution: Attribution

    @property
    def trace(self) -> Trace:
        return self.allocator.trace

    @cached_property
    def around(self) -> Integers:
        c, pid, tid = self.trace.columns, self.allocator.column("pid"), self.allocator.column("tid")
        lane = np.full(len(pid), NONE)
        for number, thread in enumerate(c.meta["lanes"]):
            if thread["kind"] == HOST_LANE:
                lane[(pid == thread["pid"]) & (tid == thread["tid"])] = number
        events = NestedEvents(c["lane"], c["start"], c["end"], c["parent"])
        return np.asarray(innermost_at(events, lane, self.allocator.at))

    @cached_property
    def code(self) -> dict[str, Integers]:
        """{"operator", "module" or "line": the trace row of the innermost such event around each allocation or free}.

        The row is NONE if there is no such event around the allocation or free.
        """
        return {what: self.innermost(what) for what in _CODE}

    def innermost(self, what: str) -> Integers:
        rows = self.module_around() if what == "module" else self.attribution.around(what)
        # NONE is -1, an index that takes the last element: NONE stays NONE.
        return np.append(rows, NONE)[self.around]

    def module_around(self) -> Column:
        """Return, for each event of the trace, the trace row of the innermost module around it, or NONE.

        An event inside a backward operator gets the module of the forward operator with the same sequence number. The
        accumulation of a gradient has no forward operator: it gets the module of the backward operator before it.
        """
        module, parent = self.attribution.around("module"), self.trace.columns["parent"]
        rows, sequence, thread = (self.trace.columns[f"autograd_{name}"] for name in ("row", "sequence", "thread"))
        # Only backward operators name the thread of their forward; both have the same sequence number.
        is_forward, is_backward = (thread <= 0) & (module[rows] != NONE), thread > 0
        if not is_forward.any() or not is_backward.any():
            return module
        forward = np.flatnonzero(is_forward)[np.argsort(sequence[is_forward], kind="stable")]
        index = np.searchsorted(sequence[forward], sequence[is_backward], side="right") - 1
        same = (index >= 0) & (sequence[forward][index] == sequence[is_backward])
        of_forward = np.full(len(module) + 1, NONE)
        of_forward[rows[is_backward]] = np.where(same, module[rows[forward[index]]], NONE)
        self.name_accumulations(of_forward)
        nearest = innermost_selected(of_forward[:-1] != NONE, parent)
        return np.where(module == NONE, of_forward[nearest], module)

    def name_accumulations(self, of_forward: Column) -> None:
        """Fill in the modules of the rows in `of_forward` (the module of each event) that accumulate a gradient.

        Autograd runs AccumulateGrad before all else that is ready (its sequence number is the largest), so right after
        the operator that computed the gradient, on the same thread.
        """
        c, names = self.trace.columns, self.trace.names
        runs = self.trace.rows_named(np.array([name.startswith(_EVALUATES) for name in names] or [False]), OPS)
        runs = runs[np.lexsort((c["start"][runs], c["lane"][runs]))]
        accumulates = np.array([name.endswith(_ACCUMULATES) for name in names] or [False])[c["name"][runs]]
        # For each run, the last one up to it that computes a gradient; -1: there is none.
        before = np.maximum.accumulate(np.where(accumulates, NONE, np.arange(len(runs))))
        known = accumulates & (before != NONE)
        known[known] &= c["lane"][runs[before[known]]] == c["lane"][runs[known]]
        of_forward[runs[known]] = of_forward[runs[before[known]]]

    def device_memory(self) -> DeviceMemory:
        """Return the summary of the device's memory over the recording."""
        a = self.allocator
        unfreed, freed = a.unfreed, np.flatnonzero(a.change < 0)
        # A free without its allocation frees what was allocated before the recording.
        older = np.setdiff1d(freed, a.free_of, assume_unique=False)
        return DeviceMemory(
            type=a.type_name,
            device=a.number,
            total_bytes=None if a.on_host else self.trace.header.get("device_bytes", {}).get(str(a.number)),
            totals_recorded=a.totals_recorded,
            **totals(a.change),
            start_bytes=a.before,
            end_bytes=int(a.allocated[-1]),
            peak=self.peak(),
            reserved_peak=self.moment(int(a.reserved.argmax()), int(a.reserved.max())) if a.reserved.any() else None,
            older_freed_bytes=-int(a.change[older].sum()),
            unfreed_allocations=len(unfreed),
            unfreed_bytes=int(a.change[unfreed].sum()),
            operators=self.totals_by("operator"),
            modules=self.totals_by("module"),
            lines=self.totals_by("line"),
            phases=self.totals_by_phase(),
            steps=self.steps(),
            largest=self.largest(),
            unfreed=self.unfreed(),
        )

    def peak(self) -> MemoryMoment:
        a = self.allocator
        index = int(a.allocated.argmax())
        return self.moment(index, int(a.allocated[index])) if a.allocated[index] >= a.before else self.beginning()

    def beginning(self) -> MemoryMoment:
        at = int(self.allocator.at[0]) + self.trace.base
        nowhere = dict.fromkeys(_CODE, "")
        return MemoryMoment(bytes=self.allocator.before, at_ns=at, step=None, phase=OTHER, **nowhere)

    def moment(self, index: int, size: int) -> MemoryMoment:
        return MemoryMoment(bytes=size, **self.whereabouts(index))

    def whereabouts(self, index: int) -> Whereabouts:
        """Return the time of the allocation or free with this index, and the code that the host ran at that time."""
        step = int(self.step[index])
        return Whereabouts(
            at_ns=int(self.allocator.at[index]) + self.trace.base,
            step=self.trace.steps[step][0] if step != NONE else None,
            phase=PHASE_NAMES[self.phase[index]],
            operator=self.code_name("operator", index),
            module=self.code_name("module", index),
            line=self.code_name("line", index),
        )

    @cached_property
    def step(self) -> Column:
        """For each allocation or free, the index in `trace.steps` of the step around it; NONE outside of steps."""
        return self.trace.step_index_at(self.allocator.at)

    @cached_property
    def phase(self) -> Column:
        """For each allocation or free, the phase of the step at that time, as an index into PHASE_NAMES."""
        return np.append(self.trace.columns["phase"], PHASE_NAMES.index(OTHER))[self.around]

    def code_name(self, what: str, index: int) -> str:
        row = int(self.code[what][index])
        return "" if row == NONE else self.name_of(int(self.trace.columns["name"][row]))

    def name_of(self, number: int) -> str:
        return self.trace.names[number].removeprefix("nn.Module: ")

    def totals_by(self, what: str) -> list[NamedAllocationTotals]:
        """Return the allocations and frees inside each operator, module or line (`what`), summed by name.

        If a call is nested in a call of the same name, its allocations count once.
        """
        own = dict(self.events_inside(what, deep=False))
        rows = []
        for name, events in self.events_inside(what, deep=True):
            mine = self.allocator.change[own[name]] if name in own else np.zeros(0, np.int64)
            rows.append(_named_totals(self.name_of(name), self.allocator.change[events], mine))
        return largest_first(rows)

    def events_inside(self, what: str, *, deep: bool) -> list[tuple[int, Integers]]:
        """Return, for each name of an operator, module or line, which allocations and frees are inside its calls.

        Each item is (index of the name in `trace.names`, indices of allocations and frees). `what` is "operator",
        "module" or "line". With `deep`, an allocation counts for all operators (or modules, or lines) around it, else
        only for the innermost.
        """
        c, around = self.trace.columns, self.attribution.around(what)
        at, events, keys = self.code[what], np.arange(len(self.around)), [np.zeros(0, np.int64)]
        # All events go up one level in each round. Name and event are one number, so that each pair counts once.
        while (known := at != NONE).any():
            at, events = at[known], events[known]
            keys.append(c["name"][at].astype(np.int64) * len(self.around) + events)
            above = c["parent"][at]
            at = np.where(above == NONE, NONE, around[above]) if deep else np.full(len(at), NONE)
        name, event = np.divmod(np.unique(np.concatenate(keys)), max(1, len(self.around)))
        return [(number, event[rows]) for number, rows in rows_by_value(name)]

    def totals_by_phase(self) -> list[NamedAllocationTotals]:
        change = self.allocator.change
        rows = [
            _named_totals(PHASE_NAMES[phase], change[events], change[events])
            for phase, events in rows_by_value(self.phase)
        ]
        return [] if [row.name for row in rows] == [OTHER] else largest_first(rows)

    def steps(self) -> list[StepMemory]:
        """Return the allocated memory of each step: at the start, at the end, and the maximum in between."""
        a, events = self.allocator, dict(rows_by_value(self.step))
        rows = []
        for index, (number, start, end) in enumerate(self.trace.steps):
            inside = events.get(index, np.zeros(0, np.int64))
            before = a.allocated_before(start)
            rows.append(
                StepMemory(
                    step=number,
                    start_bytes=before,
                    end_bytes=a.allocated_before(end),
                    peak_bytes=int(a.allocated[inside].max(initial=before)),
                    peak_reserved_bytes=int(a.reserved[inside].max(initial=0)),
                    **totals(a.change[inside]),
                )
            )
        return rows

    def largest(self) -> list[Allocation]:
        a = self.allocator
        indices = np.argsort(-a.change, kind="stable")[:_LARGEST_AT_MOST]
        return [self.allocation(index) for index in indices.tolist() if a.change[index] > 0]

    def allocation(self, index: int) -> Allocation:
        a, free = self.allocator, int(self.allocator.free_of[index])
        return Allocation(
            bytes=int(a.change[index]),
            lifetime_ns=None if free == NONE else int(a.at[free] - a.at[index]),
            freed_by="" if free == NONE else self.code_name("operator", free),
            **self.whereabouts(index),
        )

    def unfreed(self) -> list[UnfreedMemory]:
        """Return the memory that was not freed in the recording, by the code that allocated it, most bytes first."""
        a, sizes = self.allocator, dict[tuple[str, str, str], list[int]]()
        for index in a.unfreed.tolist():
            where = self.code_name("operator", index), self.code_name("module", index), self.code_name("line", index)
            sizes.setdefault(where, []).append(int(a.change[index]))
        rows = [
            UnfreedMemory(operator=operator, module=module, line=line, count=len(mine), bytes=sum(mine))
            for (operator, module, line), mine in sizes.items()
        ]
        return sorted(rows, key=lambda row: -row.bytes)[:_LARGEST_AT_MOST]


def totals(change: Integers) -> Totals:
    """Return count and bytes of allocations and of frees; in `change`, allocations are positive and frees negative."""
    grown, shrunk = change[change > 0], change[change < 0]
    allocated, freed = int(grown.sum()), -int(shrunk.sum())
    return Totals(
        allocations=len(grown),
        frees=len(shrunk),
        allocated_bytes=allocated,
        freed_bytes=freed,
        net_bytes=allocated - freed,
    )


def _named_totals(name: str, change: Integers, own_change: Integers) -> NamedAllocationTotals:
    own = totals(own_change)
    return NamedAllocationTotals(
        name=name,
        **totals(change),
        own_allocations=own["allocations"],
        own_allocated_bytes=own["allocated_bytes"],
        own_net_bytes=own["net_bytes"],
    )


def largest_first(rows: list[NamedAllocationTotals]) -> list[NamedAllocationTotals]:
    return sorted(rows, key=lambda row: (-row.own_allocated_bytes, -row.allocated_bytes, row.name))[:ROWS_AT_MOST]
