"""Store each distinct text, frame, stack and arena of a snapshot once; other columns hold only their indexes.

A snapshot refers a million times to a few hundred distinct values. An arena is a (stream, pool) pair of the allocator.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from typing import IO, Any, NamedTuple

import numpy as np

from analyzers.columns import Column
from analyzers.words import bounded

RawFrames = list[Any]
"""A list of frame dicts from the snapshot file; `StackTable.number` replaces its elements by a single `StackNumber`."""
NO_FRAMES: RawFrames = []
_CANDIDATES_AT_MOST = 8


class StackNumber(NamedTuple):
    """The index of a stack in a `StackTable`; it replaces the frames in a list of frames, to free their memory."""

    number: int


def line_number(line: int) -> int:
    return line if 0 <= line < 1 << 31 else 0


class TextTable:
    """A table of distinct texts; index 0 is the empty text."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {"": 0}

    def number(self, text: object) -> int:
        """Return the index of a text in the table, and add the text if it is new.

        Raises:
            TypeError: The value is not a text.
        """
        if not isinstance(text, str):
            raise TypeError(f"a text is expected where {type(text).__name__} stands")
        return self.known.setdefault(bounded(text), len(self.known))

    def columns(self) -> dict[str, Column]:
        encoded = [text.encode("utf-8", "replace") for text in self.known]
        return {
            "text_bytes": np.frombuffer(b"".join(encoded), np.uint8),
            "text_end": np.cumsum([len(text) for text in encoded], dtype=np.int64),
        }


class ArenaTable:
    """A table of distinct arenas, the (stream, pool) pairs within which the allocator reuses freed blocks.

    A pool is identified by a pair of numbers; (0, 0) is the default pool. `UNKNOWN_POOL` stands for a pool that is not
    recorded.
    """

    UNKNOWN_POOL = (-1, -1)

    def __init__(self) -> None:
        self.known: dict[tuple[int, int, int], int] = {}

    def number(self, stream: int, pool: Sequence[int] | None) -> int:
        first, second = self.UNKNOWN_POOL if pool is None else pool
        return self.known.setdefault((stream, int(first), int(second)), len(self.known))

    def numbers(self, streams: Column, pools: Sequence[Sequence[int] | None]) -> Column:
        """Return the index of each row's arena as int32. `streams` and `pools` have one value per row.

        A row is a trace entry or a segment. Trace entries of torch before 2.12 do not record their pool: its value is
        None.
        """
        first = streams[0] if len(streams) else 0
        # One stream and no pools, the usual case of older files: no need to look at a million rows one by one.
        if pools.count(None) == len(pools) and (streams == first).all():
            return np.full(len(pools), self.number(int(first), None) if len(pools) else 0, np.int32)
        return np.fromiter(map(self.number, streams.tolist(), pools), np.int32, len(pools))

    def columns(self) -> dict[str, Column]:
        table = np.array(list(self.known), np.int64).reshape(-1, 3)
        return {"arena_stream": table[:, 0], "arena_pool": table[:, 1:]}


class StackTable:
    """A table of distinct stacks of frames; index 0 is the stack without frames.

    PyTorch's pickles refer to the same frame and list objects many times. Comparing object identities first avoids
    reading the same frames a thousand times. JSON shares no objects, so there the contents are compared.

    Example: 22,332 entries of a training trace refer to 711,000 frames in 14,961 lists, but there are only 665 frame
    objects and 188 different stacks. A list is first looked up by its length and the identities of three frames: the
    first one, and those at a quarter and at half of its length. The few known lists with the same key are compared with
    `==`, which is quick for identical objects. Only a list that equals none of them is read frame by frame.
    """

    def __init__(self, texts: TextTable) -> None:
        self.texts = texts
        self.frames: dict[tuple[int, int, int], int] = {}
        self.stacks: dict[tuple[int, ...], int] = {(): 0}
        # Holds each frame beside its number: an identity is only valid as long as the object lives.
        self._frame_of_id: dict[int, tuple[int, Mapping[str, Any]]] = {}
        self._candidates: dict[tuple[int, ...], list[tuple[RawFrames, StackNumber]]] = {}

    def numbers(self, lists: Sequence[RawFrames | None]) -> Column:
        """Return the index of the stack in each list of frames, as int32; 0 for None and for an empty list.

        To free their memory, the frames in each list are replaced by the stack's index (`StackNumber`).
        """
        return np.fromiter(map(self.number, lists), np.int32, len(lists))

    def number(self, frames: RawFrames | None) -> int:
        """Return the number of the stack that these frames make up; a new stack gets the next number.

        To free memory, the content of the list `frames` is replaced by this number (`StackNumber`).
        """
        if not frames:
            return 0
        first = frames[0]
        if type(first) is StackNumber:
            return first.number
        # Hashing all identities of a list instead of this sample takes three times as long.
        count = len(frames)
        sample = (count, id(first), id(frames[count >> 2]), id(frames[count >> 1]))
        number = self._number_among(frames, self._candidates.setdefault(sample, []))
        frames[:] = (number,)
        return number.number

    def _number_among(self, frames: RawFrames, candidates: list[tuple[RawFrames, StackNumber]]) -> StackNumber:
        for known, number in candidates:
            if known == frames:
                return number
        contents = tuple(self.frame(frame) for frame in frames)
        number = StackNumber(self.stacks.setdefault(contents, len(self.stacks)))
        # In JSON no objects are shared: without a limit every list would become a candidate.
        if len(candidates) < _CANDIDATES_AT_MOST:
            candidates.append((frames.copy(), number))
        return number

    def frame(self, frame: Mapping[str, Any]) -> int:
        known = self._frame_of_id.get(id(frame))
        if known is None:
            name, file = (self.texts.number(frame.get(key, "")) for key in ("name", "filename"))
            contents = (name, file, line_number(frame.get("line", 0)))
            known = self._frame_of_id[id(frame)] = self.frames.setdefault(contents, len(self.frames)), frame
        return known[0]

    def columns(self) -> dict[str, Column]:
        """Return the columns of the distinct frames and of the distinct stacks.

        `frame_name`, `frame_file` (both indexes of texts) and `frame_line` have one row per frame. `stack_frames` has
        the frame indexes of all stacks, one stack after the other; `stack_end[i]` is the position in `stack_frames` at
        which stack i ends.
        """
        table = np.array(list(self.frames), np.int64).reshape(-1, 3)
        return {
            "frame_name": table[:, 0],
            "frame_file": table[:, 1],
            "frame_line": table[:, 2],
            "stack_frames": np.array([frame for stack in self.stacks for frame in stack], frame_type(len(table))),
            "stack_end": np.cumsum([len(stack) for stack in self.stacks], dtype=np.int64),
        }


def frame_type(count: int) -> type[np.signedinteger[Any]]:
    """Return the integer type for the frame indexes in stacks, given the number of distinct frames.

    If hardly any stack repeats, these indexes are by far the largest column, so the type is as small as possible.
    """
    return np.int16 if count <= 1 << 15 else np.int32


class InternTables:
    """The tables of distinct texts, stacks and arenas (stream and pool) of a snapshot; columns hold their indexes."""

    def __init__(self) -> None:
        self.texts = TextTable()
        self.stacks, self.arenas = StackTable(self.texts), ArenaTable()

    def columns(self) -> dict[str, Column]:
        return self.arenas.columns() | self.stacks.columns() | self.texts.columns()


# Convert trace entries to columns while the unpickler is still reading the rest of their file, which saves memory.
#
# An unpickler keeps every object in memory until it has read the whole file. Here each entry is cleared as soon as
# its values are in columns, so reading takes only a quarter of the memory.
#
# Worked example: the pickle of a snapshot fills a list with a million entry dicts. Each time the unpickler asks the
# file for more bytes, `WatchedFile` calls `IncrementalReader.collect` first. `collect` asks the garbage collector for
# the lists created since its last call (`gc.freeze` hides all older objects) and recognises a trace by its first
# element, a dict with an "action". It then converts 8192 entries at a time: it takes `trace[0:8192]`, puts None in
# their places, computes the columns and clears the dicts. At the end of the file `columns(trace)` converts the
# remaining entries.

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
    return type(value) is dict and "action" in value
