"""TensorBoard event files -> scalars: a small reader of TFRecord framing and of the few protobuf fields that matter.

A record is: uint64 length, its CRC, the bytes, their CRC. All CRCs are checked. A wrong length ends the file, as
nothing tells where the next record begins; wrong content costs that record.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from analyzers.steps.reading.log_lines import Array

HEAD = struct.Struct("<QI")
FOOT = struct.Struct("<I")
SCALAR_BYTES = 1 << 14
"""Longer records hold images, graphs or histograms, and are passed by."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
WIDTHS = {FIXED64: 8, FIXED32: 4}
Field = tuple[int, int, int | bytes]
"""(number, wire type, value)."""


@dataclass(frozen=True)
class Scalar:
    """A number that was logged: `wall_s` is Unix time."""

    step: int
    tag: str
    value: float
    wall_s: float


@dataclass
class Events:
    """What a file holds. `torn`: its last record is cut; `damaged`: records whose check failed."""

    scalars: list[Scalar] = field(default_factory=list)
    torn: bool = False
    damaged: int = 0


def read(path: Path) -> Events:
    """All scalars of an event file."""
    events = Events()
    records = list(framed(path.read_bytes(), events))
    sums = crc32c([content for content, _ in records])
    for (content, expected), found in zip(records, sums, strict=True):
        if masked(int(found)) != expected:
            events.damaged += 1
            continue
        try:
            events.scalars += scalars(content)
        except (ValueError, IndexError, struct.error):
            events.damaged += 1
    return events


def framed(data: bytes, events: Events) -> Iterator[tuple[bytes, int]]:
    """(content, stored CRC) of each record that may hold a scalar."""
    at = 0
    while at < len(data):
        if at + HEAD.size > len(data):
            events.torn = True
            return
        length, check = HEAD.unpack_from(data, at)
        if masked(int(crc32c([data[at : at + 8]])[0])) != check:
            events.damaged += 1
            return
        begin, at = at + HEAD.size, at + HEAD.size + length + FOOT.size
        if at > len(data):
            events.torn = True
        elif length <= SCALAR_BYTES:
            yield data[begin : begin + length], FOOT.unpack_from(data, at - FOOT.size)[0]


def polynomial_table() -> Array:
    """CRC-32C of each byte (reflected Castagnoli polynomial)."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    return table


TABLE = polynomial_table()


def crc32c(messages: list[bytes]) -> Array:
    """The CRC-32C of each message; those of one length are done together, a byte of all at a time."""
    sums = np.zeros(len(messages), dtype=np.uint32)
    of_length: defaultdict[int, list[int]] = defaultdict(list)
    for number, message in enumerate(messages):
        of_length[len(message)].append(number)
    for length, numbers in of_length.items():
        block = np.frombuffer(b"".join(messages[n] for n in numbers), dtype=np.uint8).reshape(len(numbers), length)
        crc = np.full(len(numbers), 0xFFFFFFFF, dtype=np.uint32)
        for column in block.T:
            crc = TABLE[(crc ^ column) & 0xFF] ^ (crc >> 8)
        sums[numbers] = ~crc
    return sums


def masked(crc: int) -> int:
    """The form in which TFRecord stores a CRC."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def scalars(event: bytes) -> Iterator[Scalar]:
    """The scalars of an `Event` message: wall_time = 1, step = 2, summary = 5."""
    wall_s, step, summaries = 0.0, 0, []
    for number, kind, value in fields(event):
        if number == 1 and kind == FIXED64:
            wall_s = as_double(value)
        elif number == 2 and kind == VARINT:
            step = int(value) - (1 << 64 if int(value) >> 63 else 0)
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, _, value in fields(summary):
            if number == 1 and isinstance(value, bytes) and (found := tagged(value)):
                yield Scalar(step, found[0], found[1], wall_s)


def tagged(value: bytes) -> tuple[str, float] | None:
    """(tag, number) of a `Summary.Value`: tag = 1, simple_value = 2, tensor = 8."""
    tag, content = "", None
    for number, kind, part in fields(value):
        if number == 1 and isinstance(part, bytes):
            tag = part.decode("utf-8", "replace")
        elif number == 2 and kind == FIXED32:
            content = as_float(part)
        elif number == 8 and isinstance(part, bytes):
            content = tensor_scalar(part)
    return None if content is None else (tag, content)


def tensor_scalar(tensor: bytes) -> float | None:
    """The only element of a float or double `TensorProto`: tensor_content = 4, float_val = 5, double_val = 6."""
    for number, kind, part in fields(tensor):
        width = WIDTHS.get(kind) or (len(part) if isinstance(part, bytes) else 0)
        if number in (4, 5, 6) and width in (4, 8):
            return as_float(part) if width == 4 else as_double(part)
    return None


def as_float(value: int | bytes) -> float:
    raw = value if isinstance(value, bytes) else value.to_bytes(4, "little")
    return float(struct.unpack("<f", raw)[0])


def as_double(value: int | bytes) -> float:
    raw = value if isinstance(value, bytes) else value.to_bytes(8, "little")
    return float(struct.unpack("<d", raw)[0])


def fields(message: bytes) -> Iterator[Field]:
    """The fields of a protobuf message, not looking into those that are messages themselves.

    Raises:
        ValueError: It is none.
    """
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = varint(message, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, at = varint(message, at)
        elif kind in WIDTHS:
            length = WIDTHS[kind]
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > len(message):
            raise ValueError("a field ends outside of its message")
        part = message[at : at + length]
        yield number, kind, part if kind == BYTES else int.from_bytes(part, "little")
        at += length


def varint(message: bytes, at: int) -> tuple[int, int]:
    """(value, position behind it) of the variable-length integer at a position."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("an integer of more than ten bytes")
