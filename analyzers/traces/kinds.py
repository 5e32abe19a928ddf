"""The kinds of events that were met, and where the digits of each have their meaning."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import msgspec
import numpy as np

from analyzers.traces.stream import ExactEvent
from analyzers.traces.table import NO_ARGS, Column, Table, bounded, written
from analyzers.traces.templates import DECIMALS, NUMBERS, ONE, PLACES, Template, field_of, understood
from analyzers.traces.told import REFUSED, UNMET, WORTH_LEARNING, Told

CONSTANTS = ("lasting", "name", "cat", "shape", "collective", "group", "dtype", "splits", "unfinished", "filling")
FIELDS = {field: i for i, field in enumerate((*CONSTANTS, *NUMBERS, *DECIMALS, *DECIMALS.values()))}
CONSTANT, END, LENGTH, SIGN = range(4)
FIRST_TOLD = -3
"""`FIRST_TOLD - n` is template n, of which the digits of texts tell the kind."""
KIND_BYTES, BYTES_AT_MOST = 2000, 32 << 20
"""What a kind takes beside its text, and what all may take: those of a hostile file may be long, and many."""

ZERO = ord("0")


@dataclass(frozen=True)
class Block:
    """A text of events; the inside of the braces of each is `text[start[i] : stop[i]]`, and `masked[i]`."""

    text: bytes
    masked: Sequence[bytes]
    start: Column
    stop: Column

    def piece(self, number: int) -> bytes:
        return self.text[self.start[number] : self.stop[number]]


class Kinds:
    """Learns kinds of events from the texts that are met often.

    `known` tells what a masked text stands for; where digits of texts matter, `told` knows the kinds.

    `layout[field, :, kind]` is the field's constant and where its digits end, how many they are and their sign; where
    there are any, the constant is zero. `leading` are the first digits of all kinds' numbers, so many of each as
    `counts` says.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.known: dict[bytes, int] = {}
        self.told = Told()
        self.bytes = 0
        self.rows: list[Column] = []
        self.leading_of: list[list[int]] = []
        self.layout = np.zeros((len(FIELDS), 4, 0), np.int64)
        self.leading = self.counts = np.zeros(0, np.int64)

    def of(self, block: Block) -> Column:
        """The kind of each event, a negative number where it is not known."""
        kinds = self.look_up(block)
        told = np.flatnonzero(kinds <= FIRST_TOLD)
        template, start = FIRST_TOLD - kinds[told], block.start[told]
        kinds[told] = self.told.of(
            block.text, start, template, lambda i: self.kind(self.told.templates[template[i]], block.piece(told[i]))
        )
        if len(self.rows) > self.layout.shape[-1]:
            self.lay_out()
        return kinds

    def lay_out(self) -> None:
        self.layout = np.stack(self.rows, axis=-1)
        self.leading = np.array([place for places in self.leading_of for place in places], np.int64)
        self.counts = np.array([len(places) for places in self.leading_of], np.int64)

    def look_up(self, block: Block) -> Column:
        """What is known by the masked text of each event, after those that are met often were learnt."""
        masked = block.masked
        found = np.fromiter(map(self.known.get, masked, repeat(UNMET)), np.int64, len(masked))
        unmet = np.flatnonzero(found == UNMET).tolist()
        times = Counter([masked[i] for i in unmet])
        for i in unmet:
            if times[masked[i]] >= WORTH_LEARNING and masked[i] not in self.known:
                self.learn(masked[i], block.piece(i))
        found[unmet] = [self.known.get(masked[i], UNMET) for i in unmet]
        return found

    def with_superfluous_zeros(self, block: Block, kinds: Column) -> Column:
        """The events of which a number of several digits begins with a zero: they are no JSON."""
        known = np.flatnonzero(kinds >= 0)
        count = self.counts[kinds[known]]
        # Where each event's places are in `leading`, less where they are among those of all events.
        shift = (np.cumsum(self.counts) - self.counts)[kinds[known]] - (np.cumsum(count) - count)
        places = self.leading[np.arange(count.sum()) + np.repeat(shift, count)] + np.repeat(block.start[known], count)
        found = np.flatnonzero(np.frombuffer(block.text, np.uint8)[places] == ZERO)
        return known[np.searchsorted(np.cumsum(count), found, side="right")]

    def learn(self, masked: bytes, text: bytes) -> None:
        """What a masked text stands for, from the text of an event that has it."""
        if self.bytes >= BYTES_AT_MOST:
            return
        template = understood(text)
        number = self.told.add(template) if template and template.told else None
        if number is not None:
            self.bytes += len(text) + KIND_BYTES
            self.known[masked] = FIRST_TOLD - number
        elif template is None or template.told:
            self.bytes += len(text) + KIND_BYTES
            self.known[masked] = REFUSED
        elif (kind := self.kind(template, text)) is not None:
            self.known[masked] = kind

    def kind(self, template: Template, text: bytes) -> int | None:
        """The number of a new kind, of which this is an event; None where there are too many already."""
        if self.bytes >= BYTES_AT_MOST:
            return None
        self.bytes += len(text) + KIND_BYTES
        try:
            event = ONE.decode(b"{%b}" % text)
        except msgspec.DecodeError:
            return REFUSED
        self.rows.append(self.row(event, template))
        self.leading_of.append(template.leading)
        return len(self.rows) - 1

    def row(self, event: ExactEvent, template: Template) -> Column:
        """The layout of a kind, of which this is an event."""
        row = np.zeros((len(FIELDS), 4), np.int64)
        if not template.lasting:
            return row
        for field in NUMBERS:
            value = field_of(event, field)
            row[FIELDS[field], CONSTANT] = self.table.place(value) if field in PLACES else bounded(value)
        for field, constant in self.constants(event).items():
            row[FIELDS[field], CONSTANT] = constant
        for field, number in template.numbers.items():
            row[FIELDS[field]] = 0, number.end, number.length, number.sign
        return row

    def constants(self, event: ExactEvent) -> dict[str, int]:
        """What has no digits of its own; UNMET where the event has none."""
        args, text = event.args or NO_ARGS, self.table.text
        known: dict[str, Any] = {"lasting": True, "name": text(event.name), "cat": text(event.cat)}
        known |= {"shape": self.table.shape(args) if args.dims else UNMET, "unfinished": UNMET if args.finished else 0}
        known["filling"] = self.table.filling(args) if args.occupancy or args.limits else UNMET
        names = (args.collective, str(args.group), args.dtype, written(args.splits))
        told = [text(name) for name in names] if args.collective else [UNMET] * 4
        return known | dict(zip(("collective", "group", "dtype", "splits"), told, strict=True))
