"""Define the patterns of log lines on ended processes: exit codes, signals, crashes, reports of Slurm and launchers."""

import re
import signal

from analyzers.case.facts import EventKind, Facts, Reason
from analyzers.logs.reading.line_patterns.pattern import Found, number, numbers, pattern

_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
    "Killed": "SIGKILL",
    "Terminated": "SIGTERM",
}
REASONS = (("TIME LIMIT", Reason.TIME_LIMIT), ("NODE FAIL", Reason.NODE_FAILURE), ("PREEMPT", Reason.PREEMPTION))
_SHELL_CODE = 128
"""The number that shells and containers add to the number of a signal for the exit code of a process that it ended."""


def signal_name(exit_code: int | None) -> str | None:
    """Return the signal that an exit code means, such as `SIGKILL` for -9 and for 137; None if it means no signal."""
    if exit_code is None:
        return None
    value = -exit_code if exit_code < 0 else exit_code - _SHELL_CODE
    try:
        return signal.Signals(value).name if value > 0 else None
    except ValueError:
        return None


def _failed_worker(match: "re.Match[str]") -> Found:
    """Return the event for the worker whose failure was first noticed by torchrun's agent."""
    code = int(match[1])
    facts = Facts(exit_code=code, signal=signal_name(code), local_rank=number(match[2]), pid=number(match[3]))
    return Found(EventKind.EXIT, facts)


def _deepspeed_exit(match: "re.Match[str]") -> Found:
    """Return the event for a worker whose exit was reported by DeepSpeed's launcher, with its exit code."""
    code = int(match[1])
    local = re.search(r"--local_rank=(\d{1,4})", match.string)
    facts = Facts(exit_code=code, signal=signal_name(code), local_rank=number(local[1]) if local else None)
    return Found(EventKind.EXIT, facts)


def _spawned(match: "re.Match[str]") -> Found:
    """Return the event that reports a process of torch.multiprocessing.spawn that a signal ended."""
    return Found(EventKind.SIGNAL, Facts(local_rank=number(match[1]), signal=match[2]))


def crashed(match: "re.Match[str]") -> Found | None:
    """Return the event that reports a crash, with its signal; Python's fault handler, abseil or a shell printed it."""
    name = _SIGNALS.get(match[1], match[1])
    return Found(EventKind.SIGNAL, Facts(signal=name if name.startswith("SIG") else f"SIG{name}"))


def _numbered_signal(match: "re.Match[str]") -> Found:
    return Found(EventKind.SIGNAL, Facts(signal=signal_name(-int(match[1]))))


def _slurm_task(match: "re.Match[str]") -> Found | None:
    """Return the event which reports that Slurm tasks failed, with their numbers as `ranks`.

    The number of a task is the rank of its process only if Slurm starts a task for each rank. The result is None for
    tasks that SIGTERM ended, or if the line does not say how they ended.
    """
    words = match[3]
    code = re.search(r"exit code (\d{1,4})", words)
    name = next((name for text, name in _SIGNALS.items() if words.startswith(text)), None)
    # With SIGTERM, Slurm ends the other tasks after one has failed: it says nothing about the cause.
    if name == "SIGTERM" or (not code and not name):
        return None
    facts = Facts(
        host=match[1],
        ranks=_task_numbers(match[2]),
        exit_code=int(code[1]) if code else None,
        signal=name or signal_name(int(code[1]) if code else None),
    )
    return Found(EventKind.EXIT, facts)


def _task_numbers(text: str) -> list[int]:
    """Return the numbers in a text such as `0-3,5`; of each range, at most the first thousand."""
    ranges = [numbers(part) for part in text.split(",")]
    # A damaged line such as `0-999999999` must not fill the memory.
    return [n for ends in ranges if ends for n in range(ends[0], min(ends[-1], ends[0] + 1000) + 1)]


def cancelled(match: "re.Match[str]") -> Found:
    """Return the event for a step or a job that was ended by Slurm, with the printed reason.

    Without a printed reason, a user cancelled the job, or another task had failed before.
    """
    words = match[2] or ""
    reason = next((reason for text, reason in REASONS if text in words), Reason.CANCELLED)
    kind = EventKind.HARDWARE if reason is Reason.NODE_FAILURE else EventKind.STOP_REQUESTED
    return Found(kind, Facts(reason=reason, host=match[1]))


def node_failure(match: "re.Match[str]") -> Found:
    """Return the event that reports a node that failed according to Slurm, with its name."""
    return Found(EventKind.HARDWARE, Facts(reason=Reason.NODE_FAILURE, host=match[1]))


def launcher_signal(match: "re.Match[str]") -> Found:
    """Return the event that reports a signal that asked the launcher to stop."""
    return Found(EventKind.STOP_REQUESTED, Facts(reason=Reason.LAUNCHER_SIGNAL, signal=signal_name(-int(match[1]))))


def _memory_corruption(match: "re.Match[str]") -> Found:
    """Return the event that reports a heap that the C library found damaged."""
    return Found(EventKind.SIGNAL, Facts(signal="SIGABRT", name=match[0]))


def forced(match: "re.Match[str]") -> Found:
    """Return the event for a process that the launcher killed because it did not react to a request to stop."""
    return Found(EventKind.EXIT, Facts(reason=Reason.FORCED, pid=number(match[1])))


def closed(match: "re.Match[str]") -> Found:
    """Return the event that reports a process that the launcher asked to end."""
    return Found(EventKind.STOP_REQUESTED, Facts(reason=Reason.CLOSED, pid=number(match[1]), signal=match[2]))


def stacks(match: "re.Match[str]") -> Found:
    """Return the event for an expired timer of Python's fault handler; the stacks of all threads follow this line.

    `facts.timeout_ms` is the timer's duration.
    """
    hours, minutes, seconds = (int(text) for text in match.groups())
    return Found(EventKind.STACKS, Facts(timeout_ms=1000 * (3600 * hours + 60 * minutes + seconds)))


_KILLED = r"\bexit(?:ed)?(?: with)?(?: an?)?(?: (?:exit )?(?:code|status))?[ :=]{1,3}(-\d{1,2}|13[4579])\b"
"""Matches a launcher's words on a process that a signal ended; other codes do not say why a process ended."""


def _killed(match: "re.Match[str]") -> Found | None:
    """Return the event for a process that a signal ended, by its exit code."""
    name = signal_name(int(match[1]))
    return Found(EventKind.EXIT, Facts(exit_code=int(match[1]), signal=name)) if name else None


def _started(match: "re.Match[str]") -> Found:
    """Return the event for a start of the job, with the number of the attempt (`expected`) or its step (`joined`)."""
    given = match.groupdict()
    return Found(EventKind.STARTED, Facts(expected=number(given.get("number")), joined=number(given.get("step"))))


PATTERNS = (
    pattern("raining starts at step", r"[Tt]raining starts at step:? (?P<step>\d{1,12})\b", _started),
    pattern(
        "ttempt",
        r"^[^A-Za-z]{0,4}(?:\[[^\]\n]{1,60}\] ?)?[Aa]ttempt\W{1,3}(?P<number>\d{1,4})\s*(?:/\d+)?\W*$",
        _started,
    ),
    pattern("estarting worker group", "Restarting worker group", _started),
    pattern("restart_count=", r"\brestart_count=(?P<number>[1-9]\d{0,3})\b", _started),
    pattern("Timeout (", r"^Timeout \((\d{1,4}):(\d\d):(\d\d)(?:\.\d{1,9})?\)!\s*$", stacks),
    pattern(
        "failed (exitcode:",
        r"failed \(exitcode: (-?\d{1,6})\) local_rank: (\d+) \(pid: (\d+)\)",
        _failed_worker,
    ),
    pattern("closing signal", r"Sending process (\d{1,9}) closing signal (SIG\w+)", closed),
    pattern("Unable to shutdown process", r"Unable to shutdown process (\d{1,9}) via \S+, forcefully exiting", forced),
    pattern("exits with return code", r"exits with return code = (-?\d{1,6})", _deepspeed_exit),
    pattern("terminated with signal", r"process (\d+) terminated with signal (SIG\w+)", _spawned),
    pattern("atal Python error", r"Fatal Python error: ([A-Z][a-z]+(?: [a-z]+){0,2})", crashed),
    pattern("received at time", r"\*\*\* (SIG[A-Z]+) received at time", crashed),
    pattern("Caught signal", r"Caught signal (\d{1,2}) \(", _numbered_signal),
    pattern(
        "srun: error:",
        r"srun: error: (\S{1,200}): tasks? ([\d,-]{1,400}): (.{1,80})",
        _slurm_task,
    ),
    pattern(
        "CANCELLED AT", r"\*\*\* (?:STEP|JOB) \S+ (?:ON (\S+) )?CANCELLED AT \S+(?: DUE TO ([A-Z ]{1,40}))?", cancelled
    ),
    pattern("Node failure on", r"Node failure on (\S{1,100})", node_failure),
    pattern("death signal, shutting down", r"Received (\d{1,2}) death signal", launcher_signal),
    pattern("got signal:", r"Process \d+ got signal: (\d{1,2})", launcher_signal),
    pattern("Main process received SIGTERM", r"Main process received SIGTERM()",
            lambda _: Found(EventKind.STOP_REQUESTED, Facts(reason=Reason.LAUNCHER_SIGNAL, signal="SIGTERM"))),
    pattern("free", r"double free or corruption|free\(\): invalid (?:pointer|size|next size)", _memory_corruption),
    pattern("malloc", r"malloc\(\): \w+|corrupted (?:size vs\. prev_size|double-linked list)", _memory_corruption),
    pattern(
        "core dumped", r"(Segmentation fault|Aborted|Bus error|Illegal instruction|Floating point exception)", crashed
    ),
    pattern("segfault at", r"segfault at [0-9a-f]+ ip()",
            lambda _: Found(EventKind.SIGNAL, Facts(signal="SIGSEGV"))),
    pattern("Killed", r"^(?:\S+: line \d+:\s+\d+ )?(Killed)(?:\s{2,}\S.*)?$", crashed),
    pattern("exit code", _KILLED, _killed),
    pattern("exited with", _KILLED, _killed),
    pattern("Segmentation fault", r"^(?:\S+: line \d+:\s+\d+ )?(Segmentation fault)", crashed),
)  # fmt: skip
