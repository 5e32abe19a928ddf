"""Recognise the kind of each event in a block of text, and where the numbers of each kind are.

A *kind* is a template (see `templates`) with given names and other texts: `gemm_64` and `gemm_32` are two kinds of one
template, and all events of one kind differ in numbers alone. An event is recognised in three steps, each for thousands
of events at once:

1. by the length of its text, as each template has one length;
2. by its masked text, looked up in the `RowDictionary` of that length: this gives the template;
3. by the digits inside its texts, looked up in the `RowDictionary` of that template: this gives the kind.

An event that is not found is used to learn a new template or kind, if it occurs often enough in the block.

For the event `"ph": "X", "name": "gemm_64", "pid": 0, "ts": 1023.125, "dur": 42.5` step 2 looks up the text `"ph":
"X", "name": "gemm_99", "pid": 9, "ts": 9999.999, "dur": 99.9` (each digit masked), step 3 the digits `64`. The
resulting kind has, in `EventKinds.layout`,

    field           CONSTANT                        END  LENGTH  SIGN
    name            the number of the text gemm_64    0       0     0
    pid             0                                38       1     1
    ts              0                                50       4     1
    ts decimals     0                                54       3     1
    correlation     -1 (the event has none)           0       0     0

so that the whole microseconds of an event of this kind which begins at byte b are the four digits before byte b + 50.
"""

from dataclasses import dataclass

import msgspec
import numpy as np

from analyzers.columns import Integers, Words
from analyzers.traces.reading.digits import MARGIN_BYTES, WORD_BYTES, ZERO, mask_digits, words_before, words_needed
from analyzers.traces.reading.distinct import rows_by_value
from analyzers.traces.reading.event_table import NO_ARGS, EventTable, bounded, raw_text
from analyzers.traces.reading.row_dictionary import LEARN_FROM, UNKNOWN, UNUSABLE, RowDictionary
from analyzers.traces.reading.stream import ExactEvent
from analyzers.traces.reading.templates import (
    DECIMALS_OF,
    EXACT_EVENT,
    ID_FIELDS,
    NUMBER_FIELDS,
    TO_ALLOCATIONS,
    TO_EVENTS,
    Template,
    template_of,
    value_of,
)

CONSTANT_FIELDS = ("name", "cat", "shape", "collective", "group", "dtype", "splits", "unfinished", "occupancy")
"""Fields that are the same in all events of one kind; their values are numbers of texts."""
FIELDS = {
    field: i
    for i, field in enumerate(
        (TO_EVENTS, TO_ALLOCATIONS, *CONSTANT_FIELDS, *NUMBER_FIELDS, *DECIMALS_OF, *DECIMALS_OF.values())
    )
}
CONSTANT, END, LENGTH, SIGN = range(4)
# What a kind takes beside its text, and what all may take: the texts of a hostile file may be long, and all different.
KIND_BYTES, BYTES_AT_MOST = 2000, 32 << 20


@dataclass(frozen=True)
class Block:
    """A text of many JSON events; the text inside the braces of event i is `text[start[i] : stop[i]]`."""

    text: bytes
    start: Integers
    stop: Integers

    def event_text(self, event: int) -> bytes:
        """Return the text inside the braces of one event."""
        return self.text[self.start[event] : self.stop[event]]

    def select(self, events: Integers) -> "Block":
        """Return a block of only the events with these indices; it refers to the same text, without a copy."""
        return Block(self.text, self.start[events], self.stop[events])


class TemplateKinds:
    """A template of event texts that are `length` bytes long, and the known kinds of event with this template.

    `kinds` finds the number of a kind by the digits inside an event's names and other texts. To get these digits, take
    the machine words number `columns` of the event's text, and clear all other bytes in them with `mask`.
    """

    def __init__(self, template: Template, length: int) -> None:
        text_digits = bytearray(length)
        for start, end in template.text_runs:
            text_digits[start:end] = b"\xff" * (end - start)
        mask = np.frombuffer(text_digits.rjust(words_needed(length) * WORD_BYTES, b"\0"), "<u8")
        self.template = template
        # Most words hold no digits of texts; leaving them out makes rows of a few words of texts of a hundred.
        self.columns = np.flatnonzero(mask)
        self.mask = mask[self.columns]
        self.kinds = RowDictionary(len(self.columns))


class TemplatesOfLength:
    """All templates of event texts of one length; `by_masked_text` finds the index of a template in `templates`."""

    def __init__(self, length: int) -> None:
        self.by_masked_text = RowDictionary(words_needed(length))
        self.templates: list[TemplateKinds] = []


class EventKinds:
    """The kinds of events of one file, learned from texts that occur often.

    Events of one kind have texts that differ only in the digits of numbers. A kind is stored as a number from 0.
    `layout[field, :, kind]` says where a field is in the text of an event: (CONSTANT, END, LENGTH, SIGN) as in the
    module's example. `leading` has the positions of the first digits of the numbers of all kinds, one kind after the
    other; kind `k` has `leading_counts[k]` of them.
    """

    def __init__(self, table: EventTable) -> None:
        self.table = table
        self.by_length: dict[int, TemplatesOfLength] = {}
        self.bytes_used = 0
        self.layouts: list[Integers] = []
        self.leading_of: list[list[int]] = []
        self.layout = np.zeros((len(FIELDS), 4, 0), np.int64)
        self.leading = self.leading_counts = np.zeros(0, np.int64)

    def recognise(self, block: Block) -> Integers:
        """Return the number of the kind of each event of a block; a negative number if the kind is not known."""
        kinds = np.full(len(block.start), UNKNOWN)
        readable = np.flatnonzero(block.start >= MARGIN_BYTES)
        for length, events in rows_by_value((block.stop - block.start)[readable]):
            if length in self.by_length or len(events) >= LEARN_FROM:
                rows = readable[events]
                kinds[rows] = self.recognise_length(length, block.select(rows))
        if len(self.layouts) > self.layout.shape[-1]:
            self.update_arrays()
        return kinds

    def recognise_length(self, length: int, block: Block) -> Integers:
        """Return the number of the kind of each event of a block whose texts are all `length` bytes long."""
        if length not in self.by_length:
            self.by_length[length] = TemplatesOfLength(length)
        known = self.by_length[length]
        words = words_before(block.text, block.stop, length)
        template = known.by_masked_text.look_up(
            mask_digits(words), lambda event: self.learn_template(known, block.event_text(event))
        )
        kinds = np.minimum(template, UNKNOWN)
        for number in np.flatnonzero(np.bincount(template[template >= 0])):
            of_template, events = known.templates[number], np.flatnonzero(template == number)
            text_digits = words[events[:, None], of_template.columns] & of_template.mask
            kinds[events] = self.recognise_kind(of_template, text_digits, block.select(events))
        return kinds

    def recognise_kind(self, known: TemplateKinds, text_digits: Words, block: Block) -> Integers:
        """Return the number of the kind of each event of a block whose events all have the template `known`.

        The kind is looked up by `text_digits`, the digits inside the events' texts.
        """
        return known.kinds.look_up(text_digits, lambda event: self.learn_kind(known.template, block.event_text(event)))

    def update_arrays(self) -> None:
        """Rebuild the arrays over all kinds after new ones were learned."""
        self.layout = np.stack(self.layouts, axis=-1)
        self.leading = np.array([byte for positions in self.leading_of for byte in positions], np.int64)
        self.leading_counts = np.array([len(positions) for positions in self.leading_of], np.int64)

    def with_leading_zeros(self, block: Block, kinds: Integers) -> Integers:
        """Return the indices of events in which a number of several digits begins with a zero, which is no valid JSON.

        An index may occur several times.
        """
        known = np.flatnonzero(kinds >= 0)
        count = self.leading_counts[kinds[known]]
        # All leading digits of all events are one flat list. `first` is where those of the event's kind begin in
        # `self.leading`, less where those of the event begin in the list: added, it turns one index into the other.
        first = (np.cumsum(self.leading_counts) - self.leading_counts)[kinds[known]] - (np.cumsum(count) - count)
        in_event = self.leading[np.arange(count.sum()) + np.repeat(first, count)]
        digits = np.frombuffer(block.text, np.uint8)[in_event + np.repeat(block.start[known], count)]
        return known[np.searchsorted(np.cumsum(count), np.flatnonzero(digits == ZERO), side="right")]

    def learn_template(self, known: TemplatesOfLength, text: bytes) -> int | None:
        """Return the index of a new template, learned from the text of one event.

        The result is `UNUSABLE` if its events have to be decoded one by one, and None if too many templates were
        learned already.
        """
        if self.bytes_used >= BYTES_AT_MOST:
            return None
        self.bytes_used += 2 * len(text) + KIND_BYTES
        template = template_of(text)
        if template is None:
            return UNUSABLE
        known.templates.append(TemplateKinds(template, len(text)))
        return len(known.templates) - 1

    def learn_kind(self, template: Template, text: bytes) -> int | None:
        """Return the index of a new kind of event, learned from the text of one event with this template.

        The result is `UNUSABLE` if its events have to be decoded one by one, and None if too many kinds were learned
        already.
        """
        if self.bytes_used >= BYTES_AT_MOST:
            return None
        self.bytes_used += len(text) + KIND_BYTES
        try:
            event = EXACT_EVENT.decode(b"{%b}" % text)
        except msgspec.DecodeError:
            return UNUSABLE
        self.layouts.append(self.layout_of(event, template))
        self.leading_of.append(template.leading)
        return len(self.layouts) - 1

    def layout_of(self, event: ExactEvent, template: Template) -> Integers:
        """Return the layout of a kind as int64[field, (CONSTANT, END, LENGTH, SIGN)], given one of its events."""
        layout = np.zeros((len(FIELDS), 4), np.int64)
        if not template.target:
            return layout
        layout[FIELDS[template.target], CONSTANT] = 1
        for field in NUMBER_FIELDS:
            value = value_of(event, field)
            layout[FIELDS[field], CONSTANT] = self.table.id_of(value) if field in ID_FIELDS else bounded(value)
        if template.target == TO_EVENTS:
            for field, constant in self.constants(event).items():
                layout[FIELDS[field], CONSTANT] = constant
        for field, number in template.numbers.items():
            layout[FIELDS[field]] = 0, number.end, number.length, number.sign
        return layout

    def constants(self, event: ExactEvent) -> dict[str, int]:
        """Return, for each of `CONSTANT_FIELDS` such as `name`, the index of the event's text in the event table.

        The index is `UNKNOWN` if the event has no such text.
        """
        args, text_id = event.args or NO_ARGS, self.table.text_id
        collective = (args.collective, str(args.group), args.dtype, raw_text(args.splits))
        ids = [text_id(text) for text in collective] if args.collective else [UNKNOWN] * len(collective)
        return {
            "name": text_id(event.name),
            "cat": text_id(event.cat),
            "shape": self.table.shape_id(args) if args.dims else UNKNOWN,
            "unfinished": UNKNOWN if args.finished else 0,
            "occupancy": self.table.occupancy_id(args) if args.occupancy or args.limits else UNKNOWN,
            **dict(zip(("collective", "group", "dtype", "splits"), ids, strict=True)),
        }
