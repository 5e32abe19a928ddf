"""Recognise the kind of each event in a block of text, and where the numbers of each kind are.

A *template* is the text of an event with its digits masked (see `templates`). A *kind* is a template together with the
digits inside the event's name and other texts: `gemm_64` and `gemm_32` are two kinds of one template. All events of one
kind differ only in their numbers. An event is recognised in three steps, each for thousands of events at once:

1. by the length of its text, as each template has one length;
2. by its masked text, looked up in the `RowDictionary` of that length: this gives the template;
3. by the digits inside its texts, looked up in the `RowDictionary` of that template: this gives the kind.

If a template or a kind is not known yet and occurs often enough in the block, it is learned from one of its events.

For the event `"ph": "X", "name": "gemm_64", "pid": 0, "ts": 1023.125, "dur": 42.5` step 2 looks up the text `"ph": "X",
"name": "gemm_99", "pid": 9, "ts": 9999.999, "dur": 99.9` (each digit masked), step 3 the digits `64`. The resulting
kind has, in `EventKinds.layout`,

    field           CONSTANT                         END  LENGTH  SIGN
    name            the index of the text "gemm_64"    0       0     0
    pid             0                                 38       1     1
    ts              0                                 50       4     1
    ts decimals     0                                 54       3     1
    correlation     -1 (the event has none)            0       0     0

LENGTH is the number of digits and END the index of the byte after the last digit, counted from the event's first byte.
So if an event of this kind begins at byte b, its whole microseconds are the four digits before byte b + 50. A field
with LENGTH 0 has no digits: its value is CONSTANT in every event of the kind.
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

_CONSTANT_FIELDS = ("name", "cat", "shape", "collective", "group", "dtype", "splits", "unfinished", "occupancy")
"""The fields that have one value for all events of a kind: mostly the index of a text, see `EventKinds.constants`."""
FIELDS = {
    field: i
    for i, field in enumerate(
        (TO_EVENTS, TO_ALLOCATIONS, *_CONSTANT_FIELDS, *NUMBER_FIELDS, *DECIMALS_OF, *DECIMALS_OF.values())
    )
}
CONSTANT, END, LENGTH, _SIGN = range(4)
# What a kind takes beside its text, and what all may take: the texts of a hostile file may be long, and all different.
_KIND_BYTES, _BYTES_AT_MOST = 2000, 32 << 20


@dataclass(frozen=True)
class Block:
    """A text of many JSON events: the text inside the braces of event i is `text[start[i] : stop[i]]`."""

    text: bytes
    start: Integers
    stop: Integers

    def event_text(self, event: int) -> bytes:
        """Return the text inside the braces of one event."""
        return self.text[self.start[event] : self.stop[event]]

    def select(self, events: Integers) -> "Block":
        """Return a block of only the events with these indices; the text is shared, not copied."""
        return Block(self.text, self.start[events], self.stop[events])


class TemplateKinds:
    """A template (the text of an event with its digits masked), and its known kinds of event.

    All texts of these events are `length` bytes long. `kinds` is a dictionary from the digits in an event's name and
    other texts to the number of its kind. These digits are found by position: `columns` has the indices of the words of
    an event's text that contain such digits, and `mask`, applied to these words by `&`, clears all their other bytes.
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
    """All known templates (texts of events with their digits masked) of one length in bytes.

    `by_masked_text` is a dictionary. Its keys are texts of events with their digits masked, each as a row of words; its
    values are indices of templates in `templates`.
    """

    def __init__(self, length: int) -> None:
        self.by_masked_text = RowDictionary(words_needed(length))
        self.templates: list[TemplateKinds] = []


class EventKinds:
    """The kinds of events of one file, learned from texts that occur often.

    Events of one kind have texts that differ only in the digits of numbers. Kinds are numbered from 0 in the order in
    which they are learned. `layout[field, :, kind]` says where the number of a field stands in an event's text, as
    (CONSTANT, END, LENGTH, SIGN); see the example of the module. `leading` has the positions in the event's text at
    which a number of several digits begins, for all kinds one after the other; `leading_counts[kind]` is the number of
    positions of a kind.
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
        """Return the number of the kind of each event of a block, and learn kinds that are new and frequent.

        A kind is the set of events whose texts differ only in numbers, not in digits of names. A negative number means
        that the event must be decoded as JSON: `UNKNOWN` for a kind that is not known, `UNUSABLE` for a kind that
        cannot be read without decoding.
        """
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
        """Return the number of the kind of each event of a block; all texts of these events are `length` bytes long.

        A negative number means that the event must be decoded, as in `recognise`.
        """
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
        """Return the number of the kind of each event of a block; all events have the template `known`.

        `text_digits` has a row per event: the digits in its name and other texts, by which the kind is looked up. A
        negative number means that the event must be decoded, as in `recognise`.
        """
        return known.kinds.look_up(text_digits, lambda event: self.learn_kind(known.template, block.event_text(event)))

    def update_arrays(self) -> None:
        """Rebuild `layout`, `leading` and `leading_counts` after new kinds were learned."""
        self.layout = np.stack(self.layouts, axis=-1)
        self.leading = np.array([byte for positions in self.leading_of for byte in positions], np.int64)
        self.leading_counts = np.array([len(positions) for positions in self.leading_of], np.int64)

    def with_leading_zeros(self, block: Block, kinds: Integers) -> Integers:
        """Return the indices of the events in which a number of several digits begins with a zero: invalid JSON.

        Such events are passed to the JSON decoder, which refuses them. The index of an event occurs once for each such
        number. Example: the numbers of kind 3 begin at bytes 46 and 63 of an event's text. If an event of kind 3 begins
        at byte 1000 of the block, its index is in the result once for a `0` at byte 1046, and once for a `0` at byte
        1063.
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
        """Learn a template (the text of an event with its digits masked), and return its index in `known.templates`.

        `text` is the text of one such event. The result is `UNUSABLE` if events with this template must be decoded one
        by one. The result is None, and nothing is learned, if the known templates and kinds already take
        `_BYTES_AT_MOST`.
        """
        if self.bytes_used >= _BYTES_AT_MOST:
            return None
        self.bytes_used += 2 * len(text) + _KIND_BYTES
        template = template_of(text)
        if template is None:
            return UNUSABLE
        known.templates.append(TemplateKinds(template, len(text)))
        return len(known.templates) - 1

    def learn_kind(self, template: Template, text: bytes) -> int | None:
        """Learn a kind of event from the text of one event with this template, and return the number of the kind.

        All events of a kind have the same text apart from numbers. The result is `UNUSABLE` if these events must be
        decoded one by one. The result is None, and nothing is learned, if the known templates and kinds already take
        `_BYTES_AT_MOST`.
        """
        if self.bytes_used >= _BYTES_AT_MOST:
            return None
        self.bytes_used += len(text) + _KIND_BYTES
        try:
            event = EXACT_EVENT.decode(b"{%b}" % text)
        except msgspec.DecodeError:
            return UNUSABLE
        self.layouts.append(self.layout_of(event, template))
        self.leading_of.append(template.leading)
        return len(self.layouts) - 1

    def layout_of(self, event: ExactEvent, template: Template) -> Integers:
        """Return the layout of a kind, int64[field, (CONSTANT, END, LENGTH, SIGN)], from one decoded event of it.

        All values are 0 if events of this template are not stored in the event table.
        """
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
        """Return, for each of `_CONSTANT_FIELDS`, the value that all events of this event's kind have.

        The value is the index of a text in the event table, for example of a shape text for `shape`, or of an occupancy
        text for `occupancy`; `UNKNOWN` if the event has no such text. For `unfinished` the value is 0 if the event did
        not end during the recording.
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
