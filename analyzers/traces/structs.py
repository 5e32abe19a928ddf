"""The structs of `workbench.trace/1`. All times are integer nanoseconds, all but sums are unions of intervals."""

import msgspec

from analyzers.traces.memory_structs import DeviceMemory


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """All executions of one kernel; of one operator's own time in a CPU trace.

    `operator`, `module` and `line` are what launched it, most of its time if several did; empty where nothing tells.
    `occupancy` is the part of the device's warps that it could keep busy at once, in percent, as the recorder estimates
    it from registers, shared memory and grid; `warps_per_sm` and `blocks_per_sm` what a multiprocessor gets of it. All
    are means weighted by duration, null where the trace does not tell. `limited_by` is what keeps a multiprocessor from
    taking more ("registers, shared memory") in the execution that took longest; only newer recorders note it.
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
    """How a selection of the work divides: `name` is a phase, a stream or a step.

    compute + exposed communication + exposed memory + idle = span; overlapped + exposed communication = communication.
    `work_ns` is the sum of the lengths, which counts overlaps twice.
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
    """One `ProfilerStep#N`: its wall time on the host, and the work that was launched inside it."""

    step: int
    start_ns: int
    dur_ns: int


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """An operator, module, annotation or line of source, and what it costs.

    `host_ns` is a sum over its calls with what these call, `own_ns` without; `device_ns` sums the kernels launched
    inside, which on a CPU are the operators' own times. `flops` counts multiplications and additions of those
    operators whose shapes were recorded.
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
    """An operator with inputs of certain sizes.

    `total_ns` is the time of the kernels that it launched itself, on a host its own; `flops_per_s` is over that time.
    """

    name: str
    shapes: str
    count: int
    total_ns: int
    flops: int
    flops_per_s: float
    bound: str


class LaunchedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel and the operator that launched it, the innermost one."""

    operator: str
    kernel: str
    count: int
    total_ns: int


class StreamQueue(msgspec.Struct, frozen=True, kw_only=True):
    """How many kernels of one stream were launched and had not begun; `full_ns`: that was over 1000 of them, at about
    which a launching call has to wait.
    """

    name: str
    count: int
    mean: float
    max: int
    full_ns: int


class Launches(msgspec.Struct, frozen=True, kw_only=True):
    """From the end of a launching call to its kernel's beginning (`early`: negative), and how many kernels queue.

    `queue_mean` and `queue_max` count kernels that were launched and have not begun; `blocked` are launching calls that
    took more than ten times as long as the median one.
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


class CallTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one name: how often, how long together and at most."""

    name: str
    count: int
    total_ns: int
    max_ns: int


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of one kind; the bandwidth is that of all of them together, in bytes a second."""

    name: str
    count: int
    total_ns: int
    bytes: int
    bytes_per_s: float


class CopySize(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of one kind whose size is `at_least` so many bytes and less than 16 times that."""

    name: str
    at_least: int
    count: int
    total_ns: int
    bytes: int
    bytes_per_s: float


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one kind, group and size on one rank.

    `group_desc` is what the job calls the group, such as `mesh_tp`. `bytes` is the size of the larger buffer of one
    rank; `algorithm_bytes_per_s` that size through the shortest time, as the others contain waiting;
    `bus_bytes_per_s` what the links carry at that (the convention of nccl-tests).
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
    """The all-to-alls of one group on one rank: `sent_bytes` to each of `ranks`, all `count` calls together.

    `ranks` is empty where the file does not tell who the members are.
    """

    group: str
    group_desc: str = ""
    count: int
    ranks: list[int]
    sent_bytes: list[int]


class CompiledFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A Python frame that torch.compile compiled, `versions` times since the job began.

    `function` and `broken_at` (file:line) are known where stacks were recorded. Of its `calls` `breaks` went on behind
    a graph break; `between_ns` is the host's time from leaving the graph before to entering this one.
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
    """What torch.compile left in the trace; a frame compiled again has a region `n/1` or higher.

    `breaks` and `between_ns` are sums over `frames`; `lookups` are checks of the guards, one a call of a frame.
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
    """CUDA graphs: launches of whole graphs, and the kernels that ran from them."""

    launches: int = 0
    kernels: int = 0
    device_ns: int = 0


class DeviceCounter(msgspec.Struct, frozen=True, kw_only=True):
    """A performance counter of the device in all ranges of one name, such as `smsp__inst_executed.sum`."""

    range: str
    name: str
    count: int
    total: float


class KernelSequence(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels that follow each other on a stream again and again; `total_ns` sums their times."""

    names: list[str]
    count: int
    total_ns: int


class CriticalPart(msgspec.Struct, frozen=True, kw_only=True):
    """What has a share of the critical path of a step.

    The shares add up to the step; if this took half as long the step would be shorter by `saved_ns` at most, as another
    path may take over.
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
    """One device of one file; `device` is null and `source` "cpu" where the work is that of the host itself.

    The four kinds of idle time add up to `idle_ns`: `host` until the next launching call had returned, `dependency`
    where the next kernel had been launched before the device went idle, `launch` the usual latency after the call,
    `unexplained` the rest. `blocking_communication_ns` is that part of the exposed one during which a kernel that was
    launched already waited for the communication's end. `device_memory` is that of the device, in a file's first
    account also that of its host; empty unless allocations were recorded (`profile_memory`).
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
    mfu: float | None = None
    hfu: float | None = None
    device_memory: list[DeviceMemory] = []
    problems: list[str]
