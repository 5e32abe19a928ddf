"""Define the facts that a failure leaves: events of a log with their numbers, and what each rank last said."""

import re
from enum import StrEnum

import msgspec

_LOGGER = re.compile(r"^(?:\[\w+\]:\s?)*\[?[IWEF]\d{3,4} [\d:.]+ +(?:\d+ )?\S+\] ")
"""Matches the prefix that the loggers of C++ and of torchrun put before a message: level, date, time, source file."""


CUT_OFF = "a traceback without its last line"
"""The message of the event for a traceback that ends before the line that names the exception."""


class EventKind(StrEnum):
    """The kind of an event that one line or a block of lines of a log reports.

    `cuda_error` is an error of CUDA other than memory. `hardware` is an error of a device, its driver or a node. `nan`
    is a NaN in the loss or a gradient, and `overflow_skip` is a step that fp16 training skipped because of an overflow.
    `skipped_work` is a batch or sample that a rank skipped because of an error. `mismatch` are ranks that called
    different collectives, or with different sizes. `monitored_barrier` and `desync` are PyTorch's reports on ranks that
    did not arrive. `timeout` is a wait in gloo or for the store that timed out, `watchdog_timeout` a timeout of NCCL's
    watchdog, and `watchdog_status` its report on the progress of a process group. `heartbeat` is a stuck watchdog.

    `startup` is a failure before the training began. `stop_requested` is an end that the scheduler, the launcher or a
    user asked for. `signal` and `exit` are ends of processes. `torchrun_failure` and `torchrun_root_cause` are rows of
    the table that torchrun prints. `dump_written` is a Flight Recorder dump, and `stacks` are stacks of a running
    process that Python's fault handler printed. `completed` is the end of a training, `started` the start of a
    further attempt.
    """

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
    STARTED = "started"
    """The job starts again in the same log after an attempt that failed."""
    KNOWN = "known"
    """A line outside a traceback that an entry of the catalogue knows."""
    CLUE = "clue"
    """A line that is no failure, and that tells which of several failures an exception means."""


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
    DEAD_TRAINING = "dead_training"
    """The training runs, and learns nothing."""
    DATA_TIME = "data_time"
    NEAR_LIMIT = "near_limit"
    RESUME = "resume"
    LOSS_SPIKE = "loss_spike"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """The specific reason of an event or a failure, for kinds of events that have several.

    At the start: `missing_ranks` did not join in time, `driver` is an NVIDIA driver that does not fit, `bad_arguments`
    and `no_script` are errors in the command. Memory: `allocator` is PyTorch's allocator, `driver_memory` and
    `library_memory` are requests of CUDA and its libraries, `nccl_buffers` of NCCL; on the host, `host_allocator` is a
    failed request and `oom_killer` a killed process. Devices: `xid_software` is an Xid, an error number of NVIDIA's
    driver, that a program can cause, and `xid` is any other; `link` is a failing network link. Disk: `write_failed` is
    a write that ended early. Numbers: `scale_exhausted` is a loss scale of fp16 training that cannot fall further.

    Collectives: `fingerprints` (PyTorch's check of all calls), `operations`, `sizes`, `groups` and `models` are what
    differs between ranks; `messages` are sends and receives without a counterpart; `peer_gone` is a lost connection.
    Ends: `closed` is a process that the launcher asked to end, and `forced` one that it killed.
    """

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
    """The launcher asked a process to end, because another process failed or because the job was ordered to stop."""
    FORCED = "forced"
    """The launcher killed a process that did not react to its request to stop."""


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The numbers and names in the lines of an event; a field is absent if the lines do not have it.

    Collectives: `operation` is the one that failed, and `other_operation` the one that another rank called instead.
    `enqueued` and `completed` are the sequence numbers of the last collectives that a rank enqueued and completed in a
    group. `group_rank` is a rank within the process group. `ranks` are the ranks that the text names. `input_elements`
    and `output_elements` are sizes of tensors; they are bytes if the event is about sizes that differ.

    Processes: `error_name` and `hint` are of the error that ended a process. `caught`, `logged` and `uncaught` say who
    printed an error: the program itself, a logger of the program, or PyTorch's hook for exceptions that nothing caught.
    `thread` is the thread that an exception ended, if it was not the main thread. `survived` says whether training went
    on.

    Memory: all sizes are in bytes. `unallocated_bytes` are reserved by PyTorch but not allocated, `process_bytes` are
    used by the process, and `other_processes` by each other process on the device.

    Devices and network: `xid` is the error number of NVIDIA's driver, `pci` the address of the device, and `status` the
    result code of an InfiniBand request. `peer` is a network address or the other rank of a send or recv. `name` is
    another name in the text. `joined` of the `expected` ranks or nodes arrived.
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
    """The advice in the line `hint: ...` below the exception, which errors of this project have."""
    caught: bool = False
    """Whether the program itself printed a CUDA error in its own words, so that no exception ended it there."""
    logged: bool = False
    """Whether a logger printed the error, which means that the code caught it and went on."""
    ends_log: bool = False
    """Whether nothing comes after an error that a logger printed, so that nothing shows that the program went on."""
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
    """An event that a log reports, such as an exception, a timeout or the end of a process.

    `message` is its text, and `excerpt` has the lines around it. `path` and `line` are its position in the logs.
    `rank`, `step`, `group` (a process group) and `seq` (the number of a collective in it) are None if the log does not
    show them. `source` is the line of the user's code, as `file:line`, and `function` the function there; each is empty
    if unknown. `time_ns` is the printed time in ns since 1970, taken as UTC (None: no time is printed); a missing year
    is taken from the time of the log file.

    `count` is how often the same event was reported. `attempt` is the number of restarts of the job before the event.
    `chain` has the texts of the exceptions that led to this exception, the earliest one first. `facts` has the numbers
    and names in the text.
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
    """The lines of the log around the event, as they are printed."""
    details: str = ""
    """The further lines of the message of an exception."""
    calls: list[str] = []
    """The frames of an exception as `file:line:function`, the outermost first."""

    @property
    def headline(self) -> str:
        """The first line of the message, without the time and the source file that a logger prints before it."""
        return _LOGGER.sub("", (self.message.strip().splitlines() or [""])[0])


class RankLog(msgspec.Struct, frozen=True, kw_only=True):
    """The last step and the last line that one rank printed.

    `last_step` is the last step that it reported (None: none), `step_line` is the line with this step, and
    `step_source` is the position of that line, as `path:line`. `last_line` is the last line of the rank, and `path` the
    file with it.
    """

    rank: int
    last_step: int | None = None
    last_line: str = ""
    path: str = ""
    step_line: str = ""
    step_source: str = ""
