"""The structs that tell of the memory that devices held, part of `workbench.trace/1`."""

import msgspec


class AllocationTotals(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how much was allocated and freed; net = allocated - freed."""

    allocations: int
    frees: int
    allocated_bytes: int
    freed_bytes: int
    net_bytes: int


class NamedAllocationTotals(AllocationTotals, frozen=True, kw_only=True):
    """That of an operator, module, line or phase, with what it calls; `own_`: without what it calls."""

    name: str
    own_allocations: int
    own_allocated_bytes: int
    own_net_bytes: int


class StepMemory(AllocationTotals, frozen=True, kw_only=True):
    """A `ProfilerStep#N`: what was allocated when it began and when it ended, and most in between."""

    step: int
    start_bytes: int
    end_bytes: int
    peak_bytes: int
    peak_reserved_bytes: int


class MemoryMoment(msgspec.Struct, frozen=True, kw_only=True):
    """So many bytes, and where the host was: the innermost operator, module and function of the user's own, else empty.

    `at_ns` is Unix time; of operators of the backward pass `module` is that of their forward ones.
    """

    bytes: int
    at_ns: int
    step: int | None
    phase: str
    operator: str
    module: str
    line: str


class Allocation(MemoryMoment, frozen=True, kw_only=True):
    """One allocation; `lifetime_ns` and `freed_by` (an operator) are null and empty where it outlives the recording."""

    lifetime_ns: int | None
    freed_by: str


class UnfreedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations at one place in the code that were not freed before the recording ended."""

    operator: str
    module: str
    line: str
    count: int
    bytes: int


class DeviceMemory(AllocationTotals, frozen=True, kw_only=True):
    """What one device's allocator did while the trace was recorded.

    `total_bytes`: what the device has, null where the trace does not tell. `told`: the recorder told totals; else
    `start_bytes` is only what must have been there, as it was freed later. Of a host it counts from when a profiler
    first looked. start + net = end; `peak` counts what was there at first, too, and `reserved_peak` is null where
    nothing was reserved. `older_freed_bytes` were allocated before the recording. The lists hold the largest of each.
    """

    type: str
    device: int | None
    total_bytes: int | None
    told: bool
    start_bytes: int
    end_bytes: int
    peak: MemoryMoment
    reserved_peak: MemoryMoment | None
    older_freed_bytes: int
    unfreed_allocations: int
    unfreed_bytes: int
    operators: list[NamedAllocationTotals]
    modules: list[NamedAllocationTotals]
    lines: list[NamedAllocationTotals]
    phases: list[NamedAllocationTotals]
    steps: list[StepMemory]
    largest: list[Allocation]
    unfreed: list[UnfreedMemory]
