"""What each device's allocator told the profiler: allocations and frees in order of time, and what it held then."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column
from analyzers.traces.columns.nesting import NONE
from analyzers.traces.model import Trace
from analyzers.traces.reading.distinct import combined_codes, rows_by_value

TYPES = {
    0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 18: "ipu", 19: "mtia", 20: "privateuse1",
}  # fmt: skip
"""What PyTorch calls the types of devices that it numbers."""
CPU = 0


@dataclass(frozen=True)
class Allocator:
    """The allocations and frees of one device: `rows` of the `memory_` columns, in order of time.

    Recorders tell no device number of a host; it is None.
    """

    trace: Trace
    type: int
    number: int | None
    rows: Column

    @property
    def type_name(self) -> str:
        return TYPES.get(self.type, f"device type {self.type}")

    @property
    def name(self) -> str:
        """`cuda 0`; a host has no number."""
        return self.type_name if self.number is None else f"{self.type_name} {self.number}"

    @property
    def on_host(self) -> bool:
        return self.type == CPU

    def column(self, name: str) -> Column:
        found: Column = self.trace.columns[f"memory_{name}"][self.rows].astype(np.int64)
        return found

    @cached_property
    def at(self) -> Column:
        return self.column("at")

    @cached_property
    def change(self) -> Column:
        """Bytes allocated, negative where they were freed."""
        return self.column("bytes")

    @cached_property
    def told(self) -> bool:
        """Did the recorder tell how much was allocated in all?"""
        return bool((self.column("allocated") > 0).any())

    @cached_property
    def allocated(self) -> Column:
        """Bytes allocated after each event; what was there before counts as far as it is told or was freed later."""
        summed: Column = np.cumsum(self.change)
        if not self.told:
            return summed - min(0, int(summed.min()))
        totals = self.column("allocated")
        known = nearest(totals >= 0)
        return totals[known] + summed - summed[known]

    @cached_property
    def before(self) -> int:
        """Bytes allocated before the first event."""
        return int(self.allocated[0] - self.change[0])

    @cached_property
    def reserved(self) -> Column:
        """Bytes that the allocator had taken from the driver after each event; 0 where nothing tells of any."""
        totals = self.column("reserved")
        found: Column = totals[nearest(totals >= 0)] if (totals > 0).any() else np.zeros_like(totals)
        return found

    @cached_property
    def free_of(self) -> Column:
        """Of each allocation the place of its free, NONE where it was not freed: the next event at its address is."""
        address = self.column("address")
        order = np.argsort(address, kind="stable")
        here, then = order[:-1], order[1:]
        pairs = (address[here] == address[then]) & (address[here] != 0) & (self.change[here] > 0)
        pairs &= self.change[then] < 0
        found = np.full(len(order), NONE)
        found[here[pairs]] = then[pairs]
        return found

    @cached_property
    def unfreed(self) -> Column:
        """The places of the allocations that were not freed; of those without an address nobody can tell."""
        return np.flatnonzero((self.change > 0) & (self.free_of == NONE) & (self.column("address") != 0))

    def highest(self, edges: Column) -> tuple[Column, Column]:
        """(allocated, reserved): the most bytes in each stretch between moments, which ascend."""
        place = np.searchsorted(self.at, edges)
        # A stretch begins with what was held before it; each second maximum lies between two stretches.
        pairs = np.column_stack([place[:-1], place[1:] + 1]).ravel()
        totals = np.append(self.before, self.allocated), np.append(self.reserved[0], self.reserved)
        allocated, reserved = (np.maximum.reduceat(np.append(one, one[-1]), pairs)[::2] for one in totals)
        return allocated, reserved

    def held_at(self, moment: int) -> int:
        """Bytes allocated just before a moment."""
        place = int(np.searchsorted(self.at, moment))
        return int(self.allocated[place - 1]) if place else self.before


def nearest(known: Column) -> Column:
    """For each place the last known one up to there, before any is known the first."""
    places = np.flatnonzero(known)
    return places[np.maximum(np.searchsorted(places, np.arange(len(known)), side="right") - 1, 0)]


def allocators(trace: Trace) -> list[Allocator]:
    """One a device that allocated or freed, hosts first."""
    kind, number = (np.asarray(trace.columns[f"memory_{name}"]) for name in ("device_type", "device"))
    found = []
    for _, rows in rows_by_value(combined_codes(kind, number)) if len(kind) else []:
        first = int(rows[0])
        ordered = rows[np.argsort(trace.columns["memory_at"][rows], kind="stable")]
        device = int(number[first])
        found.append(Allocator(trace, int(kind[first]), device if device >= 0 else None, ordered))
    return found
