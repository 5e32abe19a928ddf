"""TensorBoard's event files -> scalars. The format is a few fields of protobuf, so that no library is needed for it."""

import struct
from collections.abc import Iterator
from typing import Any

FRAME = struct.Struct("<QI")
"""Each event comes after its length and a checksum of that, and before a checksum of its own."""
CHECKSUM_BYTES = 4
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
STEP, SUMMARY, VALUE, TAG, SIMPLE_VALUE = 2, 5, 1, 1, 2
"""Numbers of the fields: two of `Event`, one of `Summary`, two of `Summary.Value`."""


def framed(read: bytes) -> Iterator[tuple[int, int]]:
    """(begin, end) of each whole event."""
    at = 0
    while at + FRAME.size <= len(read):
        begin = at + FRAME.size
        end = begin + FRAME.unpack_from(read, at)[0]
        at = end + CHECKSUM_BYTES
        if at > len(read):
            return
        yield begin, end


def events(read: bytes) -> int:
    """Bytes up to the end of the last whole event."""
    return max((end + CHECKSUM_BYTES for _, end in framed(read)), default=0)


def scalars(read: bytes) -> Iterator[tuple[int, str, float]]:
    """(step, tag, value) of each scalar in these whole events; what is no event is passed by."""
    for begin, end in framed(read):
        try:
            yield from of_event(dict(fields(read[begin:end])))
        except (ValueError, IndexError, struct.error, TypeError, AttributeError):
            continue


def of_event(event: dict[int, Any]) -> Iterator[tuple[int, str, float]]:
    for number, value in fields(event.get(SUMMARY, b"")):
        told = dict(fields(value)) if number == VALUE else {}
        if TAG in told and SIMPLE_VALUE in told:
            yield event.get(STEP, 0), told[TAG].decode(), struct.unpack("<f", told[SIMPLE_VALUE])[0]


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field: an int for a varint, else the bytes."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        value: Any
        if key & 7 == VARINT:
            value, at = varint(message, at)
        else:
            size, at = extent(message, at, key & 7)
            value, at = message[at : at + size], at + size
        yield key >> 3, value


def extent(message: bytes, at: int, wire: int) -> tuple[int, int]:
    """How many bytes a field has, and where they begin."""
    if wire == BYTES:
        return varint(message, at)
    if wire not in (FIXED64, FIXED32):
        raise ValueError(wire)
    return (8 if wire == FIXED64 else 4), at


def varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, seven bits a byte, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
