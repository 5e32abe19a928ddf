r"""Read a block of a trace without decoding most of its events: those that differ from known events only in digits.

A block of some megabytes is cut at its most common *seam*, the bytes between two events, such as `},\n  {`. If the text
of an event with masked digits is known, the kind of the event is known (see `templates` and `event_kinds`), and with it
the positions of the numbers. Numpy parses one field of all these events at once. The few unknown events are decoded by
the JSON decoder.

The result is the same as if every event were decoded:

- Masked texts are compared as a whole, and so are the digits of names and shapes, so events of one kind differ in
  numbers alone.
- Digits can make a number invalid JSON only by a leading zero; such an event goes to the decoder.
- The bytes of a seam may also occur inside a string or a list of objects. Then the pieces around them are no JSON
  objects: none of them becomes a template, the decoder refuses them, and the whole block is decoded in the slower way.
  If each piece is an object by itself, no piece can be a part of another.

Reading 300 000 events (a simulated step of a sharded transformer) takes about a third of the processor time that
decoding them takes.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.traces.reading.digits import parse_numbers, slices_at
from analyzers.traces.reading.event_kinds import CONSTANT, FIELDS, LENGTH, Block, EventKinds
from analyzers.traces.reading.event_table import DEVICE_AT_MOST, MICROSECONDS_AT_MOST, EventRows, EventTable
from analyzers.traces.reading.row_dictionary import UNKNOWN
from analyzers.traces.reading.stream import COUNTED, EXACT, Events, ReadState
from analyzers.traces.reading.templates import DECIMALS_OF, ID_FIELDS, TO_ALLOCATIONS, TO_EVENTS

_SEAM = re.compile(rb"\},\s{0,64}\{")
_SEAM_SAMPLE_BYTES = 64 << 10
"""The number of bytes at the beginning of a block that are searched for the most common text between two events."""
_FAILURES_AT_MOST = 4
"""The most consecutive blocks that may need decoding; after more, the whole rest of the file is decoded."""
FLOAT_EXACT_BELOW = 1 << 43
"""The time in µs below which neighbouring float64 values are less than a nanosecond apart."""
_TARGETS = [FIELDS[TO_EVENTS], FIELDS[TO_ALLOCATIONS]]
_SPARSE_FIELDS = {
    "collective": (
        "collective", "group", "elements", "elements_out", "dtype", "members", "sequence", "splits", "source",
        "destination",
    ),
    "shape": ("shape",),
    "autograd": ("autograd", "forward_thread"),
    "copy": ("bytes",),
    "graph": ("graph",),
    "unfinished": ("unfinished",),
    "occupancy": ("occupancy",),
}  # fmt: skip
"""The fields that fill each of `event_table.SPARSE_TABLES`; an event has a row if its first field is not negative."""


def split_block(text: bytes, seam: bytes) -> Block:
    """Split a text into events at each `seam`, the bytes between two events; the last event is left out.

    The last event may continue in the next block. With the seam `}, {` the text `{"a": 1}, {"b": 2}, {"c":` gives the
    events `{"a": 1` and `"b": 2`. The first one keeps its opening brace, so its kind is never known and it is decoded.
    """
    last_bytes = np.flatnonzero(np.frombuffer(text, np.uint8) == seam[-1])
    start = last_bytes[last_bytes >= len(seam)] + 1
    start = start[slices_at(text, start - len(seam), len(seam)) == np.void(seam)]
    stop = start - len(seam)
    return Block(text, np.append(0, start)[: len(stop)], stop)


@dataclass(frozen=True)
class TemplatedEvents:
    """Events of known kinds, whose numbers are parsed at known positions without decoding JSON.

    `start`, `kind` and `order` have an element per event: the position in `text` where the event begins, the number of
    its kind, and its index in its block. `layout` is `EventKinds.layout`: the positions of the numbers of each kind.
    `parsed` caches the values of each field (name: one value per event), which are parsed at their first use.
    """

    layout: Integers
    text: bytes
    start: Integers
    kind: Integers
    order: Integers
    parsed: dict[str, Integers] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Integers:
        """Return the values of the field `name`, one per event."""
        if name not in self.parsed:
            self.parsed[name] = self.parse(name)
        return self.parsed[name]

    def parse(self, name: str) -> Integers:
        """Return the values of the field `name`, one per event, parsed from the digits in the events' texts.

        If a kind has no digits for the field, its events get the constant of this kind in `layout`.
        """
        constant, end, length, sign = self.layout[FIELDS[name]]
        values: Integers = constant[self.kind]
        if length.any():
            length = length[self.kind]
            rows = slice(None) if length.all() else np.flatnonzero(length)
            kind = self.kind[rows]
            values[rows] = sign[kind] * parse_numbers(self.text, self.start[rows] + end[kind], length[rows])
        return values

    def select(self, rows: Integers) -> "TemplatedEvents":
        """Return the events with these indices; fields that were parsed already stay parsed."""
        parsed = {name: column[rows] for name, column in self.parsed.items()}
        return TemplatedEvents(self.layout, self.text, self.start[rows], self.kind[rows], self.order[rows], parsed)

    def of_target(self, target: str) -> "TemplatedEvents":
        """Return the events that become rows of the table `target`: `TO_EVENTS` or `TO_ALLOCATIONS`."""
        rows = np.flatnonzero(self[target])
        return self if len(rows) == len(self.kind) else self.select(rows)

    def is_representable(self, microseconds_below: float) -> Mask:
        """Return a mask of the events that can be stored without decoding them.

        For these, start and duration are below `microseconds_below`, and no pid, tid or stream is below -1, because
        such numbers stand for texts in the event table.
        """
        fits = np.maximum(self["ts"], self["dur"]) < microseconds_below
        for name in ID_FIELDS:
            # Below -1 a column holds the number of a text, so the decoder has to turn such an id into one.
            fits &= (self[name] >= -1) | (self.layout[FIELDS[name], LENGTH][self.kind] == 0)
        return fits

    def rows(self) -> EventRows:
        """Return the rows that the events add to the event table."""
        lasting, allocations = self.of_target(TO_EVENTS), self.of_target(TO_ALLOCATIONS)
        return EventRows(lasting.order, lasting.columns(), lasting.sparse_tables(), allocations.allocations())

    def columns(self) -> dict[str, Column]:
        """Return the columns that all events with a duration have, {name: value of each event}; times in ns."""
        start = self.nanoseconds("ts")
        columns = {name: self[name] for name in ("name", "cat", *ID_FIELDS)}
        columns |= {"start": start, "end": start + self.nanoseconds("dur")}
        columns["correlation"] = np.maximum(self["correlation"], -1)
        return columns | {"device": self.device("device")}

    def sparse_tables(self) -> dict[str, Column]:
        """Return the non-empty tables of arguments that few events have (`event_table.SPARSE_TABLES`), by name."""
        tables = {table: self.sparse_table(*names) for table, names in _SPARSE_FIELDS.items()}
        return {table: rows for table, rows in tables.items() if len(rows)}

    def allocations(self) -> Integers:
        """Return a row for each event (an allocation or free): its index in its block, then `event_table.ALLOCATIONS`.

        These further columns are its time, thread, address and bytes, among others.
        """
        totals = [np.maximum(self[name], -1) for name in ("allocated", "reserved")]
        place = (self["pid"], self["tid"], self["address"], self["allocation"])
        device = self.device("device_type"), self.device("device_id")
        return np.column_stack([self.order, self.nanoseconds("ts"), *place, *totals, *device])

    def device(self, name: str) -> Integers:
        """Return the device number in the field `name` of each event; -1 for a negative or impossibly large number."""
        return np.where(self[name] < DEVICE_AT_MOST, np.maximum(self[name], -1), -1)

    def nanoseconds(self, name: str) -> Integers:
        """Return the time field `name` (`ts` or `dur`) of each event in integer nanoseconds.

        For example, 1023.5 µs is computed as 1023 * 1000 + 5 * 100.
        """
        decimals = DECIMALS_OF[name]
        scale: Integers = 10 ** (3 - self.layout[FIELDS[decimals], LENGTH])
        return self[name] * 1000 + self[decimals] * scale[self.kind]

    def sparse_table(self, first: str, *others: str) -> Integers:
        """Return a table of arguments that few events have: the event's index, then the fields `first` and `others`.

        An event has a row if its field `first` is not negative. For the number of a CUDA graph, the field must be
        positive.
        """
        carried = self[first]
        rows = np.flatnonzero(carried >= (1 if first == "graph" else 0))  # graph 0 means none
        carriers = self.select(rows)
        columns = [np.maximum(column, -1) for column in (carried[rows], *(carriers[name] for name in others))]
        # That an event is unfinished is all that its row says.
        return np.column_stack([rows, *columns][: 1 if first == "unfinished" else None])


class TemplateReader:
    """A fast reader for the blocks of one file, which decodes only events of unknown kinds.

    `seam` are the bytes between two events of the file, `failures` counts the consecutive blocks that had to be
    decoded.
    """

    def __init__(self, table: EventTable) -> None:
        self.table = table
        self.kinds = EventKinds(table)
        self.seam = b""
        self.failures = 0

    def read_block(self, buffer: bytes, state: ReadState) -> int | None:
        """Add the events at the beginning of the buffer to the event table, and return how many bytes they took.

        `state` has the decoder for events of unknown kinds. The result is None, and nothing is added, if the whole
        block must be decoded instead.
        """
        if not self.seam:  # a file of one block is decoded: learning its kinds would not pay
            self.seam = _most_common_seam(buffer)
            return None
        if self.failures > _FAILURES_AT_MOST or not buffer.startswith(b"{"):
            return None
        block = split_block(buffer, self.seam)
        rows = self.rows(block, state)
        self.failures = 0 if rows else self.failures + 1
        if rows is None:
            return None
        self.table.add_rows(*rows)
        return int(block.stop[-1]) + 1

    def rows(self, block: Block, state: ReadState) -> tuple[EventRows, EventRows] | None:
        """Return the rows of the events of known kinds, and the rows of all other events, which were decoded.

        The result is None if the whole block must be decoded instead, see `_decode_unknown`.
        """
        kinds = self.kinds.recognise(block)
        kinds[self.kinds.with_leading_zeros(block, kinds)] = UNKNOWN
        known = kinds >= 0
        # Arrows between events and other marks are recognised, so that nobody decodes them, and left out.
        known[known] = self.kinds.layout[_TARGETS, CONSTANT][:, kinds[known]].any(axis=0)
        order = np.flatnonzero(known)
        events = TemplatedEvents(self.kinds.layout, block.text, block.start[order], kinds[order], order)
        fits = events.is_representable(MICROSECONDS_AT_MOST if state.decoder is EXACT else FLOAT_EXACT_BELOW)
        if not fits.all():
            kinds[order[~fits]] = UNKNOWN
            events = events.select(np.flatnonzero(fits))
        decoded = _decode_unknown(block, np.flatnonzero(kinds < 0), state)
        return None if decoded is None else (events.rows(), self.table.rows_of(*decoded))


def _most_common_seam(text: bytes) -> bytes:
    r"""Return the most common bytes between two events, such as `},\n  {`; empty if none are found."""
    seams = Counter(_SEAM.findall(text, 0, _SEAM_SAMPLE_BYTES))
    return max(seams, key=seams.__getitem__, default=b"")


def _decode_unknown(block: Block, unknown: Integers, state: ReadState) -> tuple[Events, Integers] | None:
    """Decode the events of a block whose indices are in `unknown`; return them, and the index in the block for each.

    Neighbouring events are decoded together, and all get the index of the first of them, which keeps the order of the
    file. The result is None if the whole block must be decoded in the slower way: a piece of the text is no event, half
    of all events are unknown, or some events have performance counters (only `stream` keeps their arguments).
    """
    if 2 * len(unknown) >= len(block.start):
        return None
    runs = np.split(unknown, np.flatnonzero(np.diff(unknown) > 1) + 1) if len(unknown) else []
    events: Events = []
    order: list[int] = []
    for run in runs:
        text = block.text[max(0, block.start[run[0]] - 1) : block.stop[run[-1]] + 1]  # with the braces
        try:
            decoded = state.decoder.decode(b"[%b]" % text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        events += decoded
        order += [run[0]] * len(decoded)
    if any(event.cat == COUNTED.decode() for event in events):
        return None
    return events, np.array(order, np.int64)
