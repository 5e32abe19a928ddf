"""Describe the child processes of a rank, such as data-loader workers: command line and Python stacks.

This module uses only the standard library, because it runs in the collector, a process outside of the ranks.
"""

import contextlib
from pathlib import Path

from workbench.recorders.hang.rank_process import RankProcess, children_of

_MOST_CHILDREN = 8
_STACKS_TIMEOUT_S = 1.0
_COMMAND_LENGTH = 200


def describe_children(worker: RankProcess) -> bytes:
    """Return a text about the child processes of rank `worker`, with the stacks of forked ones; empty without any."""
    rank = worker.process
    return b"" if rank is None else b"".join(describe(worker, pid) for pid in children_of(rank)[:_MOST_CHILDREN])


def describe(worker: RankProcess, pid: int) -> bytes:
    """Return a text about process `pid`, a child of rank `worker`: `Process 123: python train.py`, then its stacks.

    The stacks are left out if the child was not forked with the rank's handler for the signal that requests stacks.
    """
    stacks = b""
    with contextlib.suppress(OSError):
        stacks = worker.signal_stacks(_STACKS_TIMEOUT_S, pid)
    return f"Process {pid}: {_command_line(pid)}\n".encode() + stacks + b"\n"


def _command_line(pid: int) -> str:
    """Return the command line of a process as a single line, cut if it is long; empty if the process has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return " ".join(word.decode(errors="replace") for word in words if word).replace("\n", " ")[:_COMMAND_LENGTH]
