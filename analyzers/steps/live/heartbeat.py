"""Whether a rank lives, and where it is right now: its heartbeat, its log, its process on this machine."""

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

BEAT = struct.Struct("<qqqq32s")
DONE = "done"
CLOCK_SLACK_S = 2.0


class Beat(NamedTuple):
    """When a rank last changed its phase, which one it is in, and of which step."""

    time_ns: int
    step: int
    phase: str


def read_beat(path: Path) -> Beat | None:
    """The heartbeat in a file; None before the first beat."""
    try:
        time_ns, step, _, beats, phase = BEAT.unpack(path.read_bytes())
    except (OSError, struct.error):
        return None
    return Beat(time_ns, step, phase.rstrip(b"\0").decode(errors="replace")) if beats else None


def beat_of(record: Mapping[str, Any]) -> Beat | None:
    """Where the last record of a structured log says that the rank is."""
    time_us, step = record.get("time_us"), record.get("step", 0)
    if not isinstance(time_us, int) or not isinstance(step, int):
        return None
    name, _, end = str(record.get("log_type_name", "")).rpartition("_")
    return Beat(time_us * 1000, step, name if end == "start" else "between")


def is_running(header: Mapping[str, Any]) -> bool | None:
    """Whether the process that wrote a log's header still runs; None where that cannot be known from this machine."""
    pid, started_ns = header.get("pid"), header.get("started_ns")
    if header.get("host") != socket.gethostname() or not isinstance(pid, int) or not Path("/proc/self/stat").exists():
        return None
    born = born_s(pid)
    if born is None:
        return False
    # Another process may have got the number since.
    return not isinstance(started_ns, int) or born <= started_ns / 1e9 + CLOCK_SLACK_S


def born_s(pid: int) -> float | None:
    """When a process began, in Unix seconds; None where there is none, or only its remains."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        uptime = float(Path("/proc/uptime").read_bytes().split()[0])
        state, ticks = stat[0], int(stat[19])
    except (OSError, IndexError, ValueError):
        return None
    return None if state in (b"Z", b"X") else time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
