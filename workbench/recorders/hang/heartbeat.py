"""Write and read the heartbeat of a rank, a file of 64 bytes with the rank's current step and phase.

The file remains when the process has ended.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from time import time_ns

from workbench.recorders.files import read_regular
from workbench.recorders.own_files import Backlog, OwnFile

_INTERVAL_S = 0.02
_BURST = 20
_LONG_STEP_NS = 20_000_000
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

    `beat` rewrites the file in place; if there are more than 50 heartbeats a second, not for each of them, but for the
    first after a step that took 20 ms or more.
    """

    def __init__(self, path: Path) -> None:
        self._file = OwnFile(path)
        # The disk gives its block now, so that later heartbeats need none.
        if not self._file.put(bytes(LAYOUT.size), 0):
            self._file.remove()
        self._pid = os.getpid()
        self._beats = 0
        # One object, so that the thread that writes it never sees parts of two.
        self._last: tuple[int, int, int, str] = (0, 0, 0, "")
        self._written = self._last
        self._backlog = Backlog(self._write, interval_s=_INTERVAL_S, burst=_BURST)
        self._begun_step, self._next_begin_ns = 0, 0

    def beat(self, step: int, phase: str) -> None:
        """Write a heartbeat with the current step and phase (at most 32 bytes of UTF-8)."""
        self._beats += 1
        now_ns = time_ns()
        self._last = (now_ns, step, self._beats, phase)
        if now_ns >= self._backlog.earliest_ns:
            self._backlog.write(now_ns)
        elif step != self._begun_step and now_ns >= self._next_begin_ns:
            # A rank that is killed or stuck as soon as its step begins is in this step, and not in the one before.
            self._backlog.flush()
        if step != self._begun_step:
            self._begun_step, self._next_begin_ns = step, now_ns + _LONG_STEP_NS

    def beat_soon(self, step: int, phase: str) -> None:
        """Write a heartbeat within 0.1 s, or leave it out if another one follows before; it costs little."""
        self._beats += 1
        self._last = (time_ns(), step, self._beats, phase)

    def flush(self) -> None:
        """Write the last heartbeat to the file, if it waits to be written."""
        self._backlog.flush()

    def _write(self) -> None:
        while self._written is not (last := self._last):
            self._written = last
            now_ns, step, beats, phase = last
            self._file.put(LAYOUT.pack(now_ns, step, self._pid, beats, phase.encode()), 0)


def read_beat(path: Path) -> Beat | None:
    """Return the content of a heartbeat file; None if the rank has not written to it yet."""
    try:
        beat_ns, step, pid, beats, phase = LAYOUT.unpack(read_regular(path))
    except (OSError, struct.error):
        return None
    return Beat(beat_ns, step, pid, beats, phase.rstrip(b"\0").decode(errors="replace")) if beats else None
