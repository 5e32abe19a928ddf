"""Measure what a command costs: the processor time and the memory of its process and of all its children."""

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PROPORTIONAL_SET = re.compile(r"^Pss: +(\d+) kB", re.MULTILINE)
PEAK_RESIDENT = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class Cost:
    """The cost of a process and its children: processor seconds, peak memory of all together in bytes, and wall
    seconds.

    `children` is the average number of child processes that were working; `main_bytes` and `child_bytes` are the peak
    memory of the process itself and of the largest child.
    """

    seconds: float
    bytes: int
    elapsed: float = 0.0
    children: float = 0.0
    main_bytes: int = 0
    child_bytes: int = 0


def measure(*command: str, output: int | IO[str] = subprocess.DEVNULL, errors: int | IO[str] | None = None) -> Cost:
    """Run a command and return its cost; what it prints goes to `output` and `errors`.

    Memory is sampled, because no counter adds it up over several processes. The one that the system keeps for a child,
    `ru_maxrss`, counts the memory of the process that started it, too.
    """
    began, most, main, child, families = time.monotonic(), 0, 0, 0, list[int]()
    with subprocess.Popen(command, stdout=output, stderr=errors) as process:
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            family = descendants(process.pid)
            alive = [process.pid, *family]
            main, child = max(main, peak_bytes(process.pid)), max([child, *map(peak_bytes, family)])
            most = max(most, main, child, sum(map(resident_bytes, alive)))
            families.append(len(family))
            time.sleep(0.02)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(
        usage.ru_utime + usage.ru_stime,
        most,
        time.monotonic() - began,
        sum(families) / max(1, len(families)),
        main,
        child,
    )


def descendants(process: int) -> list[int]:
    """Return the process ids of all children, recursively."""
    try:
        children = " ".join(file.read_text() for file in Path("/proc", str(process)).glob("task/*/children"))
    except OSError:
        return []
    return [pid for child in map(int, children.split()) for pid in (child, *descendants(child))]


def resident_bytes(process: int) -> int:
    """Return the resident bytes of a process; memory that several processes share is divided among them."""
    try:
        rollup = Path("/proc", str(process), "smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(size) for size in PROPORTIONAL_SET.findall(rollup)) << 10


def peak_bytes(process: int) -> int:
    """Return the most bytes that a process had resident at once, since it began to run its present program."""
    try:
        status = Path("/proc", str(process), "status").read_text()
    except OSError:
        return 0
    return sum(int(size) for size in PEAK_RESIDENT.findall(status)) << 10
