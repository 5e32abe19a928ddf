"""Collect events as columns: a row per event with a duration, texts as numbers, and extra tables for rare arguments."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np

from analyzers.columns import Column, Floats, Integers, Mask
from analyzers.traces.reading.problems import Problem, ProblemKind
from analyzers.traces.reading.stream import ALLOCATION, INSTANT, Args, Events

NO_ARGS = Args()
MICROSECONDS_AT_MOST = 4.5e15
"""The latest time that is accepted (about 140 years): half of what int64 nanoseconds hold, so that sums fit, too."""
NUMBER_AT_MOST = 1 << 62
DIGITS_AT_MOST = 20
DEVICE_AT_MOST = 1 << 31
FIRST_TEXT_ID = -2
"""In pid, tid and stream the text with number n is `FIRST_TEXT_ID - n`; -1 means that the event has none."""
COLUMNS = ("name", "cat", "start", "end", "pid", "tid", "correlation", "device", "stream")
SPARSE_TABLES = {
    "collective": (
        "row", "name", "group", "elements", "elements_out", "dtype", "members", "sequence", "splits", "source",
        "destination",
    ),
    "shape": ("row", "text"),
    "autograd": ("row", "sequence", "thread"),
    "copy": ("row", "bytes"),
    "graph": ("row", "id"),
    "unfinished": ("row",),
    "occupancy": ("row", "text"),
}  # fmt: skip
"""Tables of events with rare arguments; their columns are named `collective_row` and so on."""
ALLOCATIONS = ("at", "pid", "tid", "address", "bytes", "allocated", "reserved", "device_type", "device")
"""The table of allocations and frees, which have no duration; its columns are named `memory_at` and so on."""
NO_ALLOCATIONS = np.zeros((0, 1 + len(ALLOCATIONS)), np.int64)
TIMES = ("start", "end")
SMALLER_TYPES = (np.int8, np.int16, np.int32)


@dataclass(frozen=True)
class EventRows:
    """The rows that some events of a block of text add to the event table.

    `order` has, for each row of `columns`, the index of its event in the block; rows from several readers of the block
    are sorted by it. In the `sparse` tables the first column is an index into `order`. In `memory` (allocations and
    frees) the first column is the index of the event in the block.
    """

    order: Integers
    columns: dict[str, Column]
    sparse: dict[str, Column]
    memory: Integers = field(default_factory=NO_ALLOCATIONS.view)


class EventTable:
    """The events of one file, collected as columns.

    A text of `shapes` holds the sizes, the types and the values of an operator's inputs, in JSON, separated by zero
    bytes. A text of `occupancies` describes how a kernel fills the device: occupancy in per cent, warps and blocks per
    multiprocessor, and the limits that newer recorders write.
    """

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.shapes: dict[bytes, int] = {}
        self.occupancies: dict[bytes, int] = {}
        self.parts: dict[str, list[Column]] = {name: [] for name in COLUMNS}
        self.sparse: dict[str, list[Column]] = {name: [] for name in SPARSE_TABLES}
        self.memory: list[Integers] = []
        self.threads: list[tuple[int, int, str]] = []
        self.rows = 0
        self.impossible_times = 0

    def add(self, events: Events) -> None:
        """Add the events of a decoded block."""
        self.add_rows(self.rows_of(events, np.arange(len(events))))

    def add_rows(self, *parts: EventRows) -> None:
        """Add the events of one block of text in their order in the block; each of `parts` has some of them."""
        order = np.concatenate([part.order for part in parts])
        sorting = np.argsort(order, kind="stable")
        row = np.empty(len(order), np.int64)
        row[sorting] = np.arange(self.rows, self.rows + len(order))
        for name in COLUMNS:
            column = np.concatenate([part.columns[name] for part in parts])[sorting]
            # Times need eight bytes anyway; the others shrink now, as all blocks together are the reader's memory.
            self.parts[name].append(column if name in TIMES else downcast(column))
        before = 0
        for part in parts:
            for table, rows in part.sparse.items():
                rows[:, 0] = row[before + rows[:, 0]]
                self.sparse[table].append(downcast(rows))
            before += len(part.order)
        self.rows += len(order)
        memory = np.concatenate([part.memory for part in parts])
        if len(memory):
            self.memory.append(memory[np.argsort(memory[:, 0], kind="stable"), 1:])

    def rows_of(self, events: Events, order: Integers) -> EventRows:
        """Return the rows that decoded events add to the event table.

        `order` has the index of each event in its block. Names of threads are stored in the table at once. Events with
        impossible times are not added, only counted.
        """
        self.threads += [
            (self.id_of(event.pid), self.id_of(event.tid), event.args.name)
            for event in events
            if event.ph == "M" and event.name == "thread_name" and event.args
        ]
        rows = [i for i, event in enumerate(events) if event.ph == "X" and event.cat != INSTANT]
        lasting, order_of = [events[i] for i in rows], order[rows]
        impossible = has_impossible_time(floats([e.ts for e in lasting]), floats([e.dur or 0 for e in lasting]))
        if impossible.any():
            self.impossible_times += int(impossible.sum())
            lasting, order_of = [lasting[i] for i in np.flatnonzero(~impossible)], order_of[~impossible]
        start, dur = nanoseconds([e.ts for e in lasting]), nanoseconds([e.dur or 0 for e in lasting])
        columns = self.main_columns(lasting, start, start + dur)
        return EventRows(order_of, columns, self.sparse_tables(lasting), self.allocations(events, order))

    def allocations(self, events: Events, order: Integers) -> Integers:
        """Return a row for each allocation or free in `events`: its index in the block, then values of `ALLOCATIONS`.

        `order` has the index of each event in its block.
        """
        rows = [i for i, e in enumerate(events) if e.cat == INSTANT and e.name == ALLOCATION and e.args]
        if not rows:
            return NO_ALLOCATIONS
        impossible = has_impossible_time(floats([events[i].ts for i in rows]), np.zeros(len(rows)))
        self.impossible_times += int(impossible.sum())
        kept = np.array(rows)[~impossible]
        if not len(kept):
            return NO_ALLOCATIONS
        at = nanoseconds([events[i].ts for i in kept])
        values = np.array([self.allocation(events[i]) for i in kept], np.int64)
        return np.column_stack([order[kept], at, values])

    def allocation(self, event: Any) -> tuple[int, ...]:
        """Return a row of the table `ALLOCATIONS` without its first column, the time, for one allocation or free.

        Sizes are in bytes, negative for a free.
        """
        args = event.args
        # An address may need all 64 bits; as a signed number it stays distinct, which is all that addresses are for.
        address = (args.address + (1 << 63)) % (1 << 64) - (1 << 63)
        size = args.allocation if abs(args.allocation) < NUMBER_AT_MOST else 0
        totals = bounded(args.allocated), bounded(args.reserved)
        device = bounded(args.device_type, DEVICE_AT_MOST), bounded(args.device_id, DEVICE_AT_MOST)
        return (self.id_of(event.pid), self.id_of(event.tid), address, size, *totals, *device)

    def main_columns(self, events: Events, start: Integers, end: Integers) -> dict[str, Column]:
        """Return the columns that every event has (`COLUMNS`), by name; `start` and `end` are in nanoseconds."""
        args = [event.args or NO_ARGS for event in events]
        columns = (
            self.text_ids([event.name for event in events]),
            self.text_ids([event.cat for event in events]),
            start,
            end,
            self.ids_of([event.pid for event in events]),
            self.ids_of([event.tid for event in events]),
            integers([a.correlation for a in args]),
            integers([a.device for a in args], DEVICE_AT_MOST),
            self.ids_of([a.stream for a in args]),
        )
        return dict(zip(COLUMNS, columns, strict=True))

    def sparse_tables(self, events: Events) -> dict[str, Column]:
        """Return the tables of rare arguments (`SPARSE_TABLES`) by name; a row is an event that has the arguments.

        The first column is the index of the event in `events`. Tables without rows are left out.
        """
        args = [(i, event.args) for i, event in enumerate(events) if event.args]
        tables: dict[str, list[tuple[int, ...]]] = {
            "shape": [(i, self.shape_id(a)) for i, a in args if a.dims],
            "autograd": [(i, bounded(a.autograd), bounded(a.forward_thread)) for i, a in args if a.autograd >= 0],
            "copy": [(i, size) for i, a in args if (size := copied_bytes(a)) >= 0],
            "graph": [(i, bounded(a.graph)) for i, a in args if a.graph > 0],
            "unfinished": [(i,) for i, a in args if not a.finished],
            "occupancy": [(i, self.occupancy_id(a)) for i, a in args if a.occupancy or a.limits],
            "collective": [self.collective(i, a) for i, a in args if a.collective],
        }
        return {table: np.array(rows, np.int64) for table, rows in tables.items() if rows}

    def shape_id(self, args: Args) -> int:
        """Return the index of an operator's input shapes in the list of distinct shape texts, which stays short."""
        return self.shapes.setdefault(b"%b\0%b\0%b" % (args.dims, args.types, args.concrete), len(self.shapes))

    def occupancy_id(self, args: Args) -> int:
        """Return the index of a kernel's occupancy in the list of distinct occupancy texts.

        The list stays short, as kernels of one size and code have the same text.
        """
        text = b"%b\0%b\0%b\0%b" % (args.occupancy, args.warps, args.blocks, args.limits)
        return self.occupancies.setdefault(text, len(self.occupancies))

    def collective(self, row: int, args: Args) -> tuple[int, ...]:
        """Return the row of a collective in the table `collective`; the index `row` of its event is the first value."""
        sizes = bounded(args.elements), bounded(args.elements_out)
        texts = self.text_id(args.collective), self.text_id(str(args.group))
        dtype, splits = self.text_id(args.dtype), self.text_id(raw_text(args.splits))
        peers = bounded(args.source), bounded(args.destination)
        return (row, *texts, *sizes, dtype, bounded(args.members), bounded(args.sequence), splits, *peers)

    def text_id(self, text: str) -> int:
        """Return the index of a text in the list of distinct texts, to which a new text is added."""
        return self.texts.setdefault(text, len(self.texts))

    def text_ids(self, texts: Sequence[str]) -> Integers:
        """Return the index of each text in the list of distinct texts, to which new texts are added."""
        known = self.texts
        return np.fromiter([known.setdefault(text, len(known)) for text in texts], np.int64, len(texts))

    def id_of(self, value: object) -> int:
        """Return the number that stands for a pid, tid or stream in a column.

        It is the number itself. A text is stored, and a number from FIRST_TEXT_ID downwards stands for it.
        """
        if isinstance(value, int) and -1 <= value < NUMBER_AT_MOST:
            return value
        return FIRST_TEXT_ID - self.text_id(str(value))

    def ids_of(self, values: Sequence[int | str]) -> Integers:
        """Return the number that stands for each pid, tid or stream in a column, as `id_of` does for a single one."""
        # Nearly always all are numbers, and numpy converts them at once; a text among them raises.
        with suppress(OverflowError, ValueError):
            numbers = np.fromiter(values, np.int64, len(values))
            if numbers.min() >= -1:
                return numbers
        return np.array([self.id_of(value) for value in values], np.int64)

    def columns(self) -> dict[str, Column]:
        """Return all columns by name; the collected parts are deleted to save memory."""
        columns = {name: concatenated(self.parts.pop(name)) for name in COLUMNS}
        for table, names in SPARSE_TABLES.items():
            rows = np.concatenate([np.zeros((0, len(names)), np.int8), *self.sparse.pop(table)])
            rows = rows[np.argsort(rows[:, 0], kind="stable")]
            columns |= {f"{table}_{name}": downcast(rows[:, i]) for i, name in enumerate(names)}
        memory = np.concatenate([NO_ALLOCATIONS[:, 1:], *self.memory])
        columns |= {f"memory_{name}": downcast(memory[:, i]) for i, name in enumerate(ALLOCATIONS)}
        # A trace whose times are small still has times of eight bytes, as what is added to them may not be small.
        return columns | {"memory_at": memory[:, 0]}

    def problems(self) -> list[Problem]:
        """Return the problems of the events in the table."""
        count = self.impossible_times
        return [Problem(kind=ProblemKind.IMPOSSIBLE_TIMES, count=count)] if count else []


def copied_bytes(args: Args) -> int:
    """Return how many bytes a copy moves; -1 if the event is no copy."""
    # Older ROCm notes the size with the call that launches the copy, as a text.
    size = bytes(args.size).strip(b'"')
    return bounded(int(size[:DIGITS_AT_MOST]) if args.bytes < 0 and size.isdigit() else args.bytes)


def concatenated(parts: list[Column]) -> Column:
    """Return the parts of a column as one array; an empty array if there are no parts."""
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def downcast(column: Column) -> Column:
    """Return the same whole numbers in the smallest type that holds them all."""
    low, high = column.min(initial=0), column.max(initial=0)
    for size in SMALLER_TYPES:
        if np.iinfo(size).min <= low and high <= np.iinfo(size).max:
            return column.astype(size)
    return column


def floats(values: Sequence[Any]) -> Floats:
    """Return numbers of any type as a float64 array."""
    return np.fromiter(values, np.float64, len(values))


def has_impossible_time(begin: Floats, duration: Floats) -> Mask:
    """Return a mask of events whose begin or duration (microseconds) is impossible, such as a negative duration."""
    # A NaN compares as false, so it is impossible, too.
    return ~((np.abs(begin) < MICROSECONDS_AT_MOST) & (duration >= 0) & (duration < MICROSECONDS_AT_MOST))


def bounded(value: Any, limit: int = NUMBER_AT_MOST) -> int:
    """Return the value, or -1 if it is below -1 or not below `limit`, which no recorder would write."""
    return value if -1 <= value < limit else -1


def integers(values: Sequence[int], limit: int = NUMBER_AT_MOST) -> Integers:
    """Return the values as an int64 array, each as `bounded` returns it."""
    try:
        numbers = np.fromiter(values, np.int64, len(values))
    except OverflowError:
        numbers = np.array([bounded(value) for value in values], np.int64)
    return np.where((numbers >= -1) & (numbers < limit), numbers, -1)


def nanoseconds(microseconds: Sequence[Any]) -> Integers:
    """Return decimal microseconds as integer nanoseconds: exact for decimals, and for floats below 2**43.

    Whole microseconds and their fraction are converted separately: `rint(ts * 1000)` is off by 1 ns from 2**42 on.
    """
    if microseconds and isinstance(microseconds[0], Decimal):
        return np.array([int(value * 1000) for value in microseconds], np.int64)
    values = floats(microseconds)
    whole = np.floor(values)
    return whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)


def raw_text(raw: msgspec.Raw) -> str:
    """Return a piece of JSON exactly as it is in the file."""
    return bytes(raw).decode("utf-8", "replace")


def decoded_texts(texts: Iterable[bytes]) -> list[str]:
    """Return bytes as texts, with the replacement character for bytes that are not UTF-8."""
    return [text.decode("utf-8", "replace") for text in texts]
