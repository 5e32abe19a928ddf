"""Find and end all processes of a job on this machine; they inherit an environment variable with the job's id."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "WORKBENCH_JOB"
"""The environment variable with the id of the job; all processes of the job inherit it."""
_END_BY_THEMSELVES = {b"workbench.recorders.hang.collector", b"analyzers.reader_server", b"analyzers.child"}
"""The modules whose processes inherit the job's id but are not ended with the job.

Dump collectors end when they have taken the dumps of the ranks. Readers of files end with the launcher, which started
them.
"""
_GRACE_S = 30.0
POLL_S = 0.2


def _processes_of(job: str, session: int | None = None) -> Iterator[int]:
    """Yield the ids of the processes of a job on this machine, except this process and those in `_END_BY_THEMSELVES`.

    `job` is the job's id, which the environment variable `MARK` of its processes contains. With `session`, only the
    processes of that session are yielded. Linux only.
    """
    mark = f"{MARK}={job}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid != os.getpid() and mark in read(entry / "environ").split(b"\0"):
            words = set(read(entry / "cmdline").split(b"\0")) - {b""}
            # A zombie has no command line.
            if words and not words & _END_BY_THEMSELVES and session in (None, _session_of(pid)):
                yield pid


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def end_processes(job: str, grace_s: float = _GRACE_S, *, session: int | None = None) -> int:
    """End the processes of a job with SIGTERM; after `grace_s` seconds, end the remaining ones with SIGKILL.

    With `session`, only the processes of that session are ended: a daemon, which has its own, is to live on. Return the
    number of processes that were running at first.
    """
    first = set(_processes_of(job, session))
    send(first, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while (left := set(_processes_of(job, session))) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    send(left, signal.SIGKILL)
    return len(first)


def send(pids: set[int], number: signal.Signals) -> None:
    """Send a signal to the processes `pids`; ignore processes that have ended or belong to another user."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def has_handler(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, or ignores it."""
    lines = read(Path("/proc", str(pid), "status")).splitlines()
    masks = [line.split()[1] for line in lines if line.startswith((b"SigIgn:", b"SigCgt:"))]
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def read(path: Path) -> bytes:
    """Return the content of a file in /proc; empty if the process has ended or belongs to another user."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
