"""Collect the events of a trace as columns: a row per event with a duration, and extra tables of rare arguments.

A text is stored once, in a list of distinct texts; a column holds its index in this list.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import compress
from typing import Any

import msgspec
import numpy as np

from analyzers import words
from analyzers.columns import Column, Floats, Integers, Mask, narrowed
from analyzers.traces.reading.numbering import FIRST_TEXT_ID, Text, Threads, renumber, renumber_texts
from analyzers.traces.reading.stream import ALLOCATION, INSTANT, Args, Events
from analyzers.traces.reading.trace import Problem, ProblemKind

_NO_ARGS = Args()
_MICROSECONDS_AT_MOST = 4.5e15
"""The largest time in µs that is accepted, about 140 years; in ns, the sum of two such times fits into int64."""
_NUMBER_AT_MOST = 1 << 62
DIGITS_AT_MOST = 20
_DEVICE_AT_MOST = 1 << 31
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
"""The columns of each table of arguments that few events have; `row` is the index of the event in the event table.

In the result, the column `elements` of the table `collective` is named `collective_elements`, and so on.
"""
ALLOCATIONS = ("at", "pid", "tid", "address", "bytes", "allocated", "reserved", "device_type", "device")
"""The columns of the table of memory allocations and frees, which have no duration; `at` is the time in ns.

In the result they are named `memory_at`, `memory_pid` and so on.
"""
_NO_ALLOCATIONS = np.zeros((0, 1 + len(ALLOCATIONS)), np.int64)
_TIMES = ("start", "end")
WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
"""Matches an id that is written as a text, such as "77", but is a number."""


@dataclass(frozen=True)
class EventRows:
    """Rows for the event table, made from some of the events of a block of text and not yet added to the table.

    `order` has, for each row of `columns`, the index of its event in the block. The rows of one block may come in
    several `EventRows`, one for decoded events and one for the others; sorting by `order` restores the order of the
    file. The first column of each of the `sparse` tables is the index of a row of `columns`. The first column of
    `memory`, the table of allocations and frees, is the index of the event in the block.
    """

    order: Integers
    columns: dict[str, Column]
    sparse: dict[str, Column]
    memory: Integers = field(default_factory=_NO_ALLOCATIONS.view)


class EventTable:
    """The events of one file, collected as columns.

    `texts`, `shapes` and `occupancies` are {distinct text: its index}. A text of `shapes` holds the sizes, the types
    and the values of an operator's inputs, three pieces of JSON separated by zero bytes. A text of `occupancies` holds,
    in the same way, four pieces about a kernel: the estimated occupancy in per cent, warps and blocks per
    multiprocessor, and the limits that newer recorders write.
    """

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.shapes: dict[bytes, int] = {}
        self.occupancies: dict[bytes, int] = {}
        self.parts: dict[str, list[Column]] = {name: [] for name in COLUMNS}
        self.sparse: dict[str, list[Column]] = {name: [] for name in SPARSE_TABLES}
        self.memory: list[Integers] = []
        self.threads: Threads = []
        self.rows = 0
        self.impossible_times = 0

    def add(self, events: Events) -> None:
        self.add_rows(self.rows_of(events, np.arange(len(events))))

    def add_rows(self, *parts: EventRows) -> None:
        """Add the events of one block of text, in the order of the block; each of `parts` has the rows of some of them.

        Example: parts with the orders [0, 2] and [1] are stored as the rows 0 (first part), 1 (second part) and 2
        (first part); a row of a sparse table that refers to row 1 of the first part refers to row 2 afterwards.
        """
        parts = tuple(part for part in parts if len(part.order) or len(part.memory)) or parts[:1]
        order = np.concatenate([part.order for part in parts])
        is_sorted = len(parts) == 1 and bool((order[1:] > order[:-1]).all())
        sorting = slice(None) if is_sorted else np.argsort(order, kind="stable")
        row = np.empty(len(order), np.int64)
        row[sorting] = np.arange(self.rows, self.rows + len(order))
        for name in COLUMNS:
            column = np.concatenate([part.columns[name] for part in parts])[sorting]
            # Times need eight bytes anyway; the others shrink now, as all blocks together are the reader's memory.
            self.parts[name].append(column if name in _TIMES else narrowed(column))
        before = 0
        for part in parts:
            for table, rows in part.sparse.items():
                rows[:, 0] = row[before + rows[:, 0]]
                self.sparse[table].append(narrowed(rows))
            before += len(part.order)
        self.rows += len(order)
        memory = np.concatenate([part.memory for part in parts])
        if len(memory):
            self.memory.append(memory[np.argsort(memory[:, 0], kind="stable"), 1:])

    def rows_of(self, events: Events, order: Integers) -> EventRows:
        """Return the rows of the event table for some decoded events, without adding them to the table.

        `order` has the index of each event in its block. Names of threads are stored in the table at once. Events with
        impossible times get no row and are counted.
        """
        lasts = [event.ph == "X" and event.cat != INSTANT for event in events]
        lasting, order_of = list(compress(events, lasts)), order[np.array(lasts, bool)]
        rest = [i for i, one in enumerate(lasts) if not one]
        self.threads += [
            (self.id_of(event.pid), self.id_of(event.tid), event.args.name)
            for event in map(events.__getitem__, rest)
            if event.ph == "M" and event.name == "thread_name" and event.args
        ]
        start, duration = [e.ts for e in lasting], [e.dur or 0 for e in lasting]
        impossible = _has_impossible_time(floats(start), floats(duration))
        if impossible.any():
            self.impossible_times += int(impossible.sum())
            kept = np.flatnonzero(~impossible)
            lasting, start, duration = ([values[i] for i in kept] for values in (lasting, start, duration))
            order_of = order_of[kept]
        start_ns = nanoseconds(start)
        columns = self.main_columns(lasting, start_ns, start_ns + nanoseconds(duration))
        return EventRows(order_of, columns, self.sparse_tables(lasting), self.allocations(events, rest, order))

    def allocations(self, events: Events, rows: Sequence[int], order: Integers) -> Integers:
        """Return a row for each allocation or free: its index in the block, then the columns `ALLOCATIONS`.

        They are looked for at the indices `rows` of `events`; `order` has the index of each event in its block. Events
        with impossible times get no row and are counted.
        """
        rows = [i for i in rows if events[i].cat == INSTANT and events[i].name == ALLOCATION and events[i].args]
        if not rows:
            return _NO_ALLOCATIONS
        impossible = _has_impossible_time(floats([events[i].ts for i in rows]), np.zeros(len(rows)))
        self.impossible_times += int(impossible.sum())
        kept = np.array(rows)[~impossible]
        if not len(kept):
            return _NO_ALLOCATIONS
        at = nanoseconds([events[i].ts for i in kept])
        values = np.array([self.allocation(events[i]) for i in kept], np.int64)
        return np.column_stack([order[kept], at, values])

    def allocation(self, event: Any) -> tuple[int, ...]:
        """Return a row of the table of allocations for one event, an allocation or a free, without its time.

        The values are those of the columns `ALLOCATIONS` from the second on. `bytes` is negative for a free.
        `allocated` and `reserved` are the totals of the device in bytes, -1 if not recorded. The address is stored as
        a signed number.
        """
        args = event.args
        # An address may need all 64 bits; as a signed number it stays distinct, which is all that addresses are for.
        address = (args.address + (1 << 63)) % (1 << 64) - (1 << 63)
        size = args.allocation if abs(args.allocation) < _NUMBER_AT_MOST else 0
        totals = bounded(args.allocated), bounded(args.reserved)
        device = bounded(args.device_type, _DEVICE_AT_MOST), bounded(args.device_id, _DEVICE_AT_MOST)
        return (self.id_of(event.pid), self.id_of(event.tid), address, size, *totals, *device)

    def main_columns(self, events: Events, start: Integers, end: Integers) -> dict[str, Column]:
        """Return the columns that all events have, as {name in `COLUMNS`: a value for each event}; times in ns."""
        args = [event.args or _NO_ARGS for event in events]
        columns = (
            self.text_ids([event.name for event in events]),
            self.text_ids([event.cat for event in events]),
            start,
            end,
            self.ids_of([event.pid for event in events]),
            self.ids_of([event.tid for event in events]),
            integers([a.correlation for a in args]),
            integers([a.device for a in args], _DEVICE_AT_MOST),
            self.ids_of([a.stream for a in args]),
        )
        return dict(zip(COLUMNS, columns, strict=True))

    def sparse_tables(self, events: Events) -> dict[str, Column]:
        """Return the tables of `SPARSE_TABLES`, by name; an event has a row in a table if it has such arguments.

        The first column of each table is the index of the event in `events`. Tables without rows are left out.
        """
        tables: dict[str, list[tuple[int, ...]]] = {name: [] for name in SPARSE_TABLES}
        shape, autograd, copy, graph, unfinished, occupancy, collective = (
            tables[name].append
            for name in ("shape", "autograd", "copy", "graph", "unfinished", "occupancy", "collective")
        )
        # One pass: seven would fetch each event seven times from memory.
        for i, event in enumerate(events):
            if a := event.args:
                if a.dims:
                    shape((i, self.shape_id(a)))
                if a.autograd >= 0:
                    autograd((i, bounded(a.autograd), bounded(a.forward_thread)))
                if (a.bytes >= 0 or a.size) and (size := _copied_bytes(a)) >= 0:
                    copy((i, size))
                if a.graph > 0:
                    graph((i, bounded(a.graph)))
                if not a.finished:
                    unfinished((i,))
                if a.occupancy or a.limits:
                    occupancy((i, self.occupancy_id(a)))
                if a.collective:
                    collective(self.collective(i, a))
        return {table: np.array(rows, np.int64) for table, rows in tables.items() if rows}

    def shape_id(self, args: Args) -> int:
        return self.shapes.setdefault(b"\0".join((args.dims, args.types, args.concrete)), len(self.shapes))

    def occupancy_id(self, args: Args) -> int:
        """Return the index of a kernel's occupancy in the list of occupancy texts; a new text is added to the list.

        The list stays short, because launches of one kernel with the same grid have the same text.
        """
        text = b"\0".join((args.occupancy, args.warps, args.blocks, args.limits))
        return self.occupancies.setdefault(text, len(self.occupancies))

    def collective(self, row: int, args: Args) -> tuple[int, ...]:
        """Return a collective's row of the table `collective`; its first value is `row`, the index of the event."""
        sizes = bounded(args.elements), bounded(args.elements_out)
        texts = self.text_id(args.collective), self.text_id(str(args.group))
        dtype, splits = self.text_id(args.dtype), self.text_id(raw_text(args.splits))
        peers = bounded(args.source), bounded(args.destination)
        return (row, *texts, *sizes, dtype, bounded(args.members), bounded(args.sequence), splits, *peers)

    def text_id(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def text_ids(self, texts: Sequence[str]) -> Integers:
        for text in dict.fromkeys(texts):
            self.text_id(text)
        return np.fromiter(map(self.texts.__getitem__, texts), np.int64, len(texts))

    def id_of(self, value: object) -> int:
        """Return the number that stands for a pid, tid or stream in a column.

        An integer stands for itself, even if it is written as a text ("7"). Any other text is stored in the list of
        texts and becomes `FIRST_TEXT_ID` minus its index, a number of -2 or less.
        """
        if isinstance(value, str) and WHOLE_NUMBER.fullmatch(value):
            value = int(value)
        if isinstance(value, int) and -1 <= value < _NUMBER_AT_MOST:
            return value
        return FIRST_TEXT_ID - self.text_id(str(value))

    def ids_of(self, values: Sequence[int | str]) -> Integers:
        """Return the number that stands for each pid, tid or stream in a column (see `id_of`); -2 or less for texts."""
        # Nearly always all are numbers, and numpy converts them at once.
        if str not in set(map(type, values)):
            with suppress(OverflowError, ValueError):
                numbers = np.fromiter(values, np.int64, len(values))
                if numbers.min() >= -1 and numbers.max() < _NUMBER_AT_MOST:
                    return numbers
        return np.array([self.id_of(value) for value in values], np.int64)

    def finish(self) -> tuple[dict[str, Column], dict[str, Any]]:
        """Return all columns by name, and their texts; the table is emptied to save memory.

        The texts are a dictionary with the keys `names`, `shapes`, `occupancies` and `threads` (a list of (pid, tid,
        name)).
        """
        columns = self.columns()
        names, threads = renumber_texts(columns, list(map(words.bounded, self.texts)), self.threads)
        shapes = renumber(columns, "shape_text", list(self.shapes))
        occupancies = renumber(columns, "occupancy_text", list(self.occupancies))
        texts = {"names": names, "shapes": decoded_texts(shapes), "occupancies": decoded_texts(occupancies)}
        return columns, texts | {"threads": threads}

    def columns(self) -> dict[str, Column]:
        """Return all columns by name, and empty the table to save memory: this can be called once."""
        columns = {name: _concatenated(self.parts.pop(name)) for name in COLUMNS}
        for table, names in SPARSE_TABLES.items():
            rows = np.concatenate([np.zeros((0, len(names)), np.int8), *self.sparse.pop(table)])
            rows = rows[np.argsort(rows[:, 0], kind="stable")]
            columns |= {f"{table}_{name}": narrowed(rows[:, i]) for i, name in enumerate(names)}
        memory = np.concatenate([_NO_ALLOCATIONS[:, 1:], *self.memory])
        columns |= {f"memory_{name}": narrowed(memory[:, i]) for i, name in enumerate(ALLOCATIONS)}
        # A trace whose times are small still has times of eight bytes, as what is added to them may not be small.
        return columns | {"memory_at": memory[:, 0]}

    def problems(self) -> list[Problem]:
        count = self.impossible_times
        return [Problem(kind=ProblemKind.IMPOSSIBLE_TIMES, count=count)] if count else []


def _copied_bytes(args: Args) -> int:
    # Older ROCm notes the size with the call that launches the copy, as a text.
    size = bytes(args.size).strip(b'"')
    return bounded(int(size[:DIGITS_AT_MOST]) if args.bytes < 0 and size.isdigit() else args.bytes)


def _concatenated(parts: list[Column]) -> Column:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def floats(values: Sequence[Any]) -> Floats:
    return np.fromiter(values, np.float64, len(values))


def _has_impossible_time(begin: Floats, duration: Floats) -> Mask:
    # A NaN compares as false, so it is impossible, too.
    return ~((np.abs(begin) < _MICROSECONDS_AT_MOST) & (duration >= 0) & (duration < _MICROSECONDS_AT_MOST))


def bounded(value: Any, limit: int = _NUMBER_AT_MOST) -> int:
    """Return the value; -1 (not recorded) if it is below -1 or at least `limit`, which no recorder would write."""
    return value if -1 <= value < limit else -1


def integers(values: Sequence[int], limit: int = _NUMBER_AT_MOST) -> Integers:
    """Return the values as an int64 array; a value below -1, or of at least `limit`, becomes -1 (not recorded)."""
    try:
        numbers = np.fromiter(values, np.int64, len(values))
    except OverflowError:
        numbers = np.array([bounded(value) for value in values], np.int64)
    return np.where((numbers >= -1) & (numbers < limit), numbers, -1)


def nanoseconds(microseconds: Sequence[Any]) -> Integers:
    """Return microseconds as integer nanoseconds: exact for `Decimal` values, and for floats below 2**43 µs.

    Whole microseconds and their fraction are converted separately: `rint(ts * 1000)` is off by 1 ns from 2**42 on.
    """
    if microseconds and isinstance(microseconds[0], Decimal):
        return np.array([int(value * 1000) for value in microseconds], np.int64)
    values = floats(microseconds)
    whole = np.floor(values)
    return whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)


def raw_text(raw: msgspec.Raw) -> str:
    return bytes(raw).decode("utf-8", "replace")


_SEPARATOR = 1
"""A byte that no JSON text contains."""


def decoded_texts(texts: Sequence[bytes]) -> list[str]:
    """Return bytes as texts; bytes that are not UTF-8 become the replacement character."""
    joined = bytes([_SEPARATOR]).join(texts)
    if joined.isascii() and texts:
        decoded = joined.decode().split(chr(_SEPARATOR))  # all at once takes a fifth of the time
        if len(decoded) == len(texts):
            return decoded
    return [text.decode("utf-8", "replace") for text in texts]


def numbers_of(texts: Sequence[Text], known: dict[Text, int]) -> Integers:
    """Return the number of each text in `known`; new texts are added to `known`. No text occurs twice in `texts`."""
    if known.keys().isdisjoint(texts):
        numbers = range(len(known), len(known) + len(texts))
        known.update(zip(texts, numbers, strict=True))
        return np.array(numbers, np.int64)
    return np.fromiter([known.setdefault(text, len(known)) for text in texts], np.int64, len(texts))
