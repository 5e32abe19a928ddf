"""Events -> columns, one row a duration event; texts become numbers, and rare arguments tables of their own."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.traces.reading.stream import ALLOCATION, INSTANT, Args, Events

NO_ARGS = Args()
MICROSECONDS_AT_MOST = 4.5e15
"""Half of what int64 nanoseconds hold: sums and ends stay inside."""
NUMBER_AT_MOST = 1 << 62
DIGITS_AT_MOST = 20
DEVICE_AT_MOST = 1 << 31
FIRST_TEXT_ID = -2
"""In pid, tid and stream the number of text n is `FIRST_NAME - n`."""
COLUMNS = ("name", "cat", "start", "end", "pid", "tid", "correlation", "device", "stream")
SPARSE_TABLES = {
    "collective": ("row", "name", "group", "elements", "elements_out", "dtype", "members", "sequence", "splits"),
    "shape": ("row", "text"),
    "autograd": ("row", "sequence", "thread"),
    "copy": ("row", "bytes"),
    "graph": ("row", "id"),
    "unfinished": ("row",),
    "occupancy": ("row", "text"),
}
"""Tables of the events that carry such arguments; their columns are called `collective_row` and so on."""
ALLOCATIONS = ("at", "pid", "tid", "address", "bytes", "allocated", "reserved", "device_type", "device")
"""The table of what was allocated and freed, which are no events that last; its columns are `memory_at` and so on."""
NO_ALLOCATIONS = np.zeros((0, 1 + len(ALLOCATIONS)), np.int64)
TIMES = ("start", "end")
SIZES = (np.int8, np.int16, np.int32)


@dataclass(frozen=True)
class EventRows:
    """What a block's events gave: `columns` and `order`, by which they are told apart; and the rows of `rare` tables.

    Those begin with the number of the event in `order`. A row of `memory` begins with its own place in that order.
    """

    order: Column
    columns: dict[str, Column]
    rare: dict[str, Column]
    memory: Column = field(default_factory=NO_ALLOCATIONS.view)


class EventTable:
    """Collects events; in `pid`, `tid` and `stream` -1 is none and what is below stands for a text.

    A text of `shapes` holds the sizes, the types and the values of an operator's inputs, in JSON, with zeros between;
    one of `occupancies` how a kernel fills the device: occupancy (%), warps and blocks a multiprocessor, and what newer
    recorders know of its limits.
    """

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.shapes: dict[bytes, int] = {}
        self.occupancies: dict[bytes, int] = {}
        self.parts: dict[str, list[Column]] = {name: [] for name in COLUMNS}
        self.rare: dict[str, list[Column]] = {name: [] for name in SPARSE_TABLES}
        self.memory: list[Column] = []
        self.threads: list[tuple[int, int, str]] = []
        self.rows = 0
        self.odd_times = 0

    def add(self, events: Events) -> None:
        """Take a block of events."""
        self.join(self.decoded(events, np.arange(len(events))))

    def join(self, *parts: EventRows) -> None:
        """Take what a block of events gave, part by part; the rows come in the order of all of them."""
        order = np.concatenate([part.order for part in parts])
        place = np.argsort(order, kind="stable")
        row = np.empty(len(order), np.int64)
        row[place] = np.arange(self.rows, self.rows + len(order))
        for name in COLUMNS:
            column = np.concatenate([part.columns[name] for part in parts])[place]
            self.parts[name].append(column if name in TIMES else downcast(column))
        before = 0
        for part in parts:
            for table, found in part.rare.items():
                found[:, 0] = row[before + found[:, 0]]
                self.rare[table].append(downcast(found))
            before += len(part.order)
        self.rows += len(order)
        memory = np.concatenate([part.memory for part in parts])
        if len(memory):
            self.memory.append(memory[np.argsort(memory[:, 0], kind="stable"), 1:])

    def decoded(self, events: Events, order: Column) -> EventRows:
        """The rows of events as the decoder gives them."""
        self.threads += [
            (self.place(event.pid), self.place(event.tid), event.args.name)
            for event in events
            if event.ph == "M" and event.name == "thread_name" and event.args
        ]
        chosen = [i for i, event in enumerate(events) if event.ph == "X" and event.cat != INSTANT]
        lasting, order_of = [events[i] for i in chosen], order[chosen]
        odd = impossible_times(floats([e.ts for e in lasting]), floats([e.dur or 0 for e in lasting]))
        if odd.any():
            self.odd_times += int(odd.sum())
            lasting, order_of = [lasting[i] for i in np.flatnonzero(~odd)], order_of[~odd]
        start, dur = nanoseconds([e.ts for e in lasting]), nanoseconds([e.dur or 0 for e in lasting])
        columns = self.plain_columns(lasting, start, start + dur)
        return EventRows(order_of, columns, self.rare_columns(lasting), self.allocations(events, order))

    def allocations(self, events: Events, order: Column) -> Column:
        """The rows of what was allocated and freed, each behind its place in the order."""
        chosen = [i for i, e in enumerate(events) if e.cat == INSTANT and e.name == ALLOCATION and e.args]
        if not chosen:
            return NO_ALLOCATIONS
        odd = impossible_times(floats([events[i].ts for i in chosen]), np.zeros(len(chosen)))
        self.odd_times += int(odd.sum())
        kept = np.array(chosen)[~odd]
        at = nanoseconds([events[i].ts for i in kept])
        found = np.array([self.allocation(events[i]) for i in kept], np.int64).reshape(len(kept), -1)
        return np.column_stack([order[kept], at, found]) if len(kept) else NO_ALLOCATIONS

    def allocation(self, event: Any) -> tuple[int, ...]:
        """All of a row but its time. An address may need all 64 bits, which are taken as a signed number."""
        a = event.args
        address = (a.address + (1 << 63)) % (1 << 64) - (1 << 63)
        size = a.allocation if abs(a.allocation) < NUMBER_AT_MOST else 0
        totals = bounded(a.allocated), bounded(a.reserved)
        device = bounded(a.device_type, DEVICE_AT_MOST), bounded(a.device_id, DEVICE_AT_MOST)
        return (self.place(event.pid), self.place(event.tid), address, size, *totals, *device)

    def plain_columns(self, events: Events, start: Column, end: Column) -> dict[str, Column]:
        args = [event.args or NO_ARGS for event in events]
        found = (
            self.numbers([event.name for event in events]),
            self.numbers([event.cat for event in events]),
            start,
            end,
            self.places([event.pid for event in events]),
            self.places([event.tid for event in events]),
            integers([a.correlation for a in args]),
            integers([a.device for a in args], DEVICE_AT_MOST),
            self.places([a.stream for a in args]),
        )
        return dict(zip(COLUMNS, found, strict=True))

    def rare_columns(self, events: Events) -> dict[str, Column]:
        """The rare arguments of events, behind the numbers of those that have them."""
        args = [(i, event.args) for i, event in enumerate(events) if event.args]
        found = {
            "shape": [(i, self.shape(a)) for i, a in args if a.dims],
            "autograd": [(i, bounded(a.autograd), bounded(a.forward_thread)) for i, a in args if a.autograd >= 0],
            "copy": [(i, size) for i, a in args if (size := copied_bytes(a)) >= 0],
            "graph": [(i, bounded(a.graph)) for i, a in args if a.graph > 0],
            "unfinished": [(i,) for i, a in args if not a.finished],
            "occupancy": [(i, self.occupancy(a)) for i, a in args if a.occupancy or a.limits],
            "collective": [self.collective(i, a) for i, a in args if a.collective],
        }
        return {table: np.array(rows, np.int64) for table, rows in found.items() if rows}

    def shape(self, a: Args) -> int:
        """Most operators have shapes where these are recorded, but only few different ones."""
        return self.shapes.setdefault(b"%b\0%b\0%b" % (a.dims, a.types, a.concrete), len(self.shapes))

    def occupancy(self, a: Args) -> int:
        """Kernels of one size and code fill the device alike, so that there are few different ones."""
        text = b"%b\0%b\0%b\0%b" % (a.occupancy, a.warps, a.blocks, a.limits)
        return self.occupancies.setdefault(text, len(self.occupancies))

    def collective(self, row: int, a: Args) -> tuple[int, ...]:
        sizes = bounded(a.elements), bounded(a.elements_out)
        texts = self.text(a.collective), self.text(str(a.group))
        dtype, splits = self.text(a.dtype), self.text(raw_text(a.splits))
        return (row, *texts, *sizes, dtype, bounded(a.members), bounded(a.sequence), splits)

    def text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def numbers(self, texts: Sequence[str]) -> Column:
        known = self.texts
        return np.fromiter([known.setdefault(text, len(known)) for text in texts], np.int64, len(texts))

    def place(self, value: int | str) -> int:
        """A pid, tid or stream: one that is no such number counts as a name."""
        if isinstance(value, int) and -1 <= value < NUMBER_AT_MOST:
            return value
        return FIRST_TEXT_ID - self.text(str(value))

    def places(self, values: Sequence[int | str]) -> Column:
        """The same for many: nearly always all are numbers."""
        with suppress(OverflowError, ValueError):
            numbers = np.fromiter(values, np.int64, len(values))  # a text raises
            if numbers.min() >= -1:
                return numbers
        return np.array([self.place(value) for value in values], np.int64)

    def columns(self) -> dict[str, Column]:
        """All columns; the table is used up."""
        made = {name: concatenated(self.parts.pop(name)) for name in COLUMNS}
        for table, names in SPARSE_TABLES.items():
            rows = np.concatenate([np.zeros((0, len(names)), np.int8), *self.rare.pop(table)])
            rows = rows[np.argsort(rows[:, 0], kind="stable")]
            made |= {f"{table}_{name}": downcast(rows[:, i]) for i, name in enumerate(names)}
        memory = np.concatenate([NO_ALLOCATIONS[:, 1:], *self.memory])
        held = {f"memory_{name}": downcast(memory[:, i]) for i, name in enumerate(ALLOCATIONS)}
        return made | held | {"memory_at": memory[:, 0]}

    def problems(self) -> list[str]:
        return [f"{self.odd_times} events with impossible times were left out"] if self.odd_times else []


def copied_bytes(a: Args) -> int:
    """How many bytes a copy moves; older ROCm notes them with the call, as a text."""
    noted = bytes(a.size).strip(b'"')
    return bounded(int(noted[:DIGITS_AT_MOST]) if a.bytes < 0 and noted.isdigit() else a.bytes)


def concatenated(parts: list[Column]) -> Column:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def downcast(column: Column) -> Column:
    """The same whole numbers in as few bytes each as hold them all."""
    low, high = column.min(initial=0), column.max(initial=0)
    for size in SIZES:
        if np.iinfo(size).min <= low and high <= np.iinfo(size).max:
            return column.astype(size)
    return column


def floats(values: Sequence[Any]) -> Column:
    return np.fromiter(values, np.float64, len(values))


def impossible_times(begin: Column, length: Column) -> Column:
    """Which events begin, last or end where no clock reaches; in microseconds."""
    possible: Column = (np.abs(begin) < MICROSECONDS_AT_MOST) & (length >= 0) & (length < MICROSECONDS_AT_MOST)
    return ~possible


def bounded(value: int, limit: int = NUMBER_AT_MOST) -> int:
    """A number as its column holds it; others no recorder writes."""
    return value if -1 <= value < limit else -1


def integers(values: Sequence[int], limit: int = NUMBER_AT_MOST) -> Column:
    """The same for many."""
    try:
        numbers = np.fromiter(values, np.int64, len(values))
    except OverflowError:
        numbers = np.array([bounded(value) for value in values], np.int64)
    return np.where((numbers >= -1) & (numbers < limit), numbers, -1)


def nanoseconds(microseconds: Sequence[Any]) -> Column:
    """Decimal microseconds as integer nanoseconds, exact for decimals, and for floats below 2**43."""
    if microseconds and isinstance(microseconds[0], Decimal):
        return np.array([int(value * 1000) for value in microseconds], np.int64)
    values = floats(microseconds)
    whole = np.floor(values)
    found: Column = whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)
    return found


def raw_text(raw: msgspec.Raw) -> str:
    """A piece of JSON as it stood in the file."""
    return bytes(raw).decode("utf-8", "replace")


def decoded_texts(texts: Iterable[bytes]) -> list[str]:
    return [text.decode("utf-8", "replace") for text in texts]
