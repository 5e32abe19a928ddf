"""Rate how likely an event is the cause of a job's end: give it a class, and a tier by which causes are sorted.

A rank that failed by itself leaves a line of a low tier (its exception, its signal, a broken device). Ranks that waited
for this rank time out later. They print timeouts and lost connections: lines of high tiers. The order of printing does
not matter.
"""

import re
from collections.abc import Callable

from analyzers.case.facts import CUT_OFF, EventKind, LogClass, LogEvent, Reason
from analyzers.case.hypothesis import Role, Tier
from analyzers.failures import catalogue

NOT_FINITE = re.compile(r"\bnan\b|\binf\b|(?:not|non-?|in)[ -]?finite\b", re.IGNORECASE)
_PLAIN_NAMES = re.compile(r"KeyboardInterrupt|SignalException")
WAITING = (EventKind.WATCHDOG_TIMEOUT, EventKind.TIMEOUT, EventKind.HEARTBEAT)
GAVE_UP = (*WAITING, EventKind.CONNECTION_LOST, EventKind.NCCL_ERROR)
"""The kinds of events by which a rank reports that it waited for another rank in vain."""
_TERMINATING = ("SIGTERM", "SIGINT")
_NATIVE_CRASHES = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS")


_FIXED = {
    EventKind.OUT_OF_MEMORY: Role(LogClass.OOM, Tier.OWN_FAILURE),
    EventKind.HOST_OUT_OF_MEMORY: Role(LogClass.HOST_OOM, Tier.OWN_FAILURE),
    EventKind.CUDA_ERROR: Role(LogClass.CRASHED, Tier.NATIVE_CRASH),
    EventKind.DISK_FULL: Role(LogClass.DISK_FULL, Tier.OWN_FAILURE),
    EventKind.UNUSED_PARAMETERS: Role(LogClass.UNUSED_PARAMETERS, Tier.OWN_FAILURE),
    EventKind.MONITORED_BARRIER: Role(LogClass.COLLECTIVE_TIMEOUT, Tier.NAMED_BY_OTHERS),
    EventKind.DESYNC: Role(LogClass.COLLECTIVE_TIMEOUT, Tier.TIMEOUT),
    EventKind.WATCHDOG_TIMEOUT: Role(LogClass.COLLECTIVE_TIMEOUT, Tier.TIMEOUT),
    EventKind.TIMEOUT: Role(LogClass.COLLECTIVE_TIMEOUT, Tier.TIMEOUT),
    EventKind.HEARTBEAT: Role(LogClass.COLLECTIVE_TIMEOUT, Tier.STUCK_WATCHDOG),
    EventKind.CONNECTION_LOST: Role(LogClass.EARLY_EXIT, Tier.LOST_CONNECTION),
}
_LATE_STARTUPS = (Reason.RENDEZVOUS_TIMEOUT, Reason.UNREACHABLE_MASTER, Reason.MISSING_RANKS)
_STOPS = {
    Reason.TIME_LIMIT: Role(LogClass.TIME_LIMIT, Tier.STOPPED),
    Reason.PREEMPTION: Role(LogClass.TERMINATED, Tier.STOPPED),
    Reason.LAUNCHER_SIGNAL: Role(LogClass.TERMINATED, Tier.STOPPED),
    # Slurm also cancels the rest of a job in which a task has failed, so any failure explains more.
    Reason.CANCELLED: Role(LogClass.TERMINATED, Tier.EXIT_CODE),
}


def role_of(event: LogEvent) -> Role | None:
    """Return the class and tier of an event as a possible cause of the job's end.

    The result is None if the event is no failure, or only shows that the launcher ended a rank.
    """
    if known := catalogue.role_of(event):
        return known
    decide = _DECIDED.get(event.kind)
    return decide(event) if decide else _FIXED.get(event.kind)


def _role_of_exception(event: LogEvent) -> Role:
    """Return the class and tier of an exception that no pattern recognises."""
    # Both are raised by an order to stop, so any other failure explains more.
    if _PLAIN_NAMES.match(event.message):
        return Role(LogClass.TERMINATED, Tier.LOST_CONNECTION)
    if event.message == CUT_OFF:
        return Role(LogClass.CRASHED, Tier.VAGUE)
    is_numeric = bool(NOT_FINITE.search(event.message))
    return Role(LogClass.NONFINITE_LOSS if is_numeric else LogClass.CRASHED, Tier.OWN_FAILURE)


def _role_of_end(event: LogEvent) -> Role | None:
    """Return the class and tier of the end of a process by a signal or an exit code.

    The result is None for SIGTERM and SIGINT, by which a launcher ends the remaining ranks, and for exit code 0.
    """
    name, code = event.facts.signal, event.facts.exit_code
    if name in _TERMINATING or (name is None and not code):
        return None
    if name in _NATIVE_CRASHES:
        return Role(LogClass.SIGNAL, Tier.NATIVE_CRASH)
    if name == "SIGKILL":
        return Role(LogClass.SIGNAL, Tier.KILLED)
    if name:
        return Role(LogClass.SIGNAL, Tier.ABORTED)
    return Role(LogClass.EXIT_CODE, Tier.EXIT_CODE)


def _role_of_worker(event: LogEvent) -> Role:
    """Return the class and tier of the death of a data-loader worker.

    A death by SIGTERM is a consequence of the job's end, as launchers end processes by this signal.
    """
    is_ended = (event.facts.signal or "").startswith("Terminated")
    return Role(LogClass.DATALOADER_WORKER, Tier.ABORTED if is_ended else Tier.OWN_FAILURE)


def _role_of_hardware(event: LogEvent) -> Role:
    """Return the class and tier of a hardware error.

    Some Xids (error numbers of NVIDIA's driver) can be caused by a program; these get a higher tier.
    """
    is_software = event.facts.reason is Reason.XID_SOFTWARE
    return Role(LogClass.HARDWARE, Tier.SOFT_HARDWARE if is_software else Tier.HARDWARE)


def _role_of_mismatch(event: LogEvent) -> Role:
    """Return the class and tier of an event which shows that ranks issued different operations or sizes.

    Different sizes get a higher tier, because a lost connection can also lead to them.
    """
    is_size = event.facts.reason is Reason.SIZES
    return Role(LogClass.MISMATCH, Tier.SOFT_HARDWARE if is_size else Tier.OWN_FAILURE)


def _role_of_nan(event: LogEvent) -> Role:
    """Return the class and tier of an event which reports that a loss or gradient is not finite.

    A job may continue with such a number, so other failures have a lower tier. But an exhausted loss scale, or a
    message that names the rank with the first such number, is rated as a failure of this rank.
    """
    is_failure = event.facts.reason is Reason.SCALE_EXHAUSTED or bool(event.facts.ranks)
    return Role(LogClass.NONFINITE_LOSS, Tier.OWN_FAILURE if is_failure else Tier.BROKEN_NUMBERS)


def _role_of_network(event: LogEvent) -> Role | None:
    """Return the class and tier of a failed connection; None for a port in use, which alone is harmless."""
    return None if event.facts.reason is Reason.PORT_IN_USE else Role(LogClass.NETWORK, Tier.NETWORK)


def _role_of_nccl_error(event: LogEvent) -> Role:
    """Return the class and tier of an error of NCCL: a wrong call, or a problem of the system."""
    is_usage = "invalid" in (event.facts.name or "")
    return Role(LogClass.STARTUP, Tier.SOFT_HARDWARE) if is_usage else Role(LogClass.NETWORK, Tier.VAGUE)


def _role_of_startup(event: LogEvent) -> Role:
    """Return the class and tier of a failed start of the job.

    Missing ranks get a higher tier, because these ranks may have failed for a reason of their own.
    """
    is_late = event.facts.reason in _LATE_STARTUPS
    return Role(LogClass.STARTUP, Tier.UNREACHED if is_late else Tier.OWN_FAILURE)


def _role_of_stop(event: LogEvent) -> Role | None:
    """Return the class and tier of an order to stop the job.

    The result is None if its reason is unknown, or if the launcher only asked one process to end.
    """
    return _STOPS.get(event.facts.reason) if event.facts.reason else None


_DECIDED: dict[EventKind, Callable[[LogEvent], Role | None]] = {
    EventKind.EXCEPTION: _role_of_exception,
    EventKind.DATALOADER_WORKER: _role_of_worker,
    EventKind.HARDWARE: _role_of_hardware,
    EventKind.MISMATCH: _role_of_mismatch,
    EventKind.NAN: _role_of_nan,
    EventKind.NETWORK: _role_of_network,
    EventKind.NCCL_ERROR: _role_of_nccl_error,
    EventKind.STARTUP: _role_of_startup,
    EventKind.STOP_REQUESTED: _role_of_stop,
    EventKind.SIGNAL: _role_of_end,
    EventKind.EXIT: _role_of_end,
    EventKind.TORCHRUN_FAILURE: _role_of_end,
    EventKind.TORCHRUN_ROOT_CAUSE: _role_of_end,
}
