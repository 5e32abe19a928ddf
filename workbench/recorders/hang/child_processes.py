"""Describe the child processes of a rank, such as data-loader workers: command line and Python stacks.

This module uses only the standard library, because it runs in the collector, a process outside of the ranks.
"""

import contextlib
import os
import signal
from pathlib import Path

from workbench.recorders.hang.rank_process import RankProcess

MOST_CHILDREN = 8
STACKS_TIMEOUT_S = 1.0
COMMAND_LENGTH = 200


def describe_children(worker: RankProcess) -> bytes:
    """Return a text about the child processes of rank `worker`, with the stacks of forked ones; empty without any."""
    if worker.side_file is None or worker.has_exited:
        return b""
    return b"".join(describe(worker, pid) for pid in find_children(worker.side_file["pid"])[:MOST_CHILDREN])


def find_children(pid: int) -> list[int]:
    """Return the process ids of the children of process `pid`, ascending; the calling process is left out."""
    found: list[int] = []
    # Linux lists a child under the thread that started it, not under the process.
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    # Local rank 0 started the collector, which is therefore one of its children.
    return sorted(child for child in found if child != os.getpid())


def describe(worker: RankProcess, pid: int) -> bytes:
    """Return a text about process `pid`, a child of rank `worker`: `Process 123: python train.py`, then its stacks.

    The stacks are left out if the process has no handler for the signal that requests stacks.
    """
    stacks = b""
    if catches_stack_signal(pid):
        with contextlib.suppress(OSError):
            stacks = worker.signal_stacks(STACKS_TIMEOUT_S, pid)
    return f"Process {pid}: {command_line(pid)}\n".encode() + stacks + b"\n"


def catches_stack_signal(pid: int) -> bool:
    """Return whether a process has a handler for the signal that requests stacks.

    A forked process inherits the handler from its parent. Without a handler, the signal would kill the process.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught & 1 << (signal.SIGUSR2 - 1))


def command_line(pid: int) -> str:
    """Return the command line of a process as a single line, cut if it is long; empty if the process has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return " ".join(word.decode(errors="replace") for word in words if word).replace("\n", " ")[:COMMAND_LENGTH]
