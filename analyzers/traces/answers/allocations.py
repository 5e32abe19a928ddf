"""Who allocated and freed while a trace was recorded, what was held when most was, and what was never freed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from analyzers.columns import Column
from analyzers.traces.answers.costs import Attribution
from analyzers.traces.answers.device_allocator import Allocator, allocators
from analyzers.traces.columns.nesting import NONE, NestedEvents, innermost_at, innermost_selected
from analyzers.traces.columns.phases import OTHER, PHASE_NAMES
from analyzers.traces.columns.work import Work
from analyzers.traces.memory_structs import (
    Allocation,
    DeviceMemory,
    MemoryMoment,
    NamedAllocationTotals,
    StepMemory,
    UnfreedMemory,
)
from analyzers.traces.model import HOST_LANE, Trace
from analyzers.traces.reading.distinct import rows_by_value

ROWS_AT_MOST, LARGEST_AT_MOST = 100, 20


def of_accounts(accounts: Sequence[Work]) -> list[list[DeviceMemory]]:
    """The memory of each account's device; what belongs to none, such as the host's, goes to the first."""
    found: list[list[DeviceMemory]] = [[] for _ in accounts]
    numbers = {one.device: i for i, one in enumerate(accounts)}
    for allocator in allocators(accounts[0].trace):
        account = 0 if allocator.on_host else numbers.get(allocator.number, 0)
        found[account].append(Attributed(allocator, Attribution(accounts[account])).described())
    return found


@dataclass(frozen=True)
class Attributed:
    """The allocations and frees of a device, with what the host was doing at each."""

    allocator: Allocator
    due: Attribution

    @property
    def trace(self) -> Trace:
        return self.allocator.trace

    @cached_property
    def around(self) -> Column:
        """The row of the innermost event of the same thread around each, NONE where there is none."""
        c, pid, tid = self.trace.columns, self.allocator.column("pid"), self.allocator.column("tid")
        lane = np.full(len(pid), NONE)
        for number, one in enumerate(c.meta["lanes"]):
            if one["kind"] == HOST_LANE:
                lane[(pid == one["pid"]) & (tid == one["tid"])] = number
        return innermost_at(NestedEvents(c["lane"], c["start"], c["end"], c["parent"]), lane, self.allocator.at)

    def of(self, what: str) -> Column:
        """The row of the innermost operator, module or line around each (`Attribution.chosen`)."""
        rows = self.module_around() if what == "module" else self.due.around(what)
        return np.append(rows, NONE)[self.around]  # NONE is -1, which takes the last

    def module_around(self) -> Column:
        """The row of the module around each event; around a backward operator it is that of the forward one."""
        module, parent = self.due.around("module"), self.trace.columns["parent"]
        rows, sequence, thread = (self.trace.columns[f"autograd_{name}"] for name in ("row", "sequence", "thread"))
        ahead, behind = (thread <= 0) & (module[rows] != NONE), thread > 0
        if not ahead.any() or not behind.any():
            return module
        ahead = np.flatnonzero(ahead)[np.argsort(sequence[ahead], kind="stable")]
        place = np.searchsorted(sequence[ahead], sequence[behind], side="right") - 1
        same = (place >= 0) & (sequence[ahead][place] == sequence[behind])
        forward = np.full(len(module) + 1, NONE)
        forward[rows[behind]] = np.where(same, module[rows[ahead[place]]], NONE)
        nearest = innermost_selected(forward[:-1] != NONE, parent)
        return np.where(module == NONE, forward[nearest], module)

    def described(self) -> DeviceMemory:
        a = self.allocator
        lost, freed = a.unfreed, np.flatnonzero(a.change < 0)
        older = np.setdiff1d(freed, a.free_of, assume_unique=False)
        return DeviceMemory(
            type=a.type_name,
            device=a.number,
            total_bytes=None if a.on_host else self.trace.header.get("device_bytes", {}).get(str(a.number)),
            totals_recorded=a.told,
            **turnover(a.change),
            start_bytes=a.before,
            end_bytes=int(a.allocated[-1]),
            peak=self.peak(),
            reserved_peak=self.moment(int(a.reserved.argmax()), int(a.reserved.max())) if a.reserved.any() else None,
            older_freed_bytes=-int(a.change[older].sum()),
            unfreed_allocations=len(lost),
            unfreed_bytes=int(a.change[lost].sum()),
            operators=self.by("operator"),
            modules=self.by("module"),
            lines=self.by("line"),
            phases=self.by_phase(),
            steps=self.by_step(),
            largest=self.largest(),
            unfreed=self.kept(),
        )

    def peak(self) -> MemoryMoment:
        """When most was allocated; that may have been before the first event."""
        a = self.allocator
        place = int(a.allocated.argmax())
        return self.moment(place, int(a.allocated[place])) if a.allocated[place] >= a.before else self.beginning()

    def beginning(self) -> MemoryMoment:
        at = int(self.allocator.at[0]) + self.base
        nowhere = dict.fromkeys(("operator", "module", "line"), "")
        return MemoryMoment(bytes=self.allocator.before, at_ns=at, step=None, phase=OTHER, **nowhere)

    def moment(self, place: int, size: int) -> MemoryMoment:
        return MemoryMoment(bytes=size, **self.where(place))

    @property
    def base(self) -> int:
        return int(self.trace.header.get("base_ns", 0))

    def where(self, place: int) -> dict[str, Any]:
        """When an event happened, and what the host was doing."""
        step = int(self.step[place])
        return {
            "at_ns": int(self.allocator.at[place]) + self.base,
            "step": self.trace.steps[step][0] if step != NONE else None,
            "phase": PHASE_NAMES[self.phase[place]],
            **{what: self.named(what, place) for what in ("operator", "module", "line")},
        }

    @cached_property
    def step(self) -> Column:
        return self.trace.step_index_at(self.allocator.at)

    @cached_property
    def phase(self) -> Column:
        return np.append(self.trace.columns["phase"], PHASE_NAMES.index(OTHER))[self.around]

    @cached_property
    def places(self) -> dict[str, Column]:
        """For each kind of place in the code the row of the innermost one around each event."""
        return {what: self.of(what) for what in ("operator", "module", "line")}

    def named(self, what: str, place: int) -> str:
        row = int(self.places[what][place])
        return "" if row == NONE else self.name_of(int(self.trace.columns["name"][row]))

    def name_of(self, number: int) -> str:
        return self.trace.names[number].removeprefix("nn.Module: ")

    def by(self, what: str) -> list[NamedAllocationTotals]:
        """By operator, module or line; one that runs inside another of its name counts once."""
        own = dict(self.inside(what, deep=False))
        found = []
        for name, events in self.inside(what, deep=True):
            mine = self.allocator.change[own[name]] if name in own else np.zeros(0, np.int64)
            found.append(named_turnover(self.name_of(name), self.allocator.change[events], mine))
        return largest_first(found)

    def inside(self, what: str, *, deep: bool) -> list[tuple[int, Column]]:
        """The number of each name, and the events inside; only those directly inside unless it goes `deep`."""
        c, around = self.trace.columns, self.due.around(what)
        at, events, keys = self.places[what], np.arange(len(self.around)), [np.zeros(0, np.int64)]
        while (known := at != NONE).any():
            at, events = at[known], events[known]
            keys.append(c["name"][at].astype(np.int64) * len(self.around) + events)
            above = c["parent"][at]
            at = np.where(above == NONE, NONE, around[above]) if deep else np.full(len(at), NONE)
        name, event = np.divmod(np.unique(np.concatenate(keys)), max(1, len(self.around)))
        return [(number, event[rows]) for number, rows in rows_by_value(name)]

    def by_phase(self) -> list[NamedAllocationTotals]:
        change = self.allocator.change
        found = [
            named_turnover(PHASE_NAMES[phase], change[events], change[events])
            for phase, events in rows_by_value(self.phase)
        ]
        return [] if [one.name for one in found] == [OTHER] else largest_first(found)

    def by_step(self) -> list[StepMemory]:
        a, events = self.allocator, dict(rows_by_value(self.step))
        found = []
        for place, (number, start, end) in enumerate(self.trace.steps):
            inside = events.get(place, np.zeros(0, np.int64))
            begin = a.held_at(start)
            found.append(
                StepMemory(
                    step=number,
                    start_bytes=begin,
                    end_bytes=a.held_at(end),
                    peak_bytes=int(a.allocated[inside].max(initial=begin)),
                    peak_reserved_bytes=int(a.reserved[inside].max(initial=0)),
                    **turnover(a.change[inside]),
                )
            )
        return found

    def largest(self) -> list[Allocation]:
        a = self.allocator
        chosen = np.argsort(-a.change, kind="stable")[:LARGEST_AT_MOST]
        return [self.allocation(place) for place in chosen.tolist() if a.change[place] > 0]

    def allocation(self, place: int) -> Allocation:
        a, free = self.allocator, int(self.allocator.free_of[place])
        return Allocation(
            bytes=int(a.change[place]),
            lifetime_ns=None if free == NONE else int(a.at[free] - a.at[place]),
            freed_by="" if free == NONE else self.named("operator", free),
            **self.where(place),
        )

    def kept(self) -> list[UnfreedMemory]:
        """What was never freed, by where it was allocated."""
        a, sums = self.allocator, dict[tuple[str, str, str], list[int]]()
        for place in a.unfreed.tolist():
            where = self.named("operator", place), self.named("module", place), self.named("line", place)
            sums.setdefault(where, []).append(int(a.change[place]))
        found = [
            UnfreedMemory(operator=operator, module=module, line=line, count=len(sizes), bytes=sum(sizes))
            for (operator, module, line), sizes in sums.items()
        ]
        return sorted(found, key=lambda one: -one.bytes)[:LARGEST_AT_MOST]


def turnover(change: Column) -> dict[str, int]:
    """The fields of `Turnover` of some events."""
    more, less = change[change > 0], change[change < 0]
    allocated, freed = int(more.sum()), -int(less.sum())
    counts = {"allocations": len(more), "frees": len(less)}
    return counts | {"allocated_bytes": allocated, "freed_bytes": freed, "net_bytes": allocated - freed}


def named_turnover(name: str, change: Column, own: Column) -> NamedAllocationTotals:
    mine = {f"own_{field}": turnover(own)[field] for field in ("allocations", "allocated_bytes", "net_bytes")}
    return NamedAllocationTotals(name=name, **turnover(change), **mine)


def largest_first(found: list[NamedAllocationTotals]) -> list[NamedAllocationTotals]:
    return sorted(found, key=lambda one: (-one.own_allocated_bytes, -one.allocated_bytes, one.name))[:ROWS_AT_MOST]
