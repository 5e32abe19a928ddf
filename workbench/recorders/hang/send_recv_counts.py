"""Count how often this rank sends to and receives from each other rank (peer), and store the tag of the last message.

On gloo, Flight Recorder does not record these calls. Without the counts, a rank that waits for a message would seem to
wait for no other rank. The counts are in a small memory-mapped file with rows of fixed size: one row for each process
group, direction and peer. Each call updates its row.

Flight Recorder does not record the root of a collective on any backend. So a rank that broadcasts from a wrong root
would look the same as all others. Therefore the file also has rows for the roots of the last calls.
"""

import mmap
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from torch._C import _distributed_c10d

ROW = struct.Struct("<qq40sq64s")
"""The fields of a row of the file.

They are: number of calls; Unix time of the last call in ns; direction and peer such as `send 0->1` (ranks in the
group); tag of the last call; name of the process group. A row about a collective with a root has other content in two
fields. The first is then the number of the call, counting the rank's calls with a root in this group. The third is
operation and root (a rank in the group), such as `gather root 2`.
"""
MAX_ROWS = 1024
ROOTED = ("broadcast", "reduce", "gather", "scatter")
ROOTS_KEPT = 64
"""The number of last calls with a root that are kept for each process group."""
ANY = "recv_anysource"
"""The method of a process group by which `recv` without a source receives; its rows name `any` as the peer."""
process_group: Any = _distributed_c10d.ProcessGroup  # its type stubs lag behind


class Group(Protocol):
    """The interface of a process group; only what is used here."""

    group_name: str

    def rank(self) -> int: ...


Call = Callable[[Group, object, int, int], object]
"""The signature of `ProcessGroup.send` and `.recv`: group, tensors, peer (a rank in the group), tag."""


class SendRecvCounts:
    """Counts in a memory-mapped file how often this process sends to and receives from each peer after `install`.

    After `install_roots`, the roots of the last collectives with a root are recorded as well.
    """

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(ROW.size * MAX_ROWS)
            self._memory = mmap.mmap(file.fileno(), ROW.size * MAX_ROWS)
        self._rows: dict[tuple[str, str], list[int]] = {}
        self._rooted: dict[str, list[int]] = {}
        self._used = 0
        self._originals: dict[str, Callable[..., object]] = {}

    def install(self) -> None:
        """Wrap the methods of `ProcessGroup` that every send and recv goes through, so that each call is counted."""
        for verb, arrow in (("send", "->"), ("recv", "<-")):
            self._originals[verb] = getattr(process_group, verb)
            setattr(process_group, verb, self._counting(verb, arrow))
        self._originals[ANY] = process_group.recv_anysource
        process_group.recv_anysource = self._counting_any()

    def install_roots(self) -> None:
        """Wrap the methods of collectives with a root, such as broadcast, so that the roots are recorded."""
        for operation in ROOTED:
            self._originals[operation] = getattr(process_group, operation)
            setattr(process_group, operation, self._noting_root(operation))

    def remove(self) -> None:
        """Restore the original methods of `ProcessGroup`."""
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
        if (group, name) not in self._rows:
            self._rows[group, name] = [self._reserve(1), 0]
        row = self._rows[group, name]
        row[1] += 1
        self._write(row[0], row[1], name, tag, group)

    def _noting_root(self, operation: str) -> Callable[..., object]:
        original = self._originals[operation]

        def call(group: Group, *arguments: object, **named: object) -> object:
            # The other signatures of these methods, which PyTorch's own Python functions do not use, have no options.
            root = getattr(arguments[-1] if arguments else None, "rootRank", None)
            if isinstance(root, int):
                self._note_root(group.group_name, operation, root)
            return original(group, *arguments, **named)

        return call

    def _note_root(self, group: str, operation: str, root: int) -> None:
        if group not in self._rooted:
            # Half of the rows stay free for sends and receives; a group has all its rows or none.
            has_rows = self._used + ROOTS_KEPT <= MAX_ROWS // 2
            self._rooted[group] = [self._reserve(ROOTS_KEPT) if has_rows else MAX_ROWS, 0]
        block = self._rooted[group]
        block[1] += 1
        self._write(block[0] + block[1] % ROOTS_KEPT, block[1], f"{operation} root {root}", 0, group)

    def _reserve(self, rows: int) -> int:
        """Reserve the next `rows` unused rows, and return the index of the first of them."""
        self._used += rows
        return self._used - rows

    def _write(self, row: int, count: int, name: str, tag: int, group: str) -> None:
        if row < MAX_ROWS:
            fields = (count, time.time_ns(), name.encode()[:40], tag, group.encode()[:64])
            ROW.pack_into(self._memory, row * ROW.size, *fields)
