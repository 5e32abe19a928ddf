"""Count how often this rank sends to and receives from each other rank (peer), and store the last tag.

On gloo, Flight Recorder does not record these calls: without the counts, a rank that waits for a message would seem to
wait for nobody. A small memory-mapped file has a row for each process group, direction and peer; each call updates its
row.
"""

import mmap
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from torch._C import _distributed_c10d

ROW = struct.Struct("<qq40sq64s")
"""The fields of a row: number of calls, time of the last call in ns (Unix time), direction and peer such as `send 0->1`
(ranks in the group), tag of the last call, name of the group.
"""
MAX_ROWS = 512
ANY = "recv_anysource"
"""The method of a process group by which `recv` without a source receives; its rows name `any` as the peer."""
process_group: Any = _distributed_c10d.ProcessGroup  # its type stubs lag behind


class Group(Protocol):
    """The methods of a process group that are used here."""

    group_name: str

    def rank(self) -> int: ...


Call = Callable[[Group, object, int, int], object]
"""The signature of `ProcessGroup.send` and `.recv`: group, tensors, peer (a rank in the group), tag."""


class SendRecvCounts:
    """Counts, in shared memory, how often this process sends to and receives from each peer after `install`."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(ROW.size * MAX_ROWS)
            self._memory = mmap.mmap(file.fileno(), ROW.size * MAX_ROWS)
        self._rows: dict[tuple[str, str], list[int]] = {}
        self._originals: dict[str, Callable[..., object]] = {}

    def install(self) -> None:
        """Wrap the methods of `ProcessGroup` through which all calls of send and recv pass, so that each is counted."""
        for verb, arrow in (("send", "->"), ("recv", "<-")):
            self._originals[verb] = getattr(process_group, verb)
            setattr(process_group, verb, self._counting(verb, arrow))
        self._originals[ANY] = process_group.recv_anysource
        process_group.recv_anysource = self._counting_any()

    def remove(self) -> None:
        """Restore the original methods."""
        for verb, original in self._originals.items():
            setattr(process_group, verb, original)

    def _counting(self, verb: str, arrow: str) -> Call:
        original = self._originals[verb]

        def call(group: Group, tensors: object, peer: int, tag: int) -> object:
            # Before the call, because a call that waits forever is the one to be seen.
            self._note(group.group_name, f"{verb} {group.rank()}{arrow}{peer}", tag)
            return original(group, tensors, peer, tag)

        return call

    def _counting_any(self) -> Callable[[Group, object, int], object]:
        original = self._originals[ANY]

        def call(group: Group, tensors: object, tag: int) -> object:
            self._note(group.group_name, f"recv {group.rank()}<-any", tag)
            return original(group, tensors, tag)

        return call

    def _note(self, group: str, name: str, tag: int) -> None:
        row = self._rows.setdefault((group, name), [len(self._rows), 0])
        row[1] += 1
        if row[0] < MAX_ROWS:
            fields = (row[1], time.time_ns(), name.encode()[:40], tag, group.encode()[:64])
            ROW.pack_into(self._memory, row[0] * ROW.size, *fields)
