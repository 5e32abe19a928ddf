"""Read what each device's allocator reported to the profiler: allocations and frees in order of time, and totals."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Integers, Mask
from analyzers.traces.columns.nesting import NONE
from analyzers.traces.reading.distinct import combined_codes, rows_by_value
from analyzers.traces.reading.trace import Trace

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
        """Whether the recorder wrote the total of allocated bytes with each allocation and free."""
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
        """The bytes allocated before the first recorded allocation or free."""
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
        """Return how many bytes were allocated just before a moment (ns of the trace)."""
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
