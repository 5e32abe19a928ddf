"""Learn from one event where the numbers are in all events of the same layout.

A recorder prints each kind of event with one format string, so a million events have only a few hundred different texts
once their digits are masked (each digit replaced by the same byte). Such a masked text, with the positions of its
numbers, is a *template*.

The JSON decoder shows which digits belong to which field. Each run of digits is replaced by a unique number, its
*mark*, and the text is decoded. The field in which the decoder returns a mark is the field of the run. So this works
for the layout of any recorder.

Example. The inside of the braces of an event, and the same text with marks (run 0 becomes 10000, run 1 10001, ...):

    "ph": "X", "name": "gemm_64",    "pid": 0,     "ts": 1023.125,    "dur": 42.5
    "ph": "X", "name": "gemm_10000", "pid": 10001, "ts": 10002.10003, "dur": 10004.10005

The decoder returns `pid=10001`, `ts=Decimal("10002.10003")` and `dur=Decimal("10004.10005")`, so `pid` is run 1, the
whole microseconds of `ts` are run 2 and their decimals run 3, and so on. `name="gemm_10000"` shows that run 0 is part
of a text. `template_of` therefore returns

    Template(
        target="events",
        numbers={
            "pid": NumberField(end=38, length=1, sign=1),           # "0"
            "ts": NumberField(end=50, length=4, sign=1),            # "1023"
            "ts decimals": NumberField(end=54, length=3, sign=1),   # "125"
            "dur": NumberField(end=65, length=2, sign=1),           # "42"
            "dur decimals": NumberField(end=67, length=1, sign=1),  # "5"
        },
        text_runs=[(25, 27)],                                       # "64"
        leading=[46, 63],                                           # the "1" of 1023, the "4" of 42
    )

which is valid for each later event whose text differs from this text only in digits. A number with more or fewer digits
makes a text of another length, and so another template.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from analyzers.traces.reading.stream import ALLOCATION, COUNTED, INSTANT, Args, ExactEvent

TO_EVENTS, TO_ALLOCATIONS = "events", "allocations"
"""The table to which an event belongs: events with a duration, or allocations and frees."""
ID_FIELDS = ("pid", "tid", "stream")
"""The fields that hold either a number or a text."""
NUMBER_FIELDS = (
    *ID_FIELDS,
    "correlation",
    "device",
    "elements",
    "elements_out",
    "members",
    "sequence",
    "source",
    "destination",
    "bytes",
    "graph",
    "autograd",
    "forward_thread",
    "address",
    "allocation",
    "allocated",
    "reserved",
    "device_type",
    "device_id",
)
"""The fields of an event, or of its arguments, that hold whole numbers."""
DECIMALS_OF = {"ts": "ts decimals", "dur": "dur decimals"}
"""{time field: the field that holds its decimals}; a time is read as two integers, before and after the point."""
_TIME_FIELDS = {TO_EVENTS: ("ts", "dur"), TO_ALLOCATIONS: ("ts",)}
"""{table: the fields of its events that are times}; the duration that some exporters give allocations is ignored."""
_TEXT_FIELDS = (
    "collective", "group", "dtype", "dims", "types", "concrete", "occupancy", "limits", "warps", "blocks", "splits",
)  # fmt: skip
"""The arguments that are kept as texts: other digits in them make another text, and so another kind of event."""

# All marks have five digits, so no mark is the beginning of another, and a number below 10000 that the decoder returns
# is the default of a field that the event lacks.
_FIRST_MARK = 10_000
_RUNS_AT_MOST = 10_000
DECIMALS_AT_MOST = 3
"""The most digits after the point of a time in µs that are read without decoding: those of nanoseconds."""
_TEXT_BYTES_AT_MOST = 1 << 16
_DIGIT_RUN = re.compile(rb"\d+")
_LEADING_DIGIT = re.compile(rb"(?<![\d.])\d(?=\d)")
STRING = re.compile(rb'"[^"]*"')
_EXPONENT = re.compile(rb"\d[eE]")
# Numbers are parsed from two words of eight digits each.
_TOO_LONG = re.compile(rb"\d{17}")
EXACT_EVENT = msgspec.json.Decoder(ExactEvent, strict=False)
NO_ARGS = Args()
Runs = list[tuple[int, int]]
"""The runs of digits in a text, each as (index of its first byte, index of the byte after its last)."""


@dataclass(frozen=True)
class NumberField:
    """Where the digits of one number are in an event's text.

    `end` is the index of the byte after the last digit, counted from the event's first byte. `length` is the number
    of digits; `sign` is -1 for a negative number, else 1.
    """

    end: int
    length: int
    sign: int


@dataclass(frozen=True)
class Template:
    """The common structure of all events whose texts differ only in digits.

    An event with this structure is read by taking its digits from known positions, without decoding JSON. `target` is
    the table in which such events become rows, empty if they are left out, and `numbers` says where the digits of
    each field are. `text_runs` are the runs of digits inside names and other texts. `leading` has the positions of
    the first digits of numbers with several digits: if an event has a zero there, it is invalid JSON and goes to the
    decoder.
    """

    target: str
    numbers: dict[str, NumberField]
    text_runs: Runs
    leading: list[int]


def template_of(text: bytes) -> Template | None:
    """Return the template of an event, given the text inside its braces.

    The result is None if such events must be decoded one by one: the text is no JSON object or is too long, the event
    holds values that are no columns (metadata, counters), or other digits could change its structure.
    """
    runs = [match.span() for match in _DIGIT_RUN.finditer(text)]
    if len(text) > _TEXT_BYTES_AT_MOST or len(runs) > _RUNS_AT_MOST or _digits_could_break(text):
        return None
    try:
        event = EXACT_EVENT.decode(b"{%b}" % with_marks(text))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    # Metadata and counters keep all their arguments, and ROCm's `size` may be a number in a text: none fits a column.
    if event.ph == "M" or event.cat == COUNTED.decode() or (event.args or NO_ARGS).size:
        return None
    target = _target_of(event)
    numbers = (_whole_numbers(event, runs) | times(event, runs, _TIME_FIELDS[target])) if target else {}
    if any(_is_unusual(field, number, text) for field, number in numbers.items()):
        return None
    text_runs = [runs[run] for run in _runs_in_texts(event)] if target else []
    leading = [match.start() for match in _LEADING_DIGIT.finditer(text) if not _is_quoted(text, match.start())]
    return Template(target, numbers, text_runs, leading)


def _target_of(event: ExactEvent) -> str:
    """Return the table in which an event becomes a row: `TO_EVENTS`, `TO_ALLOCATIONS`, or empty if it is left out."""
    if event.cat == INSTANT:
        return TO_ALLOCATIONS if event.name == ALLOCATION and event.args else ""
    return TO_EVENTS if event.ph == "X" else ""


def _digits_could_break(text: bytes) -> bool:
    r"""Return whether other digits could make the text invalid JSON in any way but by a leading zero.

    This is possible after a backslash (`\u0041`), in an exponent (`1e999`), and in a number of more than 16 digits.
    """
    bare = STRING.sub(b"", text)
    return b"\\" in text or bool(_EXPONENT.search(bare) or _TOO_LONG.search(bare))


def with_marks(text: bytes) -> bytes:
    """Return the text with each run of digits replaced by a unique mark: run 0 by 10000, run 1 by 10001, and so on."""
    marks = iter(range(_FIRST_MARK, _FIRST_MARK + _RUNS_AT_MOST))
    return _DIGIT_RUN.sub(lambda _: b"%d" % next(marks), text)


def _whole_numbers(event: ExactEvent, runs: Runs) -> dict[str, NumberField]:
    """Return, for each integer field of an event, the position of its digits in the event's text.

    `event` was decoded from the text with a mark in place of each run of digits; `runs` has the positions of these runs
    in the original text. Fields that the event does not have are left out.
    """
    fields = {field: _number_field(value_of(event, field), runs) for field in NUMBER_FIELDS}
    return {field: digits for field, digits in fields.items() if digits}


def times(event: ExactEvent, runs: Runs, fields: Iterable[str]) -> dict[str, NumberField]:
    """Return, for each of the time fields `fields` and for its decimals, where the digits are in the event's text.

    `event` was decoded from the text with a mark in place of each run of digits; `runs` has the positions of these
    runs in the original text. Fields that the event does not have are left out.
    """
    digits: dict[str, NumberField | None] = {}
    for field in fields:
        marks = str(value_of(event, field) or 0).split(".")
        # A time without a point has one mark, hence strict=False.
        names = (field, DECIMALS_OF[field])
        digits |= {name: _number_field(int(mark), runs) for name, mark in zip(names, marks, strict=False)}
    return {name: where for name, where in digits.items() if where}


def value_of(event: ExactEvent, field: str) -> object:
    """Return the value of a field, which is an attribute of the event or one of its arguments."""
    return getattr(event if hasattr(event, field) else event.args or NO_ARGS, field)


def _number_field(value: object, runs: Runs) -> NumberField | None:
    """Return the position of a number's digits in an event's text; None if the event does not have this number.

    `value` was decoded from a text in which each run of digits was replaced by a unique number, its mark. So `value`
    shows which of `runs` the number is. Any other value is the default of a field that the event does not have.
    """
    if not isinstance(value, int) or abs(value) < _FIRST_MARK:
        return None
    start, end = runs[abs(value) - _FIRST_MARK]
    return NumberField(end, end - start, 1 if value > 0 else -1)


def _is_unusual(field: str, number: NumberField, text: bytes) -> bool:
    """Return whether a number must be read by the decoder: it is quoted, or a time that is negative or finer than 1 ns.

    `number` is the position of the digits of `field` in `text`, the text of the event.
    """
    too_fine = field in DECIMALS_OF.values() and number.length > DECIMALS_AT_MOST
    return _is_quoted(text, number.end) or too_fine or (field in DECIMALS_OF and number.sign < 0)


def _is_quoted(text: bytes, at: int) -> bool:
    """Return whether the byte at index `at` is inside a JSON string; the text must have no backslash."""
    return text.count(b'"', 0, at) % 2 == 1


def _runs_in_texts(event: ExactEvent) -> list[int]:
    """Return the indices of the runs of digits that are inside an event's texts, such as its name.

    `event` was decoded from the text with a mark in place of each run of digits.
    """
    values = [event.name, event.cat, *(value_of(event, field) for field in _TEXT_FIELDS)]
    values += [value for field in ID_FIELDS if isinstance(value := value_of(event, field), str)]
    texts = [bytes(value) if isinstance(value, msgspec.Raw) else str(value).encode() for value in values]
    return sorted({int(mark) - _FIRST_MARK for text in texts for mark in _DIGIT_RUN.findall(text)})
