"""Events that differ in their digits alone, read a block at a time without decoding each.

A block of text is cut where the recorder's seam between events stands. A piece whose masked text was met before (see
`templates`) is an event that was decoded before, but for its numbers, and numpy reads these from where they stand: a
field of all events at once. The pieces that nothing is known of go through the decoder.

The result is that of decoding them all. Masked texts are compared as a whole, and so are the digits of names and
shapes. The only thing left that digits can do wrong in JSON is to begin a number with a zero; such a piece is decoded.
Where the decoder refuses one, the seam was none or the text is broken, and the block is not taken. Otherwise each piece
is an event by itself, and pieces that are events by themselves are no parts of something else.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.traces.reading.digits import parts, values
from analyzers.traces.reading.event_kinds import CONSTANT, FIELDS, LENGTH, Block, Kinds
from analyzers.traces.reading.event_table import DEVICE_AT_MOST, MICROSECONDS_AT_MOST, EventRows, EventTable
from analyzers.traces.reading.lexicon import UNMET
from analyzers.traces.reading.stream import COUNTED, EXACT, Events, Reading
from analyzers.traces.reading.templates import ALLOCATING, DECIMALS, LASTING, PLACES

SEAM = re.compile(rb"\},\s{0,64}\{")
BEGINNING = 64 << 10
"""Of the events, where their seam is looked for."""
VAIN_AT_MOST = 4
"""Blocks in a row of which little was known, before no more is tried."""
LATE = 1 << 43
"""Microseconds, from which on a float64 does not hold each nanosecond."""
PARTS = [FIELDS[LASTING], FIELDS[ALLOCATING]]
RARE_FIELDS = {
    "collective": ("collective", "group", "elements", "elements_out", "dtype", "members", "sequence", "splits"),
    "shape": ("shape",),
    "autograd": ("autograd", "forward_thread"),
    "copy": ("bytes",),
    "graph": ("graph",),
    "unfinished": ("unfinished",),
    "occupancy": ("occupancy",),
}
"""The columns of `table.RARE`; an event has a row where the first of them is not negative."""


def block_of(text: bytes, seam: bytes) -> Block:
    """The events of a text before its last seam; the first one is with its brace, and so will not be known."""
    last = np.flatnonzero(np.frombuffer(text, np.uint8) == seam[-1])
    start = last[last >= len(seam)] + 1
    start = start[parts(text, start - len(seam), len(seam)) == np.void(seam)]
    stop = start - len(seam)
    return Block(text, np.append(0, start)[: len(stop)], stop)


@dataclass(frozen=True)
class Alike:
    """Events by their kinds, from `start` in the text; `order` are the numbers of their pieces."""

    layout: Column
    text: bytes
    start: Column
    kind: Column
    order: Column
    read: dict[str, Column] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Column:
        """A field of all events."""
        if name not in self.read:
            self.read[name] = self.values(name)
        return self.read[name]

    def values(self, name: str) -> Column:
        """The constant of the kind, or what the digits say."""
        constant, end, length, sign = self.layout[FIELDS[name]]
        found: Column = constant[self.kind]
        if length.any():
            length = length[self.kind]
            rows = slice(None) if length.all() else np.flatnonzero(length)
            kind = self.kind[rows]
            found[rows] = sign[kind] * values(self.text, self.start[rows] + end[kind], length[rows])
        return found

    def chosen(self, rows: Column) -> "Alike":
        read = {name: column[rows] for name, column in self.read.items()}
        return Alike(self.layout, self.text, self.start[rows], self.kind[rows], self.order[rows], read)

    def playing(self, part: str) -> "Alike":
        rows = np.flatnonzero(self[part])
        return self if len(rows) == len(self.kind) else self.chosen(rows)

    def plain(self, latest: float) -> Column:
        """Which events have times below `latest` microseconds, and places that need not be taken for texts."""
        found: Column = np.maximum(self["ts"], self["dur"]) < latest
        for name in PLACES:
            found &= (self[name] >= -1) | (self.layout[FIELDS[name], LENGTH][self.kind] == 0)
        return found

    def rows(self) -> EventRows:
        """What the events give to the table."""
        lasting, allocating = self.playing(LASTING), self.playing(ALLOCATING)
        return EventRows(lasting.order, lasting.columns(), lasting.rare_columns(), allocating.allocations())

    def columns(self) -> dict[str, Column]:
        start = self.nanoseconds("ts")
        columns = {name: self[name] for name in ("name", "cat", *PLACES)}
        columns |= {"start": start, "end": start + self.nanoseconds("dur")}
        columns["correlation"] = np.maximum(self["correlation"], -1)
        return columns | {"device": self.device("device")}

    def rare_columns(self) -> dict[str, Column]:
        rare = {table: self.rare(*names) for table, names in RARE_FIELDS.items()}
        return {table: rows for table, rows in rare.items() if len(rows)}

    def allocations(self) -> Column:
        """The rows of `table.ALLOCATIONS`, each behind the number of its piece."""
        totals = [np.maximum(self[name], -1) for name in ("allocated", "reserved")]
        told = (self["pid"], self["tid"], self["address"], self["allocation"], *totals)
        device = self.device("device_type"), self.device("device_id")
        found: Column = np.column_stack([self.order, self.nanoseconds("ts"), *told, *device])
        return found

    def device(self, name: str) -> Column:
        return np.where(self[name] < DEVICE_AT_MOST, np.maximum(self[name], -1), -1)

    def nanoseconds(self, name: str) -> Column:
        decimals = DECIMALS[name]
        scale = 10 ** (3 - self.layout[FIELDS[decimals], LENGTH])
        found: Column = self[name] * 1000 + self[decimals] * scale[self.kind]
        return found

    def rare(self, first: str, *others: str) -> Column:
        """A table of the arguments that few events carry: the number of the event, then these fields."""
        carried = self[first]
        rows = np.flatnonzero(carried >= (1 if first == "graph" else 0))  # no graph has the number 0
        carriers = self.chosen(rows)
        columns = [np.maximum(column, -1) for column in (carried[rows], *(carriers[field] for field in others))]
        table: Column = np.column_stack([rows, *columns][: 1 if first == "unfinished" else None])
        return table


class Shortcut:
    """Takes the blocks of which enough is known."""

    def __init__(self, table: EventTable) -> None:
        self.table = table
        self.kinds = Kinds(table)
        self.seam = b""
        self.in_vain = 0

    def take(self, buffer: bytes, reading: Reading) -> int | None:
        """Pass on the events that the buffer begins with; how far they went, or None where they must be decoded."""
        if not self.seam:  # learning would not pay for a file of one block
            self.seam = usual_seam(buffer)
            return None
        if self.in_vain > VAIN_AT_MOST or not buffer.startswith(b"{"):
            return None
        block = block_of(buffer, self.seam)
        rows = self.rows(block, reading)
        self.in_vain = 0 if rows else self.in_vain + 1
        if rows is None:
            return None
        self.table.join(*rows)
        return int(block.stop[-1]) + 1

    def rows(self, block: Block, reading: Reading) -> tuple[EventRows, EventRows] | None:
        """The rows of the events that are known, and those of the others; None where these cannot be decoded apart."""
        kinds = self.kinds.of(block)
        kinds[self.kinds.with_superfluous_zeros(block, kinds)] = UNMET
        known = kinds >= 0
        known[known] = self.kinds.layout[PARTS, CONSTANT][:, kinds[known]].any(axis=0)
        order = np.flatnonzero(known)
        alike = Alike(self.kinds.layout, block.text, block.start[order], kinds[order], order)
        plain = alike.plain(MICROSECONDS_AT_MOST if reading.decoder is EXACT else LATE)
        if not plain.all():
            kinds[order[~plain]] = UNMET
            alike = alike.chosen(np.flatnonzero(plain))
        others = decoded_pieces(block, np.flatnonzero(kinds < 0), reading)
        return None if others is None else (alike.rows(), self.table.decoded(*others))


def usual_seam(text: bytes) -> bytes:
    """What stands between most events."""
    seams = Counter(SEAM.findall(text, 0, BEGINNING))
    return max(seams, key=seams.__getitem__, default=b"")


def decoded_pieces(block: Block, pieces: Column, reading: Reading) -> tuple[Events, Column] | None:
    """The events of the pieces and for each the number of its piece, or of one before; None where one is no event."""
    if 2 * len(pieces) >= len(block.start):
        return None
    runs = np.split(pieces, np.flatnonzero(np.diff(pieces) > 1) + 1) if len(pieces) else []
    found: Events = []
    order: list[int] = []
    for run in runs:
        text = block.text[max(0, block.start[run[0]] - 1) : block.stop[run[-1]] + 1]  # with the braces
        try:
            events = reading.decoder.decode(b"[%b]" % text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        found += events
        order += [run[0]] * len(events)
    if any(event.cat == COUNTED.decode() for event in found):
        return None
    return found, np.array(order, np.int64)
