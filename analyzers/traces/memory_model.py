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
    """The allocations and frees during all calls of one operator, module or line, or during one phase (`name`).

    The fields that begin with `own_` leave out what happens inside other operators (or modules, or lines) that these
    calls contain. `net_bytes` are the allocated minus the freed bytes.
    """

    name: str
    own_allocations: int
    own_allocated_bytes: int
    own_net_bytes: int


class StepMemory(AllocationTotals, frozen=True, kw_only=True):
    """The memory of one device in one step that the profiler marked (`ProfilerStep#N`).

    `start_bytes` and `end_bytes` are allocated at the start and at the end of the step, and `peak_bytes` is the most in
    between. `peak_reserved_bytes` is the most that the allocator held, in use or not (0: not recorded). `net_bytes` are
    the bytes allocated in the step minus the bytes freed in it.
    """

    step: int
    start_bytes: int
    end_bytes: int
    peak_bytes: int
    peak_reserved_bytes: int


class MemoryMoment(msgspec.Struct, frozen=True, kw_only=True):
    """An amount of memory, such as a peak or one allocation, with its time and the code that the host ran at this time.

    `at_ns` is Unix time in ns. `step` is the number of the step (None: outside of steps), and `phase` is its phase.
    `operator`, `module` and `line` are the innermost ones that ran (empty: none). `line` is a function in the user's
    own files, with the line at which it begins: `train.py(12): step`. An operator of the backward pass has the module
    of its forward operator.
    """

    bytes: int
    at_ns: int
    step: int | None
    phase: str
    operator: str
    module: str
    line: str


class Allocation(MemoryMoment, frozen=True, kw_only=True):
    """One allocation, with its time and the code that made it.

    `lifetime_ns` is the time in ns until it was freed (None: it was not), and `freed_by` is the operator that freed it
    (empty: none ran). The other fields are those of `MemoryMoment`: `at_ns` is Unix time in ns, and `line` is a
    function in the user's own files, with the line at which it begins.
    """

    lifetime_ns: int | None
    freed_by: str


class UnfreedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """All allocations of one operator, module and line of source that were not freed before the recording ended.

    `count` is their number, and `bytes` their sum.
    """

    operator: str
    module: str
    line: str
    count: int
    bytes: int


class DeviceMemory(AllocationTotals, frozen=True, kw_only=True):
    """The activity of the memory allocator of one device, or of the host, while the trace was recorded.

    `type` is the type of the device (`cuda`, `cpu`), and `device` its number (None for the host). `total_bytes` is its
    memory (None: not in the trace). `start_bytes` are allocated at the start of the recording, `end_bytes` at its end;
    `net_bytes` is their difference. `totals_recorded` (`told` in JSON) says whether the recorder wrote how much was
    allocated in all. If it did, `start_bytes` is exact; on a host, it counts from the first profiler of the process. If
    it did not, `start_bytes` is a lower bound: the memory that was freed in the trace but not allocated in it.

    `peak` is the most allocated memory, including the memory at the start. `reserved_peak` is the most that the
    allocator held (None: not recorded). `older_freed_bytes` were freed in the recording but allocated before it. The
    allocations that were not freed are counted by `unfreed_allocations` and `unfreed_bytes`.

    `operators`, `modules`, `lines` and `phases` say which code allocated and freed how much, and `steps` has the memory
    of each step. `largest` are the largest allocations. Except for `phases` and `steps`, the lists have only the
    largest items.
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
