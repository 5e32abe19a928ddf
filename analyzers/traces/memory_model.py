"""The structs of the memory that devices allocated while a trace was recorded, part of `workbench.trace/1`."""

import msgspec


class AllocationTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The number and bytes of allocations and of frees; net = allocated - freed."""

    allocations: int
    frees: int
    allocated_bytes: int
    freed_bytes: int
    net_bytes: int


class NamedAllocationTotals(AllocationTotals, frozen=True, kw_only=True):
    """The allocations and frees inside one operator, module, line or phase; `own_...` leaves out what it calls."""

    name: str
    own_allocations: int
    own_allocated_bytes: int
    own_net_bytes: int


class StepMemory(AllocationTotals, frozen=True, kw_only=True):
    """The memory in one `ProfilerStep#N`: the bytes allocated at its start and at its end, and the most in between."""

    step: int
    start_bytes: int
    end_bytes: int
    peak_bytes: int
    peak_reserved_bytes: int


class MemoryMoment(msgspec.Struct, frozen=True, kw_only=True):
    """A number of bytes, when it was reached, and what the host was doing then.

    `at_ns` is Unix time. `operator`, `module` and `line` (a function of the user's own) are the innermost ones that
    ran, empty where none did; an operator of the backward pass has the module of its forward operator.
    """

    bytes: int
    at_ns: int
    step: int | None
    phase: str
    operator: str
    module: str
    line: str


class Allocation(MemoryMoment, frozen=True, kw_only=True):
    """One allocation, with its lifetime and the operator that freed it.

    Both are missing if it outlives the recording.
    """

    lifetime_ns: int | None
    freed_by: str


class UnfreedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The allocations of one operator, module and line that were not freed before the recording ended."""

    operator: str
    module: str
    line: str
    count: int
    bytes: int


class DeviceMemory(AllocationTotals, frozen=True, kw_only=True):
    """What the allocator of one device, or of the host, did while the trace was recorded.

    `total_bytes` is the memory of the device, null where the trace does not say. start + net = end. Where the recorder
    noted totals (`totals_recorded`, `told` in JSON) `start_bytes` is what was allocated when the recording began; else
    it is only what must have been there, as it was freed later. On a host it counts from when a profiler first looked.
    `peak` includes what was there at the start; `reserved_peak` is null where nothing was reserved. `older_freed_bytes`
    were allocated before the recording. The lists hold the largest of each.
    """

    type: str
    device: int | None
    total_bytes: int | None
    totals_recorded: bool = msgspec.field(name="told")
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
