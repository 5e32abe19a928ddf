"""Counts sends and receives, which gloo's Flight Recorder does not record: without them a rank that waits for a message
looks like one that waits for nobody.

One row of a small memory-mapped file for each group, direction and peer, rewritten in place at every call.
"""

import mmap
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch._C import _distributed_c10d

ROW = struct.Struct("<qq48s64s")
"""Calls, wall-clock nanoseconds of the last one, `send 0->1` with ranks in the group, name of the group."""
ROWS_AT_MOST = 512
process_group: Any = _distributed_c10d.ProcessGroup  # its type stubs lag behind


class PointToPoint:
    """Counts the calls of this process from `install` on."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(ROW.size * ROWS_AT_MOST)
            self._memory = mmap.mmap(file.fileno(), ROW.size * ROWS_AT_MOST)
        self._rows: dict[tuple[str, str], list[int]] = {}
        self._originals: dict[str, Callable[..., Any]] = {}

    def install(self) -> None:
        """Take note of what passes through `ProcessGroup.send` and `.recv`, under which all Python calls end."""
        for verb, arrow in (("send", "->"), ("recv", "<-")):
            self._originals[verb] = getattr(process_group, verb)
            setattr(process_group, verb, self._counting(verb, arrow))

    def remove(self) -> None:
        """Leave the methods as they were."""
        for verb, original in self._originals.items():
            setattr(process_group, verb, original)

    def _counting(self, verb: str, arrow: str) -> Callable[..., Any]:
        original = self._originals[verb]

        def call(group: Any, tensors: Any, peer: int, tag: int) -> Any:
            self._note(group.group_name, f"{verb} {group.rank()}{arrow}{peer}")
            return original(group, tensors, peer, tag)

        return call

    def _note(self, group: str, name: str) -> None:
        row = self._rows.setdefault((group, name), [len(self._rows), 0])
        row[1] += 1
        if row[0] < ROWS_AT_MOST:
            ROW.pack_into(
                self._memory, row[0] * ROW.size, row[1], time.time_ns(), name.encode()[:48], group.encode()[:64]
            )
