"""Turn trace entries into columns while the rest of their pickle is still being read.

An unpickler keeps every object in memory until it ends. Entries that are emptied as soon as their columns exist take
only a quarter of the memory.

Worked example: the pickle of a snapshot fills a list with a million entry dicts. Each time the unpickler asks the file
for more bytes, `WatchedFile` calls `IncrementalReader.collect` first. That asks the garbage collector for the lists
made since the last call (`gc.freeze` hides all older objects), recognises a trace by its first element, a dict with an
"action", and converts its entries in chunks of 8192: it takes `trace[0:8192]`, puts None in their places, computes the
columns and clears the dicts. At the end `columns(trace)` converts the rest.
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
"""How many entries are converted to columns at a time."""
CHECKS_OF_AN_EMPTY_LIST = 16
"""How often a list may be empty before it is ignored: a trace grows by a thousand entries at a time."""


@dataclass
class PartialTrace:
    """A trace that is still being read: its list of entries, the tables so far, and how many entries these have."""

    trace: RawTrace
    tables: list[Table] = field(default_factory=list)
    converted: int = 0

    def convert_chunk(self, columns_of: Callable[[RawTrace], Table]) -> None:
        """Convert the next trace entries to a table, then clear them and put None in their places to free memory."""
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
        """Yield a file to unpickle from; each read from it first converts the trace entries that are complete."""
        gc.freeze()
        try:
            yield WatchedFile(file, self.collect)
        finally:
            gc.unfreeze()
            self._empty_lists.clear()

    def columns(self, trace: RawTrace) -> Iterator[Table]:
        """Return the tables of a trace that was read to its end, and empty the trace.

        A trace without entries has one empty table.
        """
        partial = self._partial.pop(id(trace), None) or PartialTrace(trace)
        while partial.converted < len(trace) or not partial.tables:
            partial.convert_chunk(self._columns_of)
        return iter(partial.tables)

    def collect(self) -> None:
        """Convert the trace entries that the unpickler has completed since the last call, in chunks of `CHUNK` entries.

        New traces are found among the lists that were created since the last call. Entries that do not fill a chunk
        wait for a later call or for `columns`.
        """
        new_objects = gc.get_objects(generation=0)
        gc.freeze()  # so that the next call sees only newer objects
        lists = [
            (made, CHECKS_OF_AN_EMPTY_LIST)
            for made in new_objects
            if type(made) is list and (not made or is_entry(made[0]))
        ]
        lists += self._empty_lists
        self._partial |= {id(trace): PartialTrace(trace) for trace, _ in lists if trace and is_entry(trace[0])}
        self._empty_lists = [(empty, checks - 1) for empty, checks in lists if checks and not empty]
        for partial in self._partial.values():
            while len(partial.trace) - partial.converted >= CHUNK:
                partial.convert_chunk(self._columns_of)


@dataclass(frozen=True)
class WatchedFile:
    """A file for an unpickler that calls `before_read` before each read.

    It has `peek`, because the unpickler reads files without `peek` byte by byte.
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


def is_entry(value: object) -> bool:
    """Return whether an object looks like a trace entry."""
    return type(value) is dict and "action" in value
