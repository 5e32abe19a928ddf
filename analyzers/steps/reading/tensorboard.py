"""Read scalars from TensorBoard event files without TensorBoard or protobuf.

An event file is a sequence of TFRecord records: uint64 length, its CRC, the bytes, their CRC (CRC-32C, masked). All
CRCs are checked. If a length is wrong, the rest of the file is lost, because the start of the next record is unknown.
If only the content is wrong, only this record is lost.
"""

import math
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from analyzers.columns import Column
from analyzers.steps.columns import RawTable, RowCollector
from analyzers.steps.reading.log_lines import UNKNOWN, Line, Log

HEAD = struct.Struct("<QI")
FOOT = struct.Struct("<I")
_SCALAR_BYTES = 1 << 14
"""The most bytes of a record that is read; longer ones hold images, graphs or histograms."""
_VARINT, _FIXED64, BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
Field = tuple[int, int, int | bytes]
"""A field of a protobuf message, as (number, wire type, value)."""


@dataclass(frozen=True)
class Scalar:
    """A number that was logged under `tag` at `wall_s`, Unix time in seconds."""

    step: int
    tag: str
    value: float
    wall_s: float


@dataclass
class Events:
    """The scalars of an event file.

    `torn` says that the last record of the file is truncated. `damaged` counts records with a wrong checksum.
    """

    scalars: list[Scalar] = field(default_factory=list)
    torn: bool = False
    damaged: int = 0


def read(path: Path) -> Events:
    events = Events()
    records = list(framed(path.read_bytes(), events))
    sums = crc32c([content for content, _ in records])
    for (content, expected), checksum in zip(records, sums, strict=True):
        if masked(int(checksum)) != expected:
            events.damaged += 1
            continue
        try:
            events.scalars += scalars(content)
        except (ValueError, IndexError, struct.error):
            events.damaged += 1
    return events


def framed(data: bytes, events: Events) -> Iterator[tuple[bytes, int]]:
    """Yield (content, stored CRC) of each TFRecord record; a record that is too long to hold a scalar is skipped.

    Truncation and damage are recorded in `events`.
    """
    at = 0
    while at < len(data):
        if at + HEAD.size > len(data):
            events.torn = True
            return
        length, check = HEAD.unpack_from(data, at)
        if masked(crc32c_of_one(data[at : at + 8])) != check:
            events.damaged += 1
            return
        begin, at = at + HEAD.size, at + HEAD.size + length + FOOT.size
        if at > len(data):
            events.torn = True
        elif length <= _SCALAR_BYTES:
            yield data[begin : begin + length], FOOT.unpack_from(data, at - FOOT.size)[0]


def _polynomial_table() -> Column:
    """Return the CRC-32C of each of the 256 byte values (Castagnoli polynomial 0x1EDC6F41, bit-reflected)."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    return table


TABLE = _polynomial_table()


FEW = 32
"""The most messages of equal length that are processed one by one; more of them are processed together."""
_TABLE_OF_INTS: list[int] = TABLE.tolist()


def crc32c_of_one(message: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in message:
        crc = _TABLE_OF_INTS[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def crc32c(messages: list[bytes]) -> Column:
    """Return the CRC-32C checksum of each message.

    Messages of equal length are processed together, one byte position at a time. If few have the same length, a loop
    over bytes in Python is faster.
    """
    sums = np.zeros(len(messages), dtype=np.uint32)
    of_length: defaultdict[int, list[int]] = defaultdict(list)
    for number, message in enumerate(messages):
        of_length[len(message)].append(number)
    for length, numbers in of_length.items():
        if len(numbers) <= FEW:
            sums[numbers] = [crc32c_of_one(messages[number]) for number in numbers]
            continue
        block = np.frombuffer(b"".join(messages[n] for n in numbers), dtype=np.uint8).reshape(len(numbers), length)
        crc = np.full(len(numbers), 0xFFFFFFFF, dtype=np.uint32)
        for column in block.T:
            crc = TABLE[(crc ^ column) & 0xFF] ^ (crc >> 8)
        sums[numbers] = ~crc
    return sums


def masked(crc: int) -> int:
    """Return a CRC in the form in which TFRecord stores it: rotated, with a constant added.

    TFRecord masks it because the CRC of data that contains CRCs is weak.
    """
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def scalars(event: bytes) -> Iterator[Scalar]:
    """Yield the scalars in the bytes of an `Event` protobuf message.

    Of its fields, number 1 is the wall time, number 2 the step, and number 5 a summary, which holds the values.
    """
    wall_s, step, summaries = 0.0, 0, []
    for number, kind, value in fields(event):
        if number == 1 and kind == _FIXED64:
            wall_s = _as_double(value)
        elif number == 2 and kind == _VARINT:
            # Protobuf writes a negative int64 as a varint of ten bytes.
            step = int(value) - (1 << 64 if int(value) >> 63 else 0)
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    # Fields may come in any order, so the step is known only now.
    for summary in summaries:
        for number, _, value in fields(summary):
            if number == 1 and isinstance(value, bytes) and (pair := _tagged_number(value)):
                yield Scalar(step, *pair, wall_s)


def _tagged_number(value: bytes) -> tuple[str, float] | None:
    """Return (tag, number) of a `Summary.Value` protobuf message; None if it holds no number.

    Of its fields, number 1 is the tag, number 2 a simple value, and number 8 a tensor.
    """
    tag, content = "", None
    for number, kind, part in fields(value):
        if number == 1 and isinstance(part, bytes):
            tag = part.decode("utf-8", "replace")
        elif number == 2 and kind == _FIXED32:
            content = _as_float(part)
        elif number == 8 and isinstance(part, bytes):
            content = _tensor_scalar(part)
    return None if content is None else (tag, content)


def _tensor_scalar(tensor: bytes) -> float | None:
    """Return the number in a `TensorProto` protobuf message of one float or double; None if there is none.

    Its value is in field 4 (raw content), field 5 (floats) or field 6 (doubles).
    """
    for number, kind, part in fields(tensor):
        width = _WIDTHS.get(kind) or (len(part) if isinstance(part, bytes) else 0)
        if number in (4, 5, 6) and width in (4, 8):
            return _as_float(part) if width == 4 else _as_double(part)
    return None


def _as_float(value: int | bytes) -> float:
    raw = value if isinstance(value, bytes) else value.to_bytes(4, "little")
    return float(struct.unpack("<f", raw)[0])


def _as_double(value: int | bytes) -> float:
    raw = value if isinstance(value, bytes) else value.to_bytes(8, "little")
    return float(struct.unpack("<d", raw)[0])


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a protobuf message; texts and nested messages are bytes.

    Raises:
        ValueError: The bytes are no protobuf message.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, at = _varint(message, at)
        elif kind in _WIDTHS:
            length = _WIDTHS[kind]
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > len(message):
            raise ValueError("a field ends outside of its message")
        part = message[at : at + length]
        yield number, kind, part if kind == BYTES else int.from_bytes(part, "little")
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the variable-length integer at index `at` of a message, and the index after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("an integer of more than ten bytes")


_CLOCK = "timestamp"


def table_of(scalars: Iterable[Scalar]) -> RawTable:
    """Return scalars as a table with a row per step and a column per tag; each row has the time of its first scalar."""
    rows, row_of = RowCollector(), dict[int, int]()
    for scalar in scalars:
        row = row_of.setdefault(scalar.step, len(row_of))
        if row == rows.count:
            rows.add({"step": scalar.step, _CLOCK: scalar.wall_s})
        rows.set(row, scalar.tag, scalar.value)
    return rows.table()


# Turn the metrics that torchtitan logs (TensorBoard scalars, console lines) into lines of a step log.
#
# torchtitan logs them every few steps; each value is a mean over these steps, and `covers` is their number. The
# logged times are wrong in torchtitan's first lines (it divides by the logging interval even after a single step). So
# the time of a step is computed as the time between two records, divided by the number of steps between them.

GIB = 1 << 30
LOSS = "loss_metrics/global_avg_loss"
_RATES = ("throughput(tps)", "tps", "wps")
_DATA_WAIT = "time_metrics/data_loading(s)"
_ACTIVE_SHARE = "memory/max_active(%)"
_ACTIVE, RESERVED = "memory/max_active(GiB)", "memory/max_reserved(GiB)"
_OWN_TAGS = (LOSS, _DATA_WAIT, _ACTIVE, RESERVED, *_RATES, "grad_norm", "loss", "memory")
"""The tags that all versions of torchtitan, and this project's trainer, log; a file with none is another trainer's."""
_NO_LOSS = -1.0
"""The value that ranks without the last pipeline stage log in place of a loss."""

Values = dict[str, float]


def read_torchtitan_metrics(path: Path) -> Log:
    """Return the steps in a TensorBoard event file.

    If neither torchtitan nor this project's trainer wrote it, its rows are returned as a table, in `raw`.
    """
    events = read(path)
    tags = {scalar.tag for scalar in events.scalars}
    if not tags.intersection(_OWN_TAGS):
        table = table_of(events.scalars)
        table.torn, table.damaged = events.torn, events.damaged
        return Log([], [], raw=table)
    return Log([], lines_of(events.scalars), events.torn, events.damaged)


def lines_of(scalars: Iterable[Scalar]) -> list[Line]:
    """Return a `Line` for each training step that has scalars, in order of steps."""
    steps: dict[int, Values] = {}
    times: dict[int, float] = {}
    for scalar in scalars:
        steps.setdefault(scalar.step, {})[scalar.tag] = scalar.value
        # The first scalar of a step is written when the step ends.
        times.setdefault(scalar.step, scalar.wall_s)
    lines = [line_of(step, values) for step, values in sorted(steps.items()) if _is_training(values)]
    set_times(lines, times)
    for line in lines:
        set_tokens(line, steps[line.step])
    return lines


def _is_training(values: Values) -> bool:
    """Return whether the values logged for a step include a training value, and not only values of a validation."""
    return any(tag in values for tag in (LOSS, "grad_norm", _DATA_WAIT, *_RATES, "loss", "memory"))


def line_of(step: int, values: Values) -> Line:
    """Return the `Line` of a step, from the values that were logged for it by tag."""
    loss = values.get(LOSS, values.get("loss"))
    reserved = gib(values.get(RESERVED, values.get("memory")))
    return Line(
        step,
        phases={"data_wait": round(values[_DATA_WAIT] * 1e9)}
        if math.isfinite(values.get(_DATA_WAIT, math.nan))
        else {},
        loss=None if loss == _NO_LOSS else loss,
        grad_norm=None if loss == _NO_LOSS else values.get("grad_norm"),
        memory_bytes=gib(values.get(_ACTIVE)) or reserved,
        reserved_bytes=reserved,
        limit_bytes=limit(values),
    )


def limit(values: Values) -> int | None:
    """Return the memory limit in bytes; None if it cannot be computed.

    It is computed from the active memory in GiB and the active memory in per cent of the limit.
    """
    active, share = gib(values.get(_ACTIVE)), values.get(_ACTIVE_SHARE, 0.0)
    return round(100 * active / share) if active and 0 < share <= 100 else None


def gib(value: float | None) -> int:
    """Return a size given in GiB as bytes; 0 if it is no usable number."""
    # The bound keeps a damaged value within 64 bits.
    return round(value * GIB) if value is not None and math.isfinite(value) and abs(value) < 1 << 30 else 0


def set_times(lines: Iterable[Line], times: dict[int, float]) -> None:
    """Set the duration of each line, in order of steps, to the mean time per step since the previous line.

    The start time, the number of covered steps and the time outside of phases are set, too. `times` is {step: Unix
    seconds at which it ended}.
    """
    before: Line | None = None
    for line in lines:
        ended = times.get(line.step, math.nan)
        since = ended - times.get(before.step, math.nan) if before else math.nan
        line.start_ns = round(ended * 1e9) if math.isfinite(ended) and abs(ended) < 9e9 else 0
        if before and 0 <= since < 9e9:
            line.covers = line.step - before.step
            line.dur_ns = round(since * 1e9 / line.covers)
            line.start_ns -= round(since * 1e9)
            line.residual_ns = line.dur_ns - sum(line.phases.values())
        before = line


def set_tokens(line: Line, values: Values) -> None:
    per_second = next((values[name] for name in _RATES if name in values), math.nan)
    if line.dur_ns != UNKNOWN and math.isfinite(per_second) and abs(per_second) < 1e15:
        line.tokens = round(per_second * line.dur_ns / 1e9)
