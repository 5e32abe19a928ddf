"""Count how often this rank sends to and receives from each other rank (peer), and store the tag of the last message.

On gloo, Flight Recorder does not record these calls. Without the counts, a rank that waits for a message would seem to
wait for no other rank. The counts are in a small file with rows of fixed size: one row for each process
group, direction and peer. Each call updates its row.

Flight Recorder does not record the root of a collective on any backend. So a rank that broadcasts from a wrong root
would look the same as all others. Therefore the file also has rows for the roots of the last calls.
"""

import functools
import struct
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch._C import _distributed_c10d

from workbench.recorders.own_files import Backlog, OwnFile, note_failure
from workbench.recorders.stand_in_importlib_bootstrap import not_compiled

ROW = struct.Struct("<qq40sq64s")
"""The fields of a row of the file.

They are: number of calls; Unix time of the last call in ns; direction and peer such as `send 0->1` (ranks in the
group); tag of the last call; name of the process group. A row about a collective with a root has other content in two
fields. The first is then the number of the call, counting the rank's calls with a root in this group. The third is
operation and root (a rank in the group), such as `gather root 2`.
"""
_MAX_ROWS = 1024
_INTERVAL_S = 0.02
_BURST = 50
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_ROOTS_KEPT = 64
"""The number of last calls with a root that are kept for each process group."""
_ANY = "recv_anysource"
"""The method of a process group by which `recv` without a source receives; its rows name `any` as the peer."""
process_group: Any = _distributed_c10d.ProcessGroup  # its type stubs lag behind
_work: Any = _distributed_c10d.Work


class Group(Protocol):
    """The interface of a process group; only what is used here."""

    group_name: str

    def rank(self) -> int: ...


Record = Callable[[Group, Sequence[Any], Mapping[str, Any]], None]
"""A function that records a call of a method of a process group before it is made; its arguments are those of the call.
"""


@dataclass
class Row:
    """The parts of a row of the file that stay the same, and the number of calls so far."""

    index: int
    name: bytes
    group: bytes
    calls: int = 0


@dataclass
class Roots:
    """The rows of a process group for roots: the first of them, and the number of calls so far."""

    first: int
    group: bytes
    calls: int = 0


class SendRecvCounts:
    """Counts in a file how often this process sends to and receives from each peer after `install`.

    After `install_roots`, the roots of the last collectives with a root are recorded as well. From its first send or
    recv on, a rank that waits for one of them has the function `_wait_for_message` in its stack: `isend`, `irecv` and
    `batch_isend_irecv` return before the message has arrived, and `wait()` itself is no Python function.
    """

    def __init__(self, path: Path) -> None:
        self._file = OwnFile(path)
        self._waiting: dict[int, tuple[int, int, bytes, int, bytes]] = {}
        self._backlog = Backlog(self._put_rows, interval_s=_INTERVAL_S, burst=_BURST)
        self._rows: dict[tuple[str, object], Row] = {}
        self._rooted: dict[str, Roots] = {}
        self._used = 0
        self._originals: dict[tuple[Any, str], object] = {}
        # No `WeakSet`, whose callbacks are Python code: what a handler of a signal raises there would be lost.
        self._messages: set[weakref.ref[Any]] = set()

    def install(self) -> None:
        """Wrap the methods of `ProcessGroup` that every send and recv goes through, so that each call is counted."""
        self._wrap("send", self._counting("send", "->", "dstRank"), self._note_message)
        self._wrap("recv", self._counting("recv", "<-", "srcRank"), self._note_message)
        self._wrap(_ANY, self._count_any, self._note_message)

    def install_roots(self) -> None:
        """Wrap the methods of collectives with a root, such as broadcast, so that the roots are recorded."""
        for operation in _ROOTED:
            self._wrap(operation, self._noting_root(operation))

    def remove(self) -> None:
        """Write what is left, close the file, and restore the original methods of `ProcessGroup`."""
        self._backlog.flush()
        self._file.close()
        for (owner, method), original in self._originals.items():
            setattr(owner, method, original)

    def _wrap(self, method: str, record: Record, note: Callable[[object], None] | None = None) -> None:
        original = self._original(process_group, method)
        not_compiled(record)
        if note is not None:
            not_compiled(note)

        def call(group: Group, *arguments: object, **named: object) -> object:
            # Before the call, because a call that waits forever is the one to be seen.
            try:
                record(group, arguments, named)
            except Exception as error:  # noqa: BLE001  # the job's call counts
                note_failure(error)
            work = original(group, *arguments, **named)
            if note is not None:
                note(work)
            return work

        setattr(process_group, method, not_compiled(call, with_callees=False))

    def _original(self, owner: Any, method: str) -> Callable[..., object]:
        """Return a method of a class, and keep it so that `remove` can put it back."""
        # From the class's dictionary: `getattr` returns a function that could not be put back as a method.
        self._originals[owner, method] = vars(owner)[method]
        original: Callable[..., object] = getattr(owner, method)
        return original

    def _note_message(self, work: object) -> None:
        """Remember a send or recv that has been issued, so that a wait for it can be told from other waits."""
        try:
            self._messages.add(weakref.ref(work, self._messages.discard))
            if (_work, "wait") not in self._originals:
                self._wrap_wait()
        except Exception as error:  # noqa: BLE001  # the job's call counts
            note_failure(error)

    def _wrap_wait(self) -> None:
        original, messages = self._original(_work, "wait"), self._messages

        def wait(work: object, *arguments: object, **named: object) -> object:
            if weakref.ref(work) in messages:
                return _wait_for_message(original, work, *arguments, **named)
            return original(work, *arguments, **named)

        _work.wait = not_compiled(wait, with_callees=False)

    def _counting(self, verb: str, arrow: str, peer_name: str) -> Record:
        def record(group: Group, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
            peer = arguments[1] if len(arguments) > 1 else named[peer_name]
            tag = arguments[2] if len(arguments) > 2 else named["tag"]
            name = group.group_name
            row = self._rows.get((verb + name, peer))
            if row is None:
                text = f"{verb} {group.rank()}{arrow}{peer}"
                row = self._rows[verb + name, peer] = self._new_row(text, name)
            self._count(row, tag)

        return record

    def _count_any(self, group: Group, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
        name = group.group_name
        row = self._rows.get((_ANY + name, None))
        if row is None:
            row = self._rows[_ANY + name, None] = self._new_row(f"recv {group.rank()}<-any", name)
        self._count(row, arguments[1] if len(arguments) > 1 else named["tag"])

    def _new_row(self, text: str, group: str) -> Row:
        return Row(self._reserve(1), text.encode()[:40], group.encode()[:64])

    def _count(self, row: Row, tag: int) -> None:
        row.calls += 1
        self._write(row.index, row.calls, row.name, tag, row.group)

    def _noting_root(self, operation: str) -> Record:
        def record(group: Group, arguments: Sequence[Any], _named: Mapping[str, Any]) -> None:
            # The other signatures of these methods, which PyTorch's own Python functions do not use, have no options.
            root = getattr(arguments[-1] if arguments else None, "rootRank", None)
            if isinstance(root, int):
                self._note_root(group.group_name, operation, root)

        return record

    def _note_root(self, group: str, operation: str, root: int) -> None:
        roots = self._rooted.get(group)
        if roots is None:
            # Half of the rows stay free for sends and receives; a group has all its rows or none.
            has_rows = self._used + _ROOTS_KEPT <= _MAX_ROWS // 2
            first = self._reserve(_ROOTS_KEPT) if has_rows else _MAX_ROWS
            roots = self._rooted[group] = Roots(first, group.encode()[:64])
        roots.calls += 1
        index = roots.first + roots.calls % _ROOTS_KEPT
        self._write(index, roots.calls, _root_name(operation, root), 0, roots.group)

    def _reserve(self, rows: int) -> int:
        """Reserve the next `rows` unused rows, and return the index of the first of them."""
        self._used += rows
        return self._used - rows

    def _write(self, row: int, count: int, name: bytes, tag: int, group: bytes) -> None:
        if row < _MAX_ROWS:
            now_ns = time.time_ns()
            self._waiting[row] = count, now_ns, name, tag, group
            if now_ns >= self._backlog.earliest_ns:
                self._backlog.write(now_ns)

    def _put_rows(self) -> None:
        while count := len(self._waiting):
            # One by one, because the main thread may add rows meanwhile.
            taken = dict(self._waiting.popitem() for _ in range(count))
            first, content = -1, b""
            for row in sorted(taken):
                # Rows that follow each other, as those of roots do, are written at once.
                if row * ROW.size != first * ROW.size + len(content):
                    self._put(first, content)
                    first, content = row, b""
                content += ROW.pack(*taken[row])
            self._put(first, content)

    def _put(self, first: int, content: bytes) -> None:
        if content:
            self._file.put(content, first * ROW.size)


@functools.lru_cache(maxsize=1024)
def _root_name(operation: str, root: int) -> bytes:
    return f"{operation} root {root}".encode()[:40]


@functools.partial(not_compiled, with_callees=False)
def _wait_for_message(wait: Callable[..., object], *arguments: object, **named: object) -> object:
    """Wait for a send or recv; the name of this function in a rank's stack shows that it does so."""
    return wait(*arguments, **named)
