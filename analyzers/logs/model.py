"""Define the types for text logs: events, facts, and the structs of the JSON document `workbench.logs/1`."""

import re
from enum import StrEnum

import msgspec

from analyzers.device_memory import MemoryPart
from analyzers.device_memory.nccl import NcclProcess

LOGGER = re.compile(r"^(?:\[\w+\]:\s?)*\[?[IWEF]\d{3,4} [\d:.]+ +(?:\d+ )?\S+\] ")
"""Matches the prefix that the loggers of C++ and of torchrun put before a message: level, date, time, source file."""


class EventKind(StrEnum):
    """The kind of an event; an event is what one line or a block of lines of a log reports."""

    EXCEPTION = "exception"
    OUT_OF_MEMORY = "out_of_memory"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    CUDA_ERROR = "cuda_error"
    HARDWARE = "hardware"
    DATALOADER_WORKER = "dataloader_worker"
    DISK_FULL = "disk_full"
    NAN = "nan"
    OVERFLOW_SKIP = "overflow_skip"
    MISMATCH = "mismatch"
    UNUSED_PARAMETERS = "unused_parameters"
    MONITORED_BARRIER = "monitored_barrier"
    DESYNC = "desync"
    WATCHDOG_TIMEOUT = "watchdog_timeout"
    WATCHDOG_STATUS = "watchdog_status"
    """NCCL's watchdog reports the progress of a process group: its last enqueued and last completed operation."""
    TIMEOUT = "timeout"
    """A wait in gloo or for the store timed out."""
    HEARTBEAT = "heartbeat"
    NCCL_ERROR = "nccl_error"
    NETWORK = "network"
    CONNECTION_LOST = "connection_lost"
    STARTUP = "startup"
    SIGNAL = "signal"
    EXIT = "exit"
    TORCHRUN_FAILURE = "torchrun_failure"
    TORCHRUN_ROOT_CAUSE = "torchrun_root_cause"
    STOP_REQUESTED = "stop_requested"
    """The scheduler or a user ended the job."""
    DUMP_WRITTEN = "dump_written"
    SKIPPED_WORK = "skipped_work"
    """A rank skipped a batch or a sample because of an error, and went on."""
    STACKS = "stacks"
    """Python's fault handler printed the stacks of a running process, because of a timer or a signal."""
    COMPLETED = "completed"


class LogClass(StrEnum):
    """The class of a verdict on logs: how the job ended (`healthy`, `time_limit`), or why it failed (`oom`)."""

    OOM = "oom"
    HOST_OOM = "host_oom"
    CRASHED = "crashed"
    SIGNAL = "signal"
    EXIT_CODE = "exit_code"
    DATALOADER_WORKER = "dataloader_worker"
    DISK_FULL = "disk_full"
    HARDWARE = "hardware"
    NETWORK = "network"
    MISMATCH = "mismatch"
    UNUSED_PARAMETERS = "unused_parameters"
    UNMATCHED_P2P = "unmatched_p2p"
    COLLECTIVE_TIMEOUT = "collective_timeout"
    EARLY_EXIT = "early_exit"
    NONFINITE_LOSS = "nonfinite_loss"
    STARTUP = "startup"
    TIME_LIMIT = "time_limit"
    TERMINATED = "terminated"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """The specific reason of an event or a failure, for kinds of events that have several."""

    # Start-up.
    PORT_IN_USE = "port_in_use"
    RENDEZVOUS_TIMEOUT = "rendezvous_timeout"
    UNREACHABLE_MASTER = "unreachable_master"
    MISSING_RANKS = "missing_ranks"
    NCCL_VERSIONS = "nccl_versions"
    NO_INTERFACE = "no_interface"
    DUPLICATE_GPU = "duplicate_gpu"
    INVALID_USAGE = "invalid_usage"
    DRIVER = "driver"
    NO_GPU = "no_gpu"
    UNSUPPORTED_DEVICE = "unsupported_device"
    """The kernel module of the driver does not support a device of the machine, which need not be one of the job."""
    BAD_ARGUMENTS = "bad_arguments"
    NO_SCRIPT = "no_script"
    # Memory and devices.
    ALLOCATOR = "allocator"
    NCCL_BUFFERS = "nccl_buffers"
    DRIVER_MEMORY = "driver_memory"
    LIBRARY_MEMORY = "library_memory"
    DEVICE_ASSERT = "device_assert"
    XID = "xid"
    XID_SOFTWARE = "xid_software"
    FALLEN_OFF_BUS = "fallen_off_bus"
    ECC = "ecc"
    NODE_FAILURE = "node_failure"
    LINK = "link"
    HOST_ALLOCATOR = "host_allocator"
    OOM_KILLER = "oom_killer"
    # Data and disk.
    WORKER_SIGNAL = "worker_signal"
    WORKER_EXIT = "worker_exit"
    WORKER_TIMEOUT = "worker_timeout"
    SHARED_MEMORY = "shared_memory"
    WRITE_FAILED = "write_failed"
    NO_SPACE = "no_space"
    # Numbers.
    LOSS = "loss"
    GRADIENT = "gradient"
    SCALE_EXHAUSTED = "scale_exhausted"
    # Collectives.
    FINGERPRINTS = "fingerprints"
    SIZES = "sizes"
    GROUPS = "groups"
    MODELS = "models"
    OPERATIONS = "operations"
    MESSAGES = "messages"
    REFUSED = "refused"
    INFINIBAND = "infiniband"
    PEER_GONE = "peer_gone"
    # Ends.
    LAUNCHER_SIGNAL = "launcher_signal"
    TIME_LIMIT = "time_limit"
    PREEMPTION = "preemption"
    CANCELLED = "cancelled"
    CLOSED = "closed"
    """The launcher asked a process to end, because another process failed or because the job was told to end."""
    FORCED = "forced"
    """The launcher killed a process that did not react to its request to stop."""


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The numbers and names in the lines of an event; a field is unset if the lines do not have it.

    Sizes are in bytes. `enqueued` and `completed` are sequence numbers of collectives; `group_rank` is a rank within
    the process group. `input_elements` and `output_elements` are bytes if the event is about sizes that differ.
    """

    reason: Reason | None = None
    # Collectives: sequence numbers of a group count only within that group.
    operation: str | None = None
    input_elements: int | None = None
    output_elements: int | None = None
    timeout_ms: int | None = None
    waited_ms: int | None = None
    enqueued: int | None = None
    completed: int | None = None
    group_rank: int | None = None
    ranks: list[int] = []
    """The ranks that the text itself names."""
    other_operation: str | None = None
    # Processes.
    exit_code: int | None = None
    signal: str | None = None
    pid: int | None = None
    local_rank: int | None = None
    host: str | None = None
    error_name: str | None = None
    hint: str | None = None
    """The line `hint: ...` below the exception, which errors of this project have: what to do."""
    caught: bool = False
    """Whether the program itself printed a CUDA error in its own words, so that no exception ended it there."""
    logged: bool = False
    """Whether a logger printed the error, which means that the code caught it and went on."""
    uncaught: bool = False
    """Whether PyTorch's hook for uncaught exceptions printed the event: that hook puts `[rank1]:` before each line."""
    thread: str | None = None
    """The name of the thread that the exception ended, if it was not the main thread."""
    survived: bool = False
    """Whether the log shows that training went on: a step after an exception, or a finite number after a NaN."""
    # Memory.
    requested_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    unallocated_bytes: int | None = None
    """The memory that PyTorch has reserved on the device but not allocated to tensors."""
    process_bytes: int | None = None
    other_processes: list[int] = []
    """The memory in use by each other process on the device, in bytes."""
    device: int | None = None
    # Devices and network.
    xid: int | None = None
    pci: str | None = None
    peer: str | None = None
    """A network address; for a send or recv, the peer rank that its source line names, or the distance to it (`+1`)."""
    status: int | None = None
    port: int | None = None
    name: str | None = None
    """A name in the text: of a file, an interface, a version or parameters."""
    joined: int | None = None
    expected: int | None = None


class LogEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a log reports: an exception, a timeout, the end of a process, and so on.

    `path` and `line` are its position in the log, `source` is the line of the user's code (`file:line`). `time_ns` is
    the printed time in ns since 1970, taken as UTC; a missing year is taken from the time of the log file. `count` is
    how often the same event was reported. `attempt` is the number of restarts of the job before the event. `chain` has
    the texts of the exceptions that led to the reported exception, the earliest one first.
    """

    kind: EventKind
    message: str
    rank: int | None = None
    time_ns: int | None = None
    path: str = ""
    line: int = 0
    step: int | None = None
    group: str | None = None
    seq: int | None = None
    source: str = ""
    function: str = ""
    count: int = 1
    attempt: int = 0
    chain: list[str] = []
    facts: Facts = Facts()
    excerpt: str = ""
    """The lines of the log around the event."""

    @property
    def headline(self) -> str:
        """The first line of the message, without the time and the source file that a logger prints before it."""
        return LOGGER.sub("", (self.message.strip().splitlines() or [""])[0])


class RankLog(msgspec.Struct, frozen=True, kw_only=True):
    """The last step and the last line of one rank in the logs; `path` is the file with that line.

    `step_line` is the last line with a step, and `step_source` its position as `path:line`.
    """

    rank: int
    last_step: int | None = None
    last_line: str = ""
    path: str = ""
    step_line: str = ""
    step_source: str = ""


class LogFile(msgspec.Struct, frozen=True, kw_only=True):
    """A log file of the run, and how much of it was read; `problem` is why it could not be read (empty: it could)."""

    path: str
    bytes: int
    lines: int
    binary: bool = False
    problem: str = ""
    skipped_bytes: int = 0
    """The size of the part in the middle that was not read, because the part before has too many lines like errors."""


class LogMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a device's memory at a failed request for memory, as a log shows them.

    `parts` add up to the total of the device, except for rounding. `path` and `line` are the position of the message
    in the logs.
    """

    rank: int | None
    device: int | None
    path: str
    line: int
    requested_bytes: int
    parts: list[MemoryPart]


class LogsData(msgspec.Struct, frozen=True, kw_only=True):
    """The field `data` of the JSON document `workbench.logs/1`.

    `events` are in the order of the logs. `ranks` has what the logs show about each rank. `world_size` is None if no
    log has it.
    """

    world_size: int | None
    ranks: list[RankLog]
    events: list[LogEvent]
    files: list[LogFile]
    left_out: int = 0
    """The number of events that were counted but not kept, because there were too many."""
    memory: list[LogMemory] = []
    """The parts of a device's memory at each failed request for memory, where the message has the sizes."""
    nccl: list[NcclProcess] = []
    """The memory of NCCL's buffers in each process, where a log has its lines (NCCL_DEBUG=INFO)."""
