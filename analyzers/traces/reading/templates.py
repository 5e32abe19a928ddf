"""What the digits in the text of an event mean.

A recorder prints each kind of event by one format, so that the texts of a million events are a few hundred once each
digit is masked. Such a masked text is a template. Which digits belong to which field, the decoder itself tells: it is
given the template with each run of digits replaced by the run's own number, and where this number turns up, there the
field stands.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from analyzers.traces.reading.stream import ALLOCATION, COUNTED, INSTANT, Args, ExactEvent

LASTING, ALLOCATING = "lasting", "allocating"
"""The parts that events play: those that last are rows of the main table, those that allocate of another."""
PLACES = ("pid", "tid", "stream")
"""Fields that hold a number or a text."""
NUMBERS = (
    *PLACES,
    "correlation",
    "device",
    "elements",
    "elements_out",
    "members",
    "sequence",
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
"""The fields of whole numbers that events or their arguments have."""
DECIMALS = {"ts": "ts decimals", "dur": "dur decimals"}
"""A time is two numbers: whole microseconds, and what is behind the point."""
TIMES_OF = {LASTING: ("ts", "dur"), ALLOCATING: ("ts",)}
"""A streaming recorder gives allocations a duration that means nothing."""
TEXTS = (
    "collective", "group", "dtype", "dims", "types", "concrete", "occupancy", "limits", "warps", "blocks", "splits",
)  # fmt: skip

FIRST_MARK = 10_000
RUNS_AT_MOST = 10_000
"""Then all marks have five digits, and no text is a mark by chance: each digit of the marked text is one's."""
DECIMALS_AT_MOST = 3
TEXT_AT_MOST = 1 << 16
RUN = re.compile(rb"\d+")
LEADING = re.compile(rb"(?<![\d.])\d(?=\d)")
STRING = re.compile(rb'"[^"]*"')
EXPONENT = re.compile(rb"\d[eE]")
TOO_LONG = re.compile(rb"\d{17}")
"""For two words of eight digits."""
ONE = msgspec.json.Decoder(ExactEvent, strict=False)
NO_ARGS = Args()
Runs = list[tuple[int, int]]


@dataclass(frozen=True)
class Number:
    """The digits of a field: where they end behind the event's beginning, how many, and their sign."""

    end: int
    length: int
    sign: int


@dataclass(frozen=True)
class Template:
    """What the events of one masked text have in common; `part` is empty for those that no column takes.

    `told` are the runs (start, end) of digits of names and other texts, `leading` the first digits of numbers that
    have several, where a zero would be wrong.
    """

    part: str
    numbers: dict[str, Number]
    told: Runs
    leading: list[int]


def understood(text: bytes) -> Template | None:
    """The template of an event, whose text is given without the braces around it; None where there is none."""
    runs = [match.span() for match in RUN.finditer(text)]
    if len(text) > TEXT_AT_MOST or len(runs) > RUNS_AT_MOST or may_break(text):
        return None
    try:
        event = ONE.decode(b"{%b}" % marked(text))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if event.ph == "M" or event.cat == COUNTED.decode() or (event.args or NO_ARGS).size:
        return None
    part = part_of(event)
    numbers = (whole_numbers(event, runs) | times(event, runs, TIMES_OF[part])) if part else {}
    if any(is_odd(field, number, text) for field, number in numbers.items()):
        return None
    told = [runs[run] for run in told_runs(event)] if part else []
    leading = [match.start() for match in LEADING.finditer(text) if not is_quoted(text, match.start())]
    return Template(part, numbers, told, leading)


def part_of(event: ExactEvent) -> str:
    """What the event is to the table."""
    if event.cat == INSTANT:
        return ALLOCATING if event.name == ALLOCATION and event.args else ""
    return LASTING if event.ph == "X" else ""


def may_break(text: bytes) -> bool:
    """Could other digits make it no JSON, but for a zero in front?

    They could behind a backslash, in an exponent, or in a number longer than any that a recorder writes.
    """
    bare = STRING.sub(b"", text)
    return b"\\" in text or bool(EXPONENT.search(bare) or TOO_LONG.search(bare))


def marked(text: bytes) -> bytes:
    """The text with the number of each run of digits in its place."""
    marks = iter(range(FIRST_MARK, FIRST_MARK + RUNS_AT_MOST))
    return RUN.sub(lambda _: b"%d" % next(marks), text)


def whole_numbers(event: ExactEvent, runs: Runs) -> dict[str, Number]:
    found = {field: number(field_of(event, field), runs) for field in NUMBERS}
    return {field: one for field, one in found.items() if one}


def times(event: ExactEvent, runs: Runs, fields: Iterable[str]) -> dict[str, Number]:
    found: dict[str, Number | None] = {}
    for field in fields:
        parts = str(field_of(event, field) or 0).split(".")
        found |= {name: number(int(part), runs) for name, part in zip((field, DECIMALS[field]), parts, strict=False)}
    return {field: one for field, one in found.items() if one}


def field_of(event: ExactEvent, field: str) -> Any:
    return getattr(event if hasattr(event, field) else event.args or NO_ARGS, field)


def number(value: object, runs: Runs) -> Number | None:
    """The digits that a mark stands for; what is no mark stands in no text, and is a default."""
    if not isinstance(value, int) or abs(value) < FIRST_MARK:
        return None
    start, end = runs[abs(value) - FIRST_MARK]
    return Number(end, end - start, 1 if value > 0 else -1)


def is_odd(field: str, number: Number, text: bytes) -> bool:
    """Is it a number in a string, or a time such as recorders do not write?"""
    too_fine = field in DECIMALS.values() and number.length > DECIMALS_AT_MOST
    return is_quoted(text, number.end) or too_fine or (field in DECIMALS and number.sign < 0)


def is_quoted(text: bytes, place: int) -> bool:
    return text.count(b'"', 0, place) % 2 == 1


def told_runs(event: ExactEvent) -> list[int]:
    """The runs of digits that are parts of texts."""
    values = [event.name, event.cat, *(field_of(event, field) for field in TEXTS)]
    values += [value for field in PLACES if isinstance(value := field_of(event, field), str)]
    texts = [bytes(value) if isinstance(value, msgspec.Raw) else str(value).encode() for value in values]
    return sorted({int(mark) - FIRST_MARK for text in texts for mark in RUN.findall(text)})
