"""Convert trace entries to columns while the unpickler is still reading the rest of their file, which saves memory.

An unpickler keeps every object in memory until it has read the whole file. Here each entry is cleared as soon as its
values are in columns, so reading takes only a quarter of the memory.

Worked example: the pickle of a snapshot fills a list with a million entry dicts. Each time the unpickler asks the file
for more bytes, `WatchedFile` calls `IncrementalReader.collect` first. `collect` asks the garbage collector for the
lists created since its last call (`gc.freeze` hides all older objects) and recognises a trace by its first element, a
dict with an "action". It then converts 8192 entries at a time: it takes `trace[0:8192]`, puts None in their places,
computes the columns and clears the dicts. At the end of the file `columns(trace)` converts the remaining entries.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from typing import IO, Any

from analyzers.columns import Column

RawTrace = list[Any]
Table = dict[str, Column]

CHUNK = 1 << 13
"""The number of trace entries that are converted to columns at a time."""
_CHECKS_OF_AN_EMPTY_LIST = 16
"""The number of times that an empty list is checked for trace entries before it is ignored.

The unpickler appends entries a thousand at a time, so that the list of a trace is empty at first.
"""


@dataclass
class PartialTrace:
    """A trace that the unpickler is still reading: the list of its entries, and the columns of the converted ones.

    `tables` has one dict of columns per converted chunk. The first `converted` entries of the list are already in
    `tables`.
    """

    trace: RawTrace
    tables: list[Table] = field(default_factory=list)
    converted: int = 0

    def convert_chunk(self, columns_of: Callable[[RawTrace], Table]) -> None:
        """Convert the next `CHUNK` entries of the trace to a table of columns, and free the entries.

        The entries' dicts are cleared, and their elements in the list become None.
        """
        entries = self.trace[self.converted : self.converted + CHUNK]
        # The list must keep its length: the unpickler goes on appending to it.
        self.trace[self.converted : self.converted + CHUNK] = repeat(None, len(entries))
        self.converted += len(entries)
        self.tables.append(columns_of(entries))
        for entry in entries:
            entry.clear()


class IncrementalReader:
    """Converts the entries of traces to tables while an unpickler is still reading their file."""

    def __init__(self, columns_of: Callable[[RawTrace], Table]) -> None:
        self._columns_of = columns_of
        self._partial: dict[int, PartialTrace] = {}
        self._empty_lists: list[tuple[RawTrace, int]] = []

    @contextmanager
    def watch(self, file: IO[bytes]) -> Iterator["WatchedFile"]:
        """Yield a file for the unpickler; each read first converts the trace entries that are complete at that time."""
        gc.freeze()
        try:
            yield WatchedFile(file, self.collect)
        finally:
            gc.unfreeze()
            self._empty_lists.clear()

    def columns(self, trace: RawTrace) -> Iterator[Table]:
        """Return the tables of a trace that the unpickler has read to its end, one per chunk, and free the entries.

        A trace without entries has one table, whose columns are empty.
        """
        partial = self._partial.pop(id(trace), None) or PartialTrace(trace)
        while partial.converted < len(trace) or not partial.tables:
            partial.convert_chunk(self._columns_of)
        return iter(partial.tables)

    def collect(self) -> None:
        """Convert the trace entries that the unpickler has completed since the last call, in chunks of `CHUNK` entries.

        New traces are found among the lists that were created since the last call. Entries that do not fill a whole
        chunk are converted by a later call, or by `columns`.
        """
        new_objects = gc.get_objects(generation=0)
        gc.freeze()  # so that the next call sees only newer objects
        lists = [
            (made, _CHECKS_OF_AN_EMPTY_LIST)
            for made in new_objects
            if type(made) is list and (not made or _is_entry(made[0]))
        ]
        lists += self._empty_lists
        self._partial |= {id(trace): PartialTrace(trace) for trace, _ in lists if trace and _is_entry(trace[0])}
        self._empty_lists = [(empty, checks - 1) for empty, checks in lists if checks and not empty]
        for partial in self._partial.values():
            while len(partial.trace) - partial.converted >= CHUNK:
                partial.convert_chunk(self._columns_of)


@dataclass(frozen=True)
class WatchedFile:
    """A file for an unpickler that calls `before_read` before each `read` and `readinto`.

    The class has `peek`, because an unpickler reads files without `peek` byte by byte.
    """

    file: Any
    before_read: Callable[[], None]

    def read(self, count: int = -1) -> bytes:
        self.before_read()
        content: bytes = self.file.read(count)
        return content

    def readinto(self, buffer: bytearray | memoryview) -> int:
        self.before_read()
        count: int = self.file.readinto(buffer)
        return count

    def readline(self) -> bytes:
        line: bytes = self.file.readline()
        return line

    def peek(self, count: int) -> bytes:
        content: bytes = self.file.peek(count)
        return content


def _is_entry(value: object) -> bool:
    """Return whether an object looks like a trace entry: a dict with an "action"."""
    return type(value) is dict and "action" in value
