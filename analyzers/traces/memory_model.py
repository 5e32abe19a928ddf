"""Define the structs for the memory of devices during a trace, which are part of the document `workbench.trace/1`."""

import msgspec


class AllocationTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The number and bytes of allocations and of frees; `net_bytes` are the allocated minus the freed bytes."""

    allocations: int
    frees: int
    allocated_bytes: int
    freed_bytes: int
    net_bytes: int


class NamedAllocationTotals(AllocationTotals, frozen=True, kw_only=True):
    """The allocations and frees inside all calls of one operator, module or line, or inside one phase.

    The fields `own_...` leave out what happens inside other operators (or modules, or lines) that these calls contain.
    """

    name: str
    own_allocations: int
    own_allocated_bytes: int
    own_net_bytes: int


class StepMemory(AllocationTotals, frozen=True, kw_only=True):
    """The memory of one device in one step that the profiler marked (`ProfilerStep#N`).

    `start_bytes` and `end_bytes` are the bytes allocated at the start and end of the step, `peak_bytes` is the maximum
    in between. `peak_reserved_bytes` is the maximum that the allocator held, in use or not (0 if it was not recorded).
    """

    step: int
    start_bytes: int
    end_bytes: int
    peak_bytes: int
    peak_reserved_bytes: int


class MemoryMoment(msgspec.Struct, frozen=True, kw_only=True):
    """An amount of memory, such as a peak or one allocation, with its time and the code that the host ran at this time.

    `at_ns` is Unix time. `operator`, `module` and `line` are the innermost running ones, empty if none ran. `line` is a
    function in the user's own files, with the line at which it begins: `train.py(12): step`. An operator of the
    backward pass has the module of its forward operator.
    """

    bytes: int
    at_ns: int
    step: int | None
    phase: str
    operator: str
    module: str
    line: str


class Allocation(MemoryMoment, frozen=True, kw_only=True):
    """One allocation, its lifetime (null if it was not freed), and the operator that freed it (empty if none did)."""

    lifetime_ns: int | None
    freed_by: str


class UnfreedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The allocations that were not freed before the recording ended, summed over one operator, module and line."""

    operator: str
    module: str
    line: str
    count: int
    bytes: int


class DeviceMemory(AllocationTotals, frozen=True, kw_only=True):
    """The activity of the allocator of one device, or of the host, while the trace was recorded.

    `total_bytes` is the memory of the device, null if the trace does not have it. `start_bytes` + `net_bytes` =
    `end_bytes`. If the recorder wrote totals (`totals_recorded`, `told` in JSON), `start_bytes` is the memory allocated
    when the recording began; on a host, totals count from the first profiler of the process. Without totals
    `start_bytes` is a lower bound: the memory that was freed in the trace but not allocated in it. `peak` includes the
    memory at the start; `reserved_peak` is null if nothing was reserved. `older_freed_bytes` were freed in the
    recording but allocated before it. Except for `phases` and `steps`, the lists have only the largest items.
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
