"""Trace entries turned into columns while the rest of their pickle is still being read.

An unpickler holds on to every object until its end. Entries that are emptied as soon as they have been looked at take
a quarter of the room.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from typing import IO, Any

from analyzers.columns import Column

Trace = list[Any]
Table = dict[str, Column]

PART = 1 << 13
"""Entries turned into columns at a time."""
LOOKS = 16
"""How often a list may be found empty before it is given up: a trace fills a thousand entries at a time."""


@dataclass
class Field:
    """A list of entries, the columns of those that were taken, and how many that are."""

    trace: Trace
    parts: list[Table] = field(default_factory=list)
    taken: int = 0

    def take(self, columns_of: Callable[[Trace], Table]) -> None:
        """Empty the next entries; None stands in their places."""
        entries = self.trace[self.taken : self.taken + PART]
        self.trace[self.taken : self.taken + PART] = repeat(None, len(entries))
        self.taken += len(entries)
        self.parts.append(columns_of(entries))
        for entry in entries:
            entry.clear()


class Harvest:
    """A stream for an unpickler: whenever that asks for more, what it has finished of the traces is taken."""

    def __init__(self, columns_of: Callable[[Trace], Table]) -> None:
        self._columns_of = columns_of
        self._fields: dict[int, Field] = {}
        self._young: list[tuple[Trace, int]] = []

    @contextmanager
    def watching(self, file: IO[bytes]) -> Iterator["Watched"]:
        """The file to unpickle from."""
        gc.freeze()
        try:
            yield Watched(file, self.look)
        finally:
            gc.unfreeze()
            self._young.clear()

    def columns(self, trace: Trace) -> Iterator[Table]:
        """All columns of a trace that was read to its end, which uses it up; of an empty one those of no entry."""
        grown = self._fields.pop(id(trace), None) or Field(trace)
        while grown.taken < len(trace) or not grown.parts:
            grown.take(self._columns_of)
        return iter(grown.parts)

    def look(self) -> None:
        """Find the traces among the lists that came since the last look, and take what these have."""
        made = gc.get_objects(generation=0)
        gc.freeze()  # the next look finds only what came after
        young = [(one, LOOKS) for one in made if type(one) is list and (not one or is_entry(one[0]))]
        young += self._young
        self._fields |= {id(one): Field(one) for one, _ in young if one and is_entry(one[0])}
        self._young = [(one, looks - 1) for one, looks in young if looks and not one]
        for grown in self._fields.values():
            while len(grown.trace) - grown.taken >= PART:
                grown.take(self._columns_of)


@dataclass(frozen=True)
class Watched:
    """What the unpickler wants of a file; without `peek` it would read byte by byte."""

    file: Any
    before: Callable[[], None]

    def read(self, count: int = -1) -> bytes:
        self.before()
        found: bytes = self.file.read(count)
        return found

    def readinto(self, buffer: Any) -> int:
        self.before()
        count: int = self.file.readinto(buffer)
        return count

    def readline(self) -> bytes:
        found: bytes = self.file.readline()
        return found

    def peek(self, count: int) -> bytes:
        found: bytes = self.file.peek(count)
        return found


def is_entry(value: object) -> bool:
    return type(value) is dict and "action" in value
