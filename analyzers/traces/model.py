"""Define the structs of `workbench.trace/1`, the JSON document of a trace report.

Times are integer nanoseconds. Unless a field is called a sum, overlapping time counts once.
"""

from enum import StrEnum

import msgspec

from analyzers.report import Evidence


class OpportunityKind(StrEnum):
    """The reason why a step takes longer than necessary.

    In `data_loader`, `allocation`, `compilation`, `python`, `buffer_broadcast`, `synchronising_call` and `launch`, the
    device waits, and the kind is what the host does meanwhile. `imbalance` is waiting for one rank. The other kinds are
    work of the device that could be shorter: for example, `float64` and `float32` are products of such numbers, which
    tensor cores would multiply faster as TF32 or in 16 bits, `misaligned` are products with sizes that do not fit
    tensor cores, `exposed_copies` are copies during which nothing computes, `cross_entropy` is a loss that reads and
    writes large logits several times, and `elementwise` are pointwise kernels that a compiler could fuse.
    """

    DATA_LOADER = "data_loader"
    ALLOCATION = "allocation"
    COMPILATION = "compilation"
    PYTHON = "python"
    BUFFER_BROADCAST = "buffer_broadcast"
    SYNCHRONISING_CALL = "synchronising_call"
    LAUNCH = "launch"
    UNFUSED_ATTENTION = "unfused_attention"
    RECOMPUTATION = "recomputation"
    FLOAT64 = "float64"
    FLOAT32 = "float32"
    MISALIGNED = "misaligned"
    LAYOUT_COPIES = "layout_copies"
    PAGEABLE_COPIES = "pageable_copies"
    EXPOSED_COPIES = "exposed_copies"
    CROSS_ENTROPY = "cross_entropy"
    ELEMENTWISE = "elementwise"
    SMALL_COLLECTIVES = "small_collectives"
    BUS_BANDWIDTH = "bus_bandwidth"
    EXPOSED_COMMUNICATION = "exposed_communication"
    IMBALANCE = "imbalance"


class FallbackReason(StrEnum):
    """The likely reason why `scaled_dot_product_attention` computed attention with its math kernel.

    `DIMENSIONS`: a tensor has not four dimensions. `TYPE`: no fused kernel has this type of elements. `DROPOUT`: the
    fused kernel of a CPU has no dropout. `VALUE_SIZE`: heads of values have another size than those of queries.
    `HEAD_SIZE`: the size of a head is no multiple of 16 bytes. `GROUPED`: `enable_gqa` with a mask or in float32.
    `MASK_GRADIENT`: a mask of numbers, which probably needs a gradient. `MASK`: there is a mask. `SETTING`: none of
    these, so a setting or the layout of the inputs. `UNKNOWN`: sizes and types were not recorded.
    """

    DIMENSIONS = "dimensions"
    TYPE = "type"
    DROPOUT = "dropout"
    VALUE_SIZE = "value_size"
    HEAD_SIZE = "head_size"
    GROUPED = "grouped"
    MASK_GRADIENT = "mask_gradient"
    MASK = "mask"
    SETTING = "setting"
    UNKNOWN = "unknown"


class NamedTime(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one name in an opportunity: their number and total time over the whole recording."""

    name: str
    count: int
    total_ns: int


class Opportunity(msgspec.Struct, frozen=True, kw_only=True):
    """A way to make a step shorter: something that takes time in each step, and how much of this time could be saved.

    `taken_ns` is the time that it takes per step. `saved_ns` is how much shorter the step would be in the best case: if
    it took no time, or only the time that the hardware needs. `saved_share` is the same as a share of the step (0 to
    1). `count` is the number of its events, and `names` has the most important of them by name, both over the whole
    recording. `measures` has numbers that only this kind has, such as `bus_bytes_per_s`. `fallbacks` are the reasons
    why attentions that call the fused operator got its math kernel. `after` is the call after which most of the waiting
    begins, because the host waited in it until the device had nothing left to do: its operator, and the function in the
    user's own files around it, if known.
    """

    kind: OpportunityKind
    count: int
    taken_ns: int
    saved_ns: int
    saved_share: float
    names: list[NamedTime] = []
    measures: dict[str, float] = {}
    fallbacks: list[FallbackReason] | msgspec.UnsetType = msgspec.UNSET
    after: list[NamedTime] | msgspec.UnsetType = msgspec.UNSET


class Advice(Opportunity, frozen=True, kw_only=True):
    """An opportunity to make a step shorter, with advice; the numbers are those of the rank that can save most.

    `rank` and `device` are that rank and its device, and `ranks` are all ranks with this opportunity. `title` says what
    was seen, `why` gives the evidence in words, `next` says what to change, and `check` how to see whether the change
    helped.

    `taken_ns` is the time that it takes per step. `saved_ns` is how much shorter the step would be in the best case: if
    it took no time, or only the time that the hardware needs. `saved_share` is the same as a share of the step (0 to
    1). `count` is the number of its events, and `names` has the most important of them by name, both over the whole
    recording. `measures` has numbers that only this kind has, such as `bus_bytes_per_s`. `after` is the call after
    which most of the waiting begins.
    """

    rank: int | None
    device: int | None
    ranks: list[int] = []
    title: str
    why: str
    next: str
    check: str
    evidence: list[Evidence] = []


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


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """All executions of one kernel; in a trace of a CPU, all calls of one operator, without calls inside it.

    `kind` is the kind of its work: `compute`, `communication` or `memory`. The fields ending in `_ns` are the sum,
    mean, median, standard deviation, minimum and maximum of its durations. `operator`, `module` and `line` name the
    host code that launched it; of several, the one that launched most of its time (empty: not in the trace). `line` is
    a function in the user's own files, with the line at which it begins.

    `occupancy` is the share of a device's warps that the kernel can keep busy at once, in per cent; the profiler
    estimates it from registers, shared memory and grid size. `warps_per_sm` and `blocks_per_sm` are the kernel's warps
    and blocks on one multiprocessor. All three are means weighted by duration (None: not recorded). `limited_by` is the
    resource that limits them in the longest execution, such as `registers, shared memory`; only newer versions of
    PyTorch record it.
    """

    name: str
    kind: str
    operator: str = ""
    module: str = ""
    line: str = ""
    count: int
    total_ns: int
    mean_ns: int
    median_ns: int
    std_ns: int
    min_ns: int
    max_ns: int
    occupancy: float | None = None
    warps_per_sm: float | None = None
    blocks_per_sm: float | None = None
    limited_by: str = ""


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a phase, a stream or a step (`name`), divided by what the device did.

    `span_ns` is the time from the start of the first event to the end of the last one. It is the sum of `compute_ns`,
    `exposed_communication_ns`, `exposed_memory_ns` and `idle_ns`; `busy_ns` is the part that is not idle. Communication
    is exposed while nothing computes, and otherwise overlapped; the two add up to `communication_ns`. `memory_ns` is
    the time of copies, which are exposed while no kernel runs. `work_ns` is the sum of the durations of all `events`:
    time counts twice if two events overlap.
    """

    name: str
    events: int
    work_ns: int
    span_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    overlapped_communication_ns: int
    memory_ns: int
    exposed_memory_ns: int


class StepTime(Breakdown, frozen=True, kw_only=True):
    """One step that the profiler marked (`ProfilerStep#N`), with the time of the work that was launched in it.

    `start_ns` (Unix time in ns) and `dur_ns` are the start and the duration of the step on the host. The other times
    are those of the device, and are divided as in `Breakdown`: `span_ns` is the time from the first to the last event,
    and the sum of `compute_ns`, `exposed_communication_ns`, `exposed_memory_ns` and `idle_ns`. Communication is exposed
    while nothing computes, and otherwise overlapped; copies (`memory`) are exposed while no kernel runs. `work_ns` is
    the sum of the durations of all `events`.
    """

    step: int
    start_ns: int
    dur_ns: int


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of all `count` calls of one operator, module, annotation or line of source (`name`).

    `host_ns` is the time of the calls on the host, and `own_ns` is this time without the calls inside them. `device_ns`
    is the time of the `kernels` kernels that they launched; if no device worked, it is the sum of the operators' own
    times. `flops` is the number of floating-point operations, counted for operators whose shapes were recorded. `bytes`
    is the least number of bytes that these operators must read and write. `bound` says whether `compute` or `memory`
    limits their speed (empty: unknown).
    """

    name: str
    count: int
    host_ns: int
    own_ns: int = 0
    device_ns: int
    kernels: int
    flops: int = 0
    bytes: int = 0
    bound: str = ""


class OperatorShape(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of an operator with inputs of the same shapes.

    `total_ns` is the time of the kernels that the calls launched directly; on a CPU, it is their own time. `flops` is
    the number of their floating-point operations, and `flops_per_s` is computed from both. `bound` says whether
    `compute` or `memory` limits their speed (empty: unknown).
    """

    name: str
    shapes: str
    count: int
    total_ns: int
    flops: int
    flops_per_s: float
    bound: str


class LaunchedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel as launched directly by one operator.

    `count` is the number of launches, and `total_ns` the total time of the kernel on the device.
    """

    operator: str
    kernel: str
    count: int
    total_ns: int


class StreamQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The launch queue of one stream: the kernels that were launched on it and had not started yet.

    `count` is the number of kernels; `mean` and `max` are the mean and the largest length of the queue. `full_ns` is
    the time in which more than 1000 kernels were in it. A queue of about this length is full: the next launching call
    must wait.
    """

    name: str
    count: int
    mean: float
    max: int
    full_ns: int


class Launches(msgspec.Struct, frozen=True, kw_only=True):
    """The launches of kernels: their delays, and how many kernels wait in the queue.

    A delay is the time from the end of the launching call to the start of its kernel. `early` kernels started before
    their call had returned, so their delay is negative. `queue_mean` and `queue_max` are the mean and the largest
    number of kernels that were launched and had not started. `blocked` is the number of launching calls that took more
    than ten times as long as the median call, and `blocked_ns` is their total time. `expected` is the number of kernels
    launched before the last recorded one was; `lost` of them are missing in the file. `long` kernels take at least 20
    µs; the calls that launched `outlasting` of these returned only after the kernel had ended.
    """

    count: int
    early: int
    delay_median_ns: int
    delay_p95_ns: int
    delay_max_ns: int
    queue_mean: float
    queue_max: int
    blocked: int
    blocked_ns: int
    expected: int = 0
    lost: int = 0
    long: int = 0
    outlasting: int = 0


class CallTotal(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one name: their number, total time, and the longest call."""

    name: str
    count: int
    total_ns: int
    max_ns: int


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """All copies of one kind, such as `Memcpy HtoD`.

    `bytes` is the sum of their sizes, and `bytes_per_s` is this sum divided by their total time.
    """

    name: str
    count: int
    total_ns: int
    bytes: int
    bytes_per_s: float


class CopySize(msgspec.Struct, frozen=True, kw_only=True):
    """The copies of one kind with similar sizes: at least `at_least` bytes, and less than 16 times that.

    `bytes` is the sum of their sizes, and `bytes_per_s` is this sum divided by their total time.
    """

    name: str
    at_least: int
    count: int
    total_ns: int
    bytes: int
    bytes_per_s: float


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """All collectives of one kind on one rank that have the same process group, data type and size.

    `group` is the name of the process group, `group_desc` its description in the job, such as `mesh_tp`, and
    `group_size` the number of its ranks. `bytes` is the size of one rank's input or output, whichever is larger.
    `median_ns` and `min_ns` are the median and the shortest duration. `algorithm_bytes_per_s` is the size divided by
    the shortest duration, because longer ones include waiting. `bus_bytes_per_s` is the bandwidth on the links at this
    rate, as nccl-tests defines it.
    """

    name: str
    group: str
    group_desc: str = ""
    group_size: int
    dtype: str
    bytes: int
    count: int
    total_ns: int
    median_ns: int
    min_ns: int
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float


class AllToAll(msgspec.Struct, frozen=True, kw_only=True):
    """All `count` all-to-alls of one process group on one rank, with the bytes that they send to each member.

    They send `sent_bytes[i]` in total to rank `ranks[i]`. `ranks` is empty if the file does not list the members of the
    group. `group` is the name of the group, and `group_desc` its description in the job.
    """

    group: str
    group_desc: str = ""
    count: int
    ranks: list[int]
    sent_bytes: list[int]


class CompiledFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A Python function (`frame`) that torch.compile compiled `versions` times since the job began.

    `calls` is how often it ran in the recording. `breaks` is the number of these calls that continue another frame
    after a graph break; `between_ns` is the host's time from the code before the break to this frame. `function` is the
    name of the function, and `broken_at` the line of the graph break, as file:line; both are empty unless stacks were
    recorded.
    `compilations` and `compile_ns` are the number and the time of the compilations in the recording.
    """

    frame: str
    function: str
    broken_at: str
    versions: int
    calls: int
    breaks: int
    between_ns: int
    compilations: int
    compile_ns: int


class CompiledCode(msgspec.Struct, frozen=True, kw_only=True):
    """The activity of torch.compile during the recording.

    A region is one compiled version of a Python function. `regions` is the number of regions that ran, and `calls` how
    often they ran. `recompiled` of the regions are later versions of their function, made because a guard of the
    earlier ones failed. `compilations` and `compile_ns` are the number and the time of the compilations in the
    recording. `breaks` is the number of graph breaks, and `between_ns` the time of the host between the code before and
    after them. `lookups` and `lookup_ns` are the checks of guards: one for each call of a function. `frames` has the
    costliest functions.
    """

    regions: int = 0
    recompiled: int = 0
    compilations: int = 0
    compile_ns: int = 0
    calls: int = 0
    breaks: int = 0
    between_ns: int = 0
    lookups: int = 0
    lookup_ns: int = 0
    frames: list[CompiledFrame] = []


class CudaGraphs(msgspec.Struct, frozen=True, kw_only=True):
    """The CUDA graphs that were launched as a whole.

    `launches` is the number of launches; `kernels` and `device_ns` are the number and the total time of the kernels in
    them.
    """

    launches: int = 0
    kernels: int = 0
    device_ns: int = 0


class DeviceCounter(msgspec.Struct, frozen=True, kw_only=True):
    """A performance counter of a device, summed over all ranges of code that have the same name.

    The profiler records one value of the counter for each range of code that it measures. `name` is the name of the
    counter, such as `smsp__inst_executed.sum`, and `range` the name of the ranges. `count` is the number of recorded
    values, and `total` is their sum.
    """

    range: str
    name: str
    count: int
    total: float


class KernelSequence(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence of kernels that occurs several times on a stream in the same order.

    `names` are the kernels, and `count` is how often the sequence occurs. `total_ns` is the sum of the durations of all
    kernels in all occurrences.
    """

    names: list[str]
    count: int
    total_ns: int


class CriticalPart(msgspec.Struct, frozen=True, kw_only=True):
    """All pieces of a step's critical path with the same kind and name, such as one kernel or one reason for waiting.

    The critical path is the chain of work and waiting that determines the duration of the step. `count` is the number
    of pieces, and `path_ns` their duration; the durations of all parts add up to that of the step. If this part took
    half as long, the step would be shorter by at most `saved_ns`. The real saving may be smaller, because another path
    may become the critical one.
    """

    rank: int | None
    device: int | None
    step: int | None
    kind: str
    name: str
    count: int
    path_ns: int
    saved_ns: int


class RankTrace(msgspec.Struct, frozen=True, kw_only=True):
    """All numbers about one device in one file, or about the host (`device` None, `source` `cpu`) if no device worked.

    `rank`, `world_size` and `backend` (of the process groups) are None if the file does not have them. `steps` is the
    number of steps that the profiler marked. `device_events` is the number of kernels and copies, and `unlinked_events`
    the number of those without a recorded launch. The times divide `span_ns`, from the first to the last event, as in
    `Breakdown`.

    The device is idle in the gaps between kernels. Each gap ends with a kernel that the host had to launch, and is
    divided into three parts: `idle_host_ns`, until the host's call that launched this kernel returned;
    `idle_launch_ns`, the usual latency after such a call; and `idle_unexplained_ns`, the rest. If the kernel was
    launched before the gap began, all of the gap is `idle_dependency_ns`. The sum of the four is `idle_ns`.

    Communication is exposed while no computing overlaps it. `blocking_communication_ns` is the part of exposed
    communication that delayed other work: a kernel that was already launched, or a host in a synchronising call, waited
    for it to end.

    The lists have one item per kernel, step, phase, stream and so on, mostly the ones that took most time. `lines` are
    functions of the user's code. `queues` are launch queues of streams, `exchanges` are all-to-alls, `sequences` are
    sequences of kernels that recur, and `counters` are performance counters. `launches`, `graphs` (CUDA graphs) and
    `compiled` (torch.compile) are None if there are none.

    `flops` is the number of floating-point operations; `recomputed_flops` of them repeat operations of the forward
    pass. `flops_per_s` is the achieved rate, and `peak_flops_per_s` the peak rate of the device for the number format
    `peak_arithmetic`, in which most operations ran. `mfu` and `hfu` are the model and the hardware FLOP utilisation, as
    shares of this peak. They are None if shapes or the peak are not known, or if `flops_coverage` is below 0.9: the
    share of the time of matrix products that operators launched whose operations are counted.

    `opportunities` are possible savings of at least 2 % of a step. `python_stacks` says whether Python calls were
    recorded, which slows the host. `device_memory` is empty unless allocations were recorded (`profile_memory`); the
    first item of a file also holds the memory of its host. `problems` are sentences on what is wrong with the file.
    """

    path: str
    rank: int | None
    device: int | None
    world_size: int | None
    backend: str | None
    source: str
    device_name: str
    steps: int
    device_events: int
    unlinked_events: int
    span_ns: int
    busy_ns: int
    idle_ns: int
    idle_host_ns: int
    idle_dependency_ns: int
    idle_launch_ns: int
    idle_unexplained_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    blocking_communication_ns: int
    overlapped_communication_ns: int
    memory_ns: int
    exposed_memory_ns: int
    kernels: list[Kernel]
    step_times: list[StepTime]
    phases: list[Breakdown]
    streams: list[Breakdown]
    operators: list[Cost]
    modules: list[Cost]
    annotations: list[Cost]
    lines: list[Cost]
    shapes: list[OperatorShape]
    launched: list[LaunchedKernel]
    launches: Launches | None
    queues: list[StreamQueue]
    synchronisations: list[CallTotal]
    copies: list[Copy]
    copy_sizes: list[CopySize]
    collectives: list[Collective]
    exchanges: list[AllToAll]
    graphs: CudaGraphs | None
    compiled: CompiledCode | None
    sequences: list[KernelSequence]
    counters: list[DeviceCounter]
    flops: int
    recomputed_flops: int
    flops_per_s: float
    peak_flops_per_s: float | None
    peak_arithmetic: str = ""
    flops_coverage: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    opportunities: list[Opportunity] = []
    python_stacks: bool = False
    device_memory: list[DeviceMemory] = []
    problems: list[str]
