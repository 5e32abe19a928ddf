"""Write the advice on each cause: what the user should do next."""

from collections.abc import Callable

from analyzers.case.facts import EventKind, LogClass, Reason
from analyzers.case.hypothesis import Basis, Cause
from analyzers.logs.findings.memory_steps import for_memory
from analyzers.logs.findings.wording import first_with, place, who
from analyzers.words import rank_names

STEPS = {
    LogClass.CRASHED: "read the traceback in the log, and the lines above it, which show what was read or computed",
    LogClass.SIGNAL: "look at the native extension that the line calls; if the title names no line, run with `python -X"
    " faulthandler`, and read the kernel's log (`dmesg -T`) of the node of {ranks} at the time of the crash",
    LogClass.EXIT_CODE: "read the stderr of {ranks}; start torchrun with `--log-dir logs --tee 3`, and wrap main() in"
    " `torch.distributed.elastic.multiprocessing.errors.record`",
    LogClass.DISK_FULL: "free space or raise the quota where the file is written (`df -h`, `quota -s`), and check the"
    " last checkpoint: it may be truncated",
    LogClass.NETWORK: "read the log of the rank at the other end of the connection. If it failed before this error, its"
    " failure is the cause. If it was still running, check the network of both nodes (`ping`, `ibstat`, `ethtool`), and"
    " exclude a faulty node from the next run (Slurm: `--exclude=NODE`)",
    LogClass.UNUSED_PARAMETERS: "make every parameter take part in the loss on each rank, also where forward()"
    " branches, or pass `find_unused_parameters=True` to DistributedDataParallel; TORCH_DISTRIBUTED_DEBUG=DETAIL"
    " prints the names",
    LogClass.UNMATCHED_P2P: "give each send a recv on its peer with the same tag, and issue both in the same order on"
    " both ranks",
    LogClass.EARLY_EXIT: "find out why {ranks} left the training before the others: uneven data (`drop_last`,"
    " DistributedSampler), an early `return`, `sys.exit()`, or an `except` that goes on after an error and so"
    " leaves out collectives. To see which collectives were left out, run the job again under"
    " `workbench launch -- COMMAND`",
    LogClass.TIME_LIMIT: "ask for more time, or save checkpoints more often and resume. With Slurm's"
    " `--signal=USR1@120` the script gets SIGUSR1 about 120 s before the limit: let a handler save there, because"
    " without one the signal ends the process",
    LogClass.TERMINATED: "find out who ended the job, because no rank failed before: look at `sacct -j JOB`, at the"
    " scheduler's log, and for a `timeout` command or a closed terminal",
    LogClass.UNKNOWN: "read the output of every rank: torchrun's `--log-dir logs --tee 3` writes a file for each. If"
    " none of them shows the cause, run under `workbench launch -- COMMAND`, which records what each rank waits in",
}
STARTUP = {
    Reason.PORT_IN_USE: "end the process that uses the port (`ss -ltnp` names it; often it is an earlier run), or"
    " choose a different `--master-port`, or use `--standalone` on one node",
    Reason.RENDEZVOUS_TIMEOUT: "check on each node that the job started at all, that `--rdzv-endpoint`, `--rdzv-id` and"
    " `--nnodes` are the same, and that no firewall blocks the port",
    Reason.UNREACHABLE_MASTER: "check MASTER_ADDR and MASTER_PORT: the address must be that of the node of rank 0"
    " (`getent hosts`, `nc -zv HOST PORT` from this node), and rank 0 must have started",
    Reason.MISSING_RANKS: "read the logs of the ranks that did not join: they often died while importing or loading;"
    " check WORLD_SIZE, and that no two processes have the same RANK",
    Reason.NCCL_VERSIONS: "use one environment on all nodes: compare `python -c 'import torch;"
    " print(torch.__version__, torch.cuda.nccl.version())'`",
    Reason.NO_INTERFACE: "set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) to an interface that each node has:"
    " `ip -br addr`",
    Reason.DUPLICATE_GPU: "call `torch.cuda.set_device(LOCAL_RANK)` before the first collective, and start no more"
    " ranks than the node has GPUs",
    Reason.INVALID_USAGE: "run with NCCL_DEBUG=WARN: it names the call; check that each rank has its own GPU",
    Reason.DRIVER: "install a newer driver, or a PyTorch built for a CUDA version that the driver supports"
    " (`nvidia-smi` shows the newest one; torch.version.cuda is that of PyTorch)",
    Reason.UNSUPPORTED_DEVICE: "install a driver that supports this GPU: an older GPU needs an older driver, or the"
    " closed kernel modules instead of the open ones",
    Reason.NO_GPU: "check `nvidia-smi` and CUDA_VISIBLE_DEVICES on that node, and that PyTorch was built for its GPU",
    Reason.BAD_ARGUMENTS: "correct the command line; the script's own arguments come after its name",
    Reason.NO_SCRIPT: "correct the path of the script, or check that this file exists on the node",
}
_WORKERS = {
    Reason.SHARED_MEMORY: "give the container more shared memory (`--shm-size=16g`, or mount /dev/shm), or use fewer"
    " workers",
    Reason.WORKER_TIMEOUT: "find the sample or the storage that is slow: set `num_workers=0` to see the stack, or raise"
    " `timeout=`",
    Reason.WORKER_EXIT: "set `num_workers=0` for one run: the exception then appears in the rank itself",
}
HARDWARE = {
    Reason.NODE_FAILURE: "exclude this node from the next run, and report it",
    Reason.XID_SOFTWARE: "run with CUDA_LAUNCH_BLOCKING=1 and compute-sanitizer; if it stays on one node, treat it as"
    " broken",
    Reason.LINK: "check cables and ports of that node (`ibstat`, `ibdiagnet`), and exclude it from the next run",
}
_BROKEN_GPU = (
    "drain and reboot the node with this GPU (if the log does not name the node, the scheduler does), then check the"
    " GPU (`nvidia-smi -q -d ECC,ROW_REMAPPER`, `dcgmi diag -r 3`); replace it if this happens again"
)
_PORT_CLOSED = (
    "find the host with that address (`getent hosts ADDRESS`), and read the logs of its ranks: a refused connection"
    " usually means that a rank there had ended, and the error that ended it is the cause. If all of them were still"
    " running, check the firewall, and whether NCCL_SOCKET_IFNAME names the right interface"
)
# DistributedDataParallel raises this where two backward passes reach a parameter, not where none does.
_READY_TWICE = "mark a variable ready only once"
_RECOMPUTED = (
    "pass `use_reentrant=False` to torch.utils.checkpoint, because reentrant recomputation of a layer that is used"
    " twice reaches its parameters twice. If nothing is recomputed, use the parameters only within the wrapped"
    " forward(), or pass `static_graph=True` to DistributedDataParallel if all steps have the same graph"
)
_NOT_IMPORTED = (
    "install the module in the environment that this rank uses, or, if it is a file of your project, add its folder to"
    " PYTHONPATH there. If other ranks import it, compare `python -c 'import sys; print(sys.executable, sys.path)'` on"
    " their nodes and on that of this rank"
)
_DUMPS = "TORCH_NCCL_DUMP_ON_TIMEOUT=1 and TORCH_FR_BUFFER_SIZE=2000"
_TIMEOUTS = {
    Basis.FIRST_OPERATION: "run once with NCCL_DEBUG=INFO and read which transport and interface NCCL chose; then try"
    " NCCL_P2P_DISABLE=1 and NCCL_IB_DISABLE=1, one at a time, and set NCCL_SOCKET_IFNAME if the interface is wrong",
    Basis.ALONE: "look for a collective that only this rank reaches: in `if rank == 0:`, in saving, logging or metrics",
    Basis.EXTRA_OPERATION: "look for a collective that only this rank reaches: in `if rank == 0:`, in a branch",
    Basis.ALL_WAIT: "check devices and network of these ranks. Start the next run with `workbench launch`, which"
    f" records what each rank waits for, or set {_DUMPS} (for NCCL)",
}


def next_step(cause: Cause) -> str:
    """Return advice on a cause, with the exact setting if there is one."""
    special = SPECIAL.get(cause.kind)
    advice = special(cause) if special else STEPS[cause.kind]
    return advice.replace("{ranks}", who(cause.ranks, "the failed rank"))


_CAUGHT_OR_ENDED = (
    "compare the last step in the log with the number of steps that were planned, and look at the exit code of the job:"
    " both show whether this exception ended it. If it did, open the line that raised it"
)
_PREEMPTED = (
    "resume from the last checkpoint. To lose fewer steps at the next preemption, save checkpoints more often, or let a"
    " handler of SIGTERM save one if the scheduler grants a time of grace (Slurm: GraceTime of the partition)"
)


def _for_unknown(cause: Cause) -> str:
    """Return how to find the cause if the logs do not show it."""
    return _CAUGHT_OR_ENDED if cause.lead.kind is EventKind.EXCEPTION else STEPS[LogClass.UNKNOWN]


def _for_terminated(cause: Cause) -> str:
    """Return what to do about a job that was ended from outside."""
    return _PREEMPTED if cause.reason is Reason.PREEMPTION else STEPS[LogClass.TERMINATED]


def _for_network(cause: Cause) -> str:
    """Return how to distinguish a failed network from a process that had ended before."""
    return _PORT_CLOSED if cause.reason is Reason.REFUSED else STEPS[LogClass.NETWORK]


def _for_startup(cause: Cause) -> str:
    """Return what to check for a job that did not start."""
    if cause.reason is Reason.NO_SCRIPT and (cause.lead.facts.name or "").endswith("python"):
        return "write `torchrun script.py`, not `torchrun python script.py`: torchrun took `python` for the script"
    return STARTUP.get(cause.reason or Reason.INVALID_USAGE, STARTUP[Reason.INVALID_USAGE])


def _for_crash(cause: Cause) -> str:
    """Return what to do about an exception.

    After a CUDA error the text says how to find the line that caused it, because another line reports the error. If an
    error of this project has a hint, the hint is repeated.
    """
    if cause.lead.kind is EventKind.CUDA_ERROR:
        suspects = (
            "check indices and labels against the sizes that they index"
            if cause.reason is Reason.DEVICE_ASSERT
            else "suspect custom kernels first, then indices out of range"
        )
        return (
            "run once with CUDA_LAUNCH_BLOCKING=1, so that the traceback points to the failing kernel, or under"
            f" compute-sanitizer; {suspects}"
        )
    if cause.lead.facts.hint:
        return cause.lead.facts.hint
    if cause.lead.message.startswith(("ModuleNotFoundError", "ImportError")):
        return _NOT_IMPORTED
    if _READY_TWICE in cause.lead.message:
        return _RECOMPUTED
    return _OPEN_LINE if place(cause.lead) else STEPS[LogClass.CRASHED]


def _for_signal(cause: Cause) -> str:
    """Return how to find out why a signal ended a rank; for SIGKILL, whether it came from the kernel's OOM killer."""
    if cause.lead.facts.signal == "SIGKILL":
        return (
            "find out who sent SIGKILL, because the log does not show it. Look for the kernel's out-of-memory killer"
            " first (`dmesg -T | grep -i 'killed process'`; under Slurm also `sacct -j JOB -o State,MaxRSS`)"
        )
    return STEPS[LogClass.SIGNAL]


_OPEN_LINE = (
    "open the line that the title names; the lines above the traceback in the log show what was read or computed"
)
_ABSURD_BYTES = 64 << 30
"""A request for this much host memory or more has probably a wrong size; it is hardly the last of many requests."""


def _for_host_memory(cause: Cause) -> str:
    """Return advice on using less memory of the host."""
    requested = cause.lead.facts.requested_bytes or 0
    if cause.reason is Reason.HOST_ALLOCATOR and requested >= _ABSURD_BYTES:
        return "check the size that this line computes; it is allocated on the host, not on a device"
    if cause.reason is Reason.HOST_ALLOCATOR:
        return (
            "the request is small, so the memory was full already: check what limits it (`free -h`, `ulimit -d -v`, the"
            " limit of the container or of Slurm's `--mem`), and record a memory snapshot to see what fills it"
        )
    return (
        "ask for more memory (`--mem` of Slurm, the container's limit), use fewer data-loader workers, load checkpoints"
        " with `mmap=True` or on one rank at a time"
    )


def _for_worker(cause: Cause) -> str:
    """Return what to look at when a data-loader worker died."""
    if cause.reason in _WORKERS:
        return _WORKERS[cause.reason]
    name = first_with(cause, "signal").facts.signal or ""
    if "us error" in name:
        return _WORKERS[Reason.SHARED_MEMORY]
    if name.startswith("Killed"):
        return (
            "check with `dmesg -T` whether the kernel's out-of-memory killer ended it. If so, use fewer workers or a"
            " smaller prefetch_factor, or ask for more host memory"
        )
    return "set `num_workers=0` and run with `python -X faulthandler` to see which sample or library crashes"


def _for_hardware(cause: Cause) -> str:
    """Return what to do about a broken device or node."""
    return HARDWARE.get(cause.reason or Reason.XID, _BROKEN_GPU)


def _for_mismatch(cause: Cause) -> str:
    """Return how to find the branch of the program in which ranks differ."""
    called = {(e.source, (e.facts.operation or "").partition(" [")[0]) for e in cause.failure.events}
    if cause.reason is Reason.FINGERPRINTS and len(called) == 1 and cause.lead.source:
        return (
            "all ranks are in the same line, and what they pass differs: find out why, for example a last batch that is"
            " smaller, or sequences that are not padded to one length"
        )
    if cause.reason is Reason.FINGERPRINTS:
        return (
            f"compare the code that leads {who(cause.ranks, 'each rank')} to its call with that of the others: a"
            " branch, a loop that ends earlier, or a batch of a different shape; every rank must issue the same"
            " operations with the same shapes"
        )
    if cause.blame and cause.blame.basis is Basis.LEFT_ALONE:
        return _TIMEOUTS[Basis.ALONE]
    if cause.blame and cause.blame.basis is Basis.THREADS:
        return (
            "give the thread a process group of its own (`dist.new_group()`), or issue its collectives in the main"
            " thread"
        )
    if cause.blame and cause.blame.basis is Basis.OTHER_LINE:
        lines = " with ".join(dict.fromkeys(place(event).removeprefix(" in ") for event in cause.waited))
        return (
            f"compare {lines}: look for a branch that only some ranks take, or a loop that ends earlier on one of them"
        )
    return (
        "run once with TORCH_DISTRIBUTED_DEBUG=DETAIL, which names the rank and both shapes before the collective"
        " starts"
    )


def _for_timeout(cause: Cause) -> str:
    """Return where to look for the rank that did not join."""
    if cause.lead.kind is EventKind.HEARTBEAT:
        return f"look at the host's stacks (`py-spy dump --native --pid PID`), the driver's log for Xid, and {_DUMPS}"
    if cause.blame and cause.blame.basis in _TIMEOUTS:
        return _TIMEOUTS[cause.blame.basis]
    if cause.ranks:
        return (
            f"read the log of {rank_names(cause.ranks)} up to its last line. To see its stack next time, start the job"
            " with `workbench launch`, or run `py-spy dump --pid PID` while it hangs"
        )
    return (
        "look in the logs of the other ranks for one that failed before, printed no timeout, or timed out in a"
        " different operation: that rank did not join. Start the next run with `workbench launch`, which records"
        f" what each rank waits for, or set {_DUMPS} (for NCCL) and give the dumps to `workbench hang`"
    )


def _for_numbers(cause: Cause) -> str:
    """Return how to find where NaN or infinity first occurs."""
    if cause.ranks:
        ranks = rank_names(cause.ranks)
        return f"look at the batch and the device of {ranks}: NaN appeared there before ranks exchanged gradients"
    return (
        "find where the first NaN appears: in the forward pass by a forward hook that checks each module's output with"
        " `torch.isfinite`, in the backward pass by `torch.autograd.set_detect_anomaly(True)`. If the loss rose before,"
        " lower the learning rate or clip gradients; if one batch causes it, check that batch or leave it out"
    )


SPECIAL: dict[LogClass, Callable[[Cause], str]] = {
    LogClass.STARTUP: _for_startup,
    LogClass.NETWORK: _for_network,
    LogClass.TERMINATED: _for_terminated,
    LogClass.UNKNOWN: _for_unknown,
    LogClass.CRASHED: _for_crash,
    LogClass.SIGNAL: _for_signal,
    LogClass.OOM: for_memory,
    LogClass.HOST_OOM: _for_host_memory,
    LogClass.DATALOADER_WORKER: _for_worker,
    LogClass.HARDWARE: _for_hardware,
    LogClass.MISMATCH: _for_mismatch,
    LogClass.COLLECTIVE_TIMEOUT: _for_timeout,
    LogClass.NONFINITE_LOSS: _for_numbers,
}
