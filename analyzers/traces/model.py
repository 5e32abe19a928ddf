"""Define the structs of `workbench.trace/1`, the JSON document of a trace report.

Times are integer nanoseconds. Unless a field is called a sum, overlapping time counts once.
"""

import msgspec

from analyzers.traces.memory_model import DeviceMemory
from analyzers.traces.opportunity_model import Opportunity


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """All executions of one kernel; in a CPU trace, all calls of one operator, without calls inside it.

    `operator`, `module` and `line` name the host code that launched the kernel: if there were several, those that
    launched most of its time; empty if the trace does not have them. `line` is a function in the user's own files, with
    the line at which it begins. `occupancy` is the share of a device's warps that the kernel can keep busy at once, in
    per cent; the recorder estimates it from registers, shared memory and grid size. `warps_per_sm` and `blocks_per_sm`
    are the kernel's warps and blocks on one multiprocessor. All three are means weighted by duration, null if not
    recorded. `limited_by` is the resource that limits them ("registers, shared memory") in the longest execution; only
    newer recorders write it.
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
    """The time of some events of a device or host, divided by kind of work; `name` is their phase, stream or step.

    compute + exposed communication + exposed memory + idle = span; overlapped + exposed communication = communication.
    Communication is exposed while nothing computes; exposed memory is the time in which copies run and no kernel does.
    `work_ns` is the sum of the durations: time counts twice if two events overlap.
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
    """One step that the profiler marked (`ProfilerStep#N`), and how the time of the work launched in it divides.

    `start_ns` (Unix time) and `dur_ns` are the start and the wall time of the step on the host.
    """

    step: int
    start_ns: int
    dur_ns: int


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of all calls of one operator, module, annotation or line of source.

    `host_ns` is the time of its calls including the calls inside them, `own_ns` the time without those. `device_ns` is
    the time of the `kernels` kernels launched inside; if no device worked, it sums the operators' own times. `flops`
    counts the floating-point operations of operators whose shapes were recorded, and `bytes` is the least number of
    bytes that these operators read and write; `bound` says whether `compute` or `memory` limits their speed.
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

    `total_ns` is the time of the kernels that the calls launched directly, or on a CPU their own time; `flops_per_s`
    is computed from that time.
    """

    name: str
    shapes: str
    count: int
    total_ns: int
    flops: int
    flops_per_s: float
    bound: str


class LaunchedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """All launches of one kernel directly by one operator, with the total time of the kernel."""

    operator: str
    kernel: str
    count: int
    total_ns: int


class StreamQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The length of the launch queue of one stream: the number of kernels that were launched and had not started.

    `full_ns` is the time in which the queue had more than 1000 kernels. A queue of about this length is full: the next
    launching call must wait.
    """

    name: str
    count: int
    mean: float
    max: int
    full_ns: int


class Launches(msgspec.Struct, frozen=True, kw_only=True):
    """The delay from the end of each launching call to the start of its kernel, and how many kernels wait in the queue.

    `early` kernels start before their call has returned, so their delay is negative. `queue_mean` and `queue_max`
    count the kernels that are launched and have not started. `blocked` launching calls took more than ten times as
    long as the median call, `blocked_ns` in total.
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
    """All calls of one name: their number, total time, and the longest call."""

    name: str
    count: int
    total_ns: int
    max_ns: int


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """All copies of one kind, such as `Memcpy HtoD`, and their bandwidth (total bytes divided by total time)."""

    name: str
    count: int
    total_ns: int
    bytes: int
    bytes_per_s: float


class CopySize(msgspec.Struct, frozen=True, kw_only=True):
    """The copies of one kind whose size is at least `at_least` bytes and less than 16 times that."""

    name: str
    at_least: int
    count: int
    total_ns: int
    bytes: int
    bytes_per_s: float


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """All collectives of one kind, process group, data type and size on one rank.

    `group_desc` is the job's description of the group, such as `mesh_tp`. `bytes` is the size of the larger buffer of
    one rank. `algorithm_bytes_per_s` is that size divided by the shortest duration, as longer ones include waiting;
    `bus_bytes_per_s` is the bandwidth on the links at that rate (as defined by nccl-tests).
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
    """All `count` all-to-alls of one process group on one rank, and how many bytes they send to each member.

    They send `sent_bytes[i]` in total to rank `ranks[i]`. `ranks` is empty if the file does not list the members of the
    group.
    """

    group: str
    group_desc: str = ""
    count: int
    ranks: list[int]
    sent_bytes: list[int]


class CompiledFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A Python function (frame) that torch.compile compiled `versions` times since the job began.

    `breaks` is the number of those of its `calls` that continue another frame after a graph break; `between_ns` is the
    host's time between the code before the break and this frame. `function` and `broken_at` (file:line) are empty
    unless stacks were recorded. `compilations` and `compile_ns` are those during the recording.
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
    """The activity of torch.compile during the trace.

    `regions` is the number of versions of compiled frames that ran, `calls` how often they ran. A version other than
    the first (a region named `n/1` or higher) was recompiled; `recompiled` counts these. `breaks` and `between_ns` are
    sums over `frames`; `lookups` are checks of guards, one for each call of a frame.
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
    """The number of launches of whole CUDA graphs, and the number and total time of the kernels in them."""

    launches: int = 0
    kernels: int = 0
    device_ns: int = 0


class DeviceCounter(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of a device's performance counter, such as `smsp__inst_executed.sum`, over ranges of code of one name.

    The profiler records a value of the counter for each range of code that it measures. `range` is the name of these
    ranges, `name` the name of the counter, `count` the number of recorded values, and `total` their sum.
    """

    range: str
    name: str
    count: int
    total: float


class KernelSequence(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence of kernels that occurs `count` times on a stream in the same order.

    `total_ns` is the sum of the durations of all kernels in all occurrences.
    """

    names: list[str]
    count: int
    total_ns: int


class CriticalPart(msgspec.Struct, frozen=True, kw_only=True):
    """All pieces of a step's critical path with the same kind and name, such as one kernel or one reason for waiting.

    The critical path is the chain of work and waiting that determines the duration of the step, so the `path_ns` of all
    parts add up to that duration. If this part took half as long, the step would be shorter by at most `saved_ns`. The
    real saving may be smaller, because another path may become the critical path.
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
    """All numbers about one device in one file, or about the host (`device` null, `source` "cpu") if no device worked.

    The device is idle in the gaps between kernels. Each gap ends with a kernel that the host had to launch, and is
    divided into: `idle_host_ns`, until the host's call that launched this kernel returned; `idle_launch_ns`, the
    usual latency after such a call; and `idle_unexplained_ns`, the rest. If the kernel had been launched before the
    gap began, all of the gap is `idle_dependency_ns`. The sum is `idle_ns`.

    Communication is exposed while no computing overlaps it. `blocking_communication_ns` is the part of exposed
    communication that delayed other work: a kernel that was already launched, or a host in a synchronising call,
    waited for it to end.

    `mfu` and `hfu` are model and hardware FLOP utilisation (1.0: the peak of `peak_arithmetic`, the number format of
    most operations). They are null if shapes or the peak are not known, or if the counted operators launched less
    than 90 % of the time of matrix products (`flops_coverage`).

    `opportunities` are possible savings of at least 2 % of a step. `python_stacks` says whether Python calls were
    recorded, which slows the host. `device_memory` is empty unless allocations were recorded (`profile_memory`); the
    first item of a file also holds the memory of its host.
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
