"""Write and read the heartbeat of a rank, a file of 64 bytes with the rank's current step and phase.

The rank maps the file into its memory. The file remains when the process has ended.
"""

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

LAYOUT = struct.Struct("<qqqq32s")
DONE = "done"
NO_GROUP = "process group destroyed"
"""The phase in the heartbeat of a rank whose script has destroyed its process groups but still runs."""


@dataclass(frozen=True)
class Beat:
    """The content of a rank's heartbeat: Unix time (ns), step, process id, number of heartbeats so far, and phase."""

    time_ns: int
    step: int
    pid: int
    beats: int
    phase: str


class Heartbeat:
    """The heartbeat of this rank, a file that other processes read.

    `beat` rewrites the file in place, in less than a microsecond and without a system call.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w+b") as file:
            # `mmap` refuses an empty file.
            file.truncate(LAYOUT.size)
            self._memory = mmap.mmap(file.fileno(), LAYOUT.size)
        self._pid = os.getpid()
        self._beats = 0

    def beat(self, step: int, phase: bytes) -> None:
        """Write a heartbeat with the current step and phase (at most 32 bytes of UTF-8)."""
        self._beats += 1
        LAYOUT.pack_into(self._memory, 0, time.time_ns(), step, self._pid, self._beats, phase)


def read_beat(path: Path) -> Beat | None:
    """Return the content of a heartbeat file; None if the rank has not written to it yet."""
    try:
        time_ns, step, pid, beats, phase = LAYOUT.unpack(path.read_bytes())
    except (OSError, struct.error):
        return None
    return Beat(time_ns, step, pid, beats, phase.rstrip(b"\0").decode(errors="replace")) if beats else None
