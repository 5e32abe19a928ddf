"""The kinds of events that were met, and where the digits of each have their meaning."""

from dataclasses import dataclass

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.traces.reading.digits import MARGIN, WORD, ZERO, Words, masked, width_of, words_before
from analyzers.traces.reading.distinct import rows_by_value
from analyzers.traces.reading.event_table import NO_ARGS, EventTable, bounded, raw_text
from analyzers.traces.reading.lexicon import REFUSED, UNMET, WORTH_LEARNING, Lexicon
from analyzers.traces.reading.stream import ExactEvent
from analyzers.traces.reading.templates import (
    ALLOCATING,
    DECIMALS,
    LASTING,
    NUMBERS,
    ONE,
    PLACES,
    Template,
    field_of,
    understood,
)

TEXTS = ("name", "cat", "shape", "collective", "group", "dtype", "splits", "unfinished", "occupancy")
FIELDS = {field: i for i, field in enumerate((LASTING, ALLOCATING, *TEXTS, *NUMBERS, *DECIMALS, *DECIMALS.values()))}
CONSTANT, END, LENGTH, SIGN = range(4)
KIND_BYTES, BYTES_AT_MOST = 2000, 32 << 20
"""What a kind takes beside its text, and what all may take: those of a hostile file may be long, and many."""


@dataclass(frozen=True)
class Block:
    """A text of events; the inside of the braces of each is `text[start[i] : stop[i]]`."""

    text: bytes
    start: Column
    stop: Column

    def piece(self, number: int) -> bytes:
        return self.text[self.start[number] : self.stop[number]]

    def chosen(self, rows: Column) -> "Block":
        return Block(self.text, self.start[rows], self.stop[rows])


class Form:
    """A template of texts of `length` bytes, and the kinds of its events.

    `kinds` tells them by the digits of names and other texts: what `mask` leaves of the words in `columns`.
    """

    def __init__(self, template: Template, length: int) -> None:
        told = bytearray(length)
        for start, end in template.told:
            told[start:end] = b"\xff" * (end - start)
        mask = np.frombuffer(told.rjust(width_of(length) * WORD, b"\0"), "<u8")
        self.template = template
        self.columns = np.flatnonzero(mask)
        self.mask = mask[self.columns]
        self.kinds = Lexicon(len(self.columns))


class SameLength:
    """What is known of events whose texts are of one length: `masked` tells by all but the digits which of `forms`."""

    def __init__(self, length: int) -> None:
        self.masked = Lexicon(width_of(length))
        self.forms: list[Form] = []


class Kinds:
    """Learns kinds of events from the texts that are met often.

    `layout[field, :, kind]` is the field's constant and where its digits end, how many they are and their sign; where
    there are any, the constant is zero. `leading` are the first digits of all kinds' numbers, so many of each as
    `counts` says.
    """

    def __init__(self, table: EventTable) -> None:
        self.table = table
        self.known: dict[int, SameLength] = {}
        self.bytes = 0
        self.rows: list[Column] = []
        self.leading_of: list[list[int]] = []
        self.layout = np.zeros((len(FIELDS), 4, 0), np.int64)
        self.leading = self.counts = np.zeros(0, np.int64)

    def of(self, block: Block) -> Column:
        """The kind of each event, a negative number where it is not known."""
        kinds = np.full(len(block.start), UNMET)
        readable = np.flatnonzero(block.start >= MARGIN)
        for length, places in rows_by_value((block.stop - block.start)[readable]):
            if length in self.known or len(places) >= WORTH_LEARNING:
                rows = readable[places]
                kinds[rows] = self.of_length(length, block.chosen(rows))
        if len(self.rows) > self.layout.shape[-1]:
            self.lay_out()
        return kinds

    def of_length(self, length: int, block: Block) -> Column:
        """The kinds of events whose texts are of one length."""
        if length not in self.known:
            self.known[length] = SameLength(length)
        known = self.known[length]
        words = words_before(block.text, block.stop, length)
        found = known.masked.meaning(masked(words), lambda i: self.form(known, block.piece(i)))
        kinds = np.minimum(found, UNMET)
        for number in np.flatnonzero(np.bincount(found[found >= 0])):
            form, places = known.forms[number], np.flatnonzero(found == number)
            told = words[places[:, None], form.columns] & form.mask
            kinds[places] = self.of_form(form, told, block.chosen(places))
        return kinds

    def of_form(self, form: Form, told: Words, block: Block) -> Column:
        """The kinds of events of one form, by the words that tell them."""
        return form.kinds.meaning(told, lambda i: self.kind(form.template, block.piece(i)))

    def lay_out(self) -> None:
        self.layout = np.stack(self.rows, axis=-1)
        self.leading = np.array([place for places in self.leading_of for place in places], np.int64)
        self.counts = np.array([len(places) for places in self.leading_of], np.int64)

    def with_superfluous_zeros(self, block: Block, kinds: Column) -> Column:
        """The events of which a number of several digits begins with a zero: they are no JSON."""
        known = np.flatnonzero(kinds >= 0)
        count = self.counts[kinds[known]]
        # Where each event's places are in `leading`, less where they are among those of all events.
        shift = (np.cumsum(self.counts) - self.counts)[kinds[known]] - (np.cumsum(count) - count)
        places = self.leading[np.arange(count.sum()) + np.repeat(shift, count)] + np.repeat(block.start[known], count)
        found = np.flatnonzero(np.frombuffer(block.text, np.uint8)[places] == ZERO)
        return known[np.searchsorted(np.cumsum(count), found, side="right")]

    def form(self, known: SameLength, text: bytes) -> int | None:
        """The number of a new form, of which this is an event; None where too much is known already."""
        if self.bytes >= BYTES_AT_MOST:
            return None
        self.bytes += 2 * len(text) + KIND_BYTES
        template = understood(text)
        if template is None:
            return REFUSED
        known.forms.append(Form(template, len(text)))
        return len(known.forms) - 1

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
        if not template.part:
            return row
        row[FIELDS[template.part], CONSTANT] = 1
        for field in NUMBERS:
            value = field_of(event, field)
            row[FIELDS[field], CONSTANT] = self.table.place(value) if field in PLACES else bounded(value)
        if template.part == LASTING:
            for field, constant in self.constants(event).items():
                row[FIELDS[field], CONSTANT] = constant
        for field, number in template.numbers.items():
            row[FIELDS[field]] = 0, number.end, number.length, number.sign
        return row

    def constants(self, event: ExactEvent) -> dict[str, int]:
        """What has no digits of its own; UNMET where the event has none."""
        args, text = event.args or NO_ARGS, self.table.text
        known = {"name": text(event.name), "cat": text(event.cat)}
        known |= {"shape": self.table.shape(args) if args.dims else UNMET, "unfinished": UNMET if args.finished else 0}
        known["occupancy"] = self.table.occupancy(args) if args.occupancy or args.limits else UNMET
        names = (args.collective, str(args.group), args.dtype, raw_text(args.splits))
        told = [text(name) for name in names] if args.collective else [UNMET] * 4
        return known | dict(zip(("collective", "group", "dtype", "splits"), told, strict=True))
