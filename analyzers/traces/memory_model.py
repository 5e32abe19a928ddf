"""The structs for the memory of devices during a trace, as part of the JSON document `workbench.trace/1`."""

import msgspec


class AllocationTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The number and bytes of allocations and of frees; net = allocated - freed."""

    allocations: int
    frees: int
    allocated_bytes: int
    freed_bytes: int
    net_bytes: int


class NamedAllocationTotals(AllocationTotals, frozen=True, kw_only=True):
    """The allocations and frees inside one operator, module, line or phase; `own_...` excludes calls inside it."""

    name: str
    own_allocations: int
    own_allocated_bytes: int
    own_net_bytes: int


class StepMemory(AllocationTotals, frozen=True, kw_only=True):
    """The memory in one `ProfilerStep#N`:
    the bytes allocated at its start and at its end, and the highest in between.
    """

    step: int
    start_bytes: int
    end_bytes: int
    peak_bytes: int
    peak_reserved_bytes: int


class MemoryMoment(msgspec.Struct, frozen=True, kw_only=True):
    """A number of bytes, when it was reached, and the code that the host was in at that time.

    `at_ns` is Unix time. `operator`, `module` and `line` (a function in the user's own files) are the innermost that
    ran, empty if none did; an operator of the backward pass has the module of its forward operator.
    """

    bytes: int
    at_ns: int
    step: int | None
    phase: str
    operator: str
    module: str
    line: str


class Allocation(MemoryMoment, frozen=True, kw_only=True):
    """One allocation, with its lifetime and the operator that freed it; both are missing if it was not freed."""

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
    """The activity of the allocator of one device, or of the host, while the trace was recorded.

    `total_bytes` is the memory of the device, null if the trace does not have it. `start_bytes` + net = `end_bytes`. If
    the recorder wrote totals (`totals_recorded`, `told` in JSON), `start_bytes` is the memory allocated when the
    recording began; on a host, totals count from the first profiler of the process. Without totals it is a lower bound:
    the memory that was freed later without an allocation in the trace. `peak` includes the memory at the start;
    `reserved_peak` is null if nothing was reserved. `older_freed_bytes` were allocated before the recording. The lists
    have the largest of each kind.
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
