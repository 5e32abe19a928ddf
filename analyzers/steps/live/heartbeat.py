"""Find out whether a rank is alive and in which step and phase, from its heartbeat file, its log, and its process."""

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from analyzers.files import read_whole

BEAT = struct.Struct("<qqqq32s")
"""The fields of a heartbeat file: time in ns, step, process id, number of beats, phase.

`workbench.recorders` writes it.
"""
DONE = "done"
_CLOCK_SLACK_S = 2.0
"""The largest error in seconds of a process's start time, which /proc has in clock ticks since boot."""


class Heartbeat(NamedTuple):
    """The last heartbeat of a rank: when it last changed its phase (Unix ns), and its step and phase since then."""

    time_ns: int
    step: int
    phase: str


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Return the last heartbeat in a file; None if there is no file or no heartbeat yet."""
    try:
        time_ns, step, _, beats, phase = BEAT.unpack(read_whole(path))
    except (OSError, struct.error):
        return None
    # A new file is all zeros until its rank writes the first heartbeat.
    return Heartbeat(time_ns, step, phase.rstrip(b"\0").decode(errors="replace")) if beats else None


def heartbeat_from_record(record: Mapping[str, object]) -> Heartbeat | None:
    """Return a `Heartbeat` from the last record of torchtitan's structured log; None if it has no time or no step.

    The phase is the span that begins with the record, or `between` if the record begins none.
    """
    time_us, step = record.get("time_us"), record.get("step", 0)
    if not isinstance(time_us, int) or not isinstance(step, int):
        return None
    name, _, end = str(record.get("log_type_name", "")).rpartition("_")
    return Heartbeat(time_us * 1000, step, name if end == "start" else "between")


def is_running(header: Mapping[str, object]) -> bool | None:
    """Return whether the process that wrote a log with this header still runs.

    The result is None if this process is on another machine, or if the system does not show it.
    """
    pid, started_ns = header.get("pid"), header.get("started_ns")
    if header.get("host") != socket.gethostname() or not isinstance(pid, int) or not Path("/proc/self/stat").exists():
        return None
    process_start = _process_start_s(pid)
    if process_start is None:
        return False
    # Numbers are reused: a process that began after the log did is another one.
    return not isinstance(started_ns, int) or process_start <= started_ns / 1e9 + _CLOCK_SLACK_S


def launcher_is_lost(manifest: Mapping[str, object]) -> bool:
    """Return whether the launcher of a job was killed: its watchdog wrote this into run.json, or its process is gone.

    `manifest` is the content of run.json.
    """
    launcher = manifest.get("launcher")
    if not isinstance(launcher, dict):
        return False
    return launcher.get("lost") is True or (manifest.get("status") == "running" and is_running(launcher) is False)


def _process_start_s(pid: int) -> float | None:
    """Return when the process with this id began, in Unix seconds; None if there is none, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        uptime = float(Path("/proc/uptime").read_bytes().split()[0])
        state, ticks = stat[0], int(stat[19])  # fields 3 and 22 of proc(5), counted after the name
    except (OSError, IndexError, ValueError):
        return None
    return None if state in (b"Z", b"X") else time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
