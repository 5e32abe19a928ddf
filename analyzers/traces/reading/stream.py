"""The text of a trace, piece by piece: inflated, cut between events, decoded; odd and broken parts are told, not fatal.

The cut needs no knowledge of the layout. The last `},{` of a block is tried; if it lay inside an event or a string, the
text before it is unbalanced, the decoder refuses it, and the `},{` before is tried.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from typing import IO, Any

import msgspec
from isal import isal_zlib
from isal.igzip_lib import IsalError

from analyzers.errors import InputError

BLOCK_BYTES = 4 << 20
HEAD_AT_MOST = 64 << 20
EVENT_AT_MOST = 32 << 20
NEAR_END = 16 << 10
"""Of a block, in which an end of an event is looked for."""
CUTS_AT_MOST = 64
ENDS_AT_MOST = 16
"""Ends that are tried for one event before it is given up: its arguments may hold lists of objects."""
GZIP = b"\x1f\x8b"

ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
BARE = re.compile(rb"\s*\[")
SEAM = re.compile(rb"\}(?=\s*,\s*\{)")
CLOSE = re.compile(rb"\}(?=\s*\])")
EVENT_END = re.compile(rb"\}(?=\s*(?:,\s*\{|\]))")
COUNTED = b"cuda_profiler_range"
INSTANT, ALLOCATION = "cpu_instant_event", "[memory]"
"""The category of events that happen at once, such as allocations; recorders that stream give them a duration, too."""
BETWEEN = b", \r\n\t"
# Beyond 2**43 microseconds a float64 no longer holds every nanosecond.
FINE_AND_LATE = re.compile(rb'"ts"\s*:\s*\d{13,}\.\d*[1-9]')
NOT_FINITE = re.compile(rb"(?<=[:\s,\[])-?(?:NaN|nan|Infinity|inf)(?=[\s,}\]])")
CONTROLS = bytes(range(32))
BLANKED = bytes.maketrans(CONTROLS, b" " * 32)
NOTHING = msgspec.Raw()


class Args(
    msgspec.Struct,
    gc=False,
    rename={
        "collective": "Collective name",
        "group": "Process Group Name",
        "elements": "In msg nelems",
        "elements_out": "Out msg nelems",
        "members": "Group size",
        "sequence": "Seq",
        "splits": "In split size",
        "graph": "graph id",
        "dims": "Input Dims",
        "types": "Input type",
        "concrete": "Concrete Inputs",
        "autograd": "Sequence number",
        "forward_thread": "Fwd thread id",
        "occupancy": "est. achieved occupancy %",
        "limits": "occupancy",
        "warps": "warps per SM",
        "blocks": "blocks per SM",
        "address": "Addr",
        "allocation": "Bytes",
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
        "device_type": "Device Type",
        "device_id": "Device Id",
    },
):
    """The arguments that the questions need: each kind of event carries some of them."""

    correlation: int = -1
    device: int = -1
    stream: int | str = -1
    collective: str = ""
    group: str | int = ""
    elements: int = 0
    elements_out: int = 0
    dtype: str = ""
    members: int = 0
    sequence: int = -1
    bytes: int = -1
    size: msgspec.Raw = NOTHING
    graph: int = 0
    dims: msgspec.Raw = NOTHING
    types: msgspec.Raw = NOTHING
    concrete: msgspec.Raw = NOTHING
    occupancy: msgspec.Raw = NOTHING
    limits: msgspec.Raw = NOTHING
    warps: msgspec.Raw = NOTHING
    blocks: msgspec.Raw = NOTHING
    splits: msgspec.Raw = NOTHING
    autograd: int = -1
    forward_thread: int = -1
    address: int = 0
    allocation: int = 0
    allocated: int = -1
    reserved: int = -1
    device_type: int = 0
    device_id: int = -1
    finished: bool = True
    name: str = ""


class Event(msgspec.Struct, gc=False):
    """An event of the Chrome trace format; times in microseconds."""

    ph: str
    name: str = ""
    cat: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = 0.0
    dur: float | None = None
    args: Args | None = None


class ExactEvent(msgspec.Struct, gc=False):
    """The same, for times that a float64 cannot hold."""

    ph: str
    name: str = ""
    cat: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: Decimal = Decimal(0)
    dur: Decimal | None = None
    args: Args | None = None


class BareEvent(msgspec.Struct, gc=False):
    """What is left of an event whose arguments have odd types."""

    ph: str
    name: str = ""
    cat: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = 0.0
    dur: float | None = None
    args: None = msgspec.field(default=None, name="arguments that no recorder writes")


class CounterEvent(msgspec.Struct, gc=False):
    """A range of the device's performance counters: its arguments are their values."""

    name: str = ""
    cat: str = ""
    args: dict[str, Any] = {}


Events = list[Any]
FLOAT = msgspec.json.Decoder(list[Event], strict=False)
EXACT = msgspec.json.Decoder(list[ExactEvent], strict=False)
COUNTERS = msgspec.json.Decoder(list[CounterEvent])
RAW = msgspec.json.Decoder(list[msgspec.Raw])
BARE_EVENT = msgspec.json.Decoder(BareEvent, strict=False)


@dataclass
class Reading:
    """How far a file could be read: `metadata` holds its other keys, `problems` a line for each defect.

    `shortcut` is offered each block first. It says how much of it is done, or None where the block is to be decoded.
    """

    sink: Callable[[Events], None]
    shortcut: Callable[[bytes, "Reading"], int | None] = lambda _text, _reading: None
    decoder: Any = FLOAT
    dropped: int = 0
    stripped: int = 0
    repaired: bool = False
    truncated: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    counters: list["CounterEvent"] = field(default_factory=list)

    def problems(self) -> list[str]:
        told = {
            "the file is cut off: what was there has been read": self.truncated,
            "control characters, invalid text or non-finite numbers were replaced": self.repaired,
            f"{self.dropped} events of no known structure were left out": self.dropped,
            f"the arguments of {self.stripped} events have odd types and were left out": self.stripped,
        }
        return [line for line, holds in told.items() if holds]


def blocks(file: IO[bytes], reading: Reading) -> Iterator[bytes]:
    """The file's text in blocks, inflated if gzipped, as far as it goes."""
    start = file.read(2)
    file.seek(0)
    if start != GZIP:
        yield from iter(lambda: file.read(BLOCK_BYTES), b"")
        return
    inflater = isal_zlib.decompressobj(wbits=31)
    while chunk := file.read(1 << 20):
        while chunk:
            try:
                text = inflater.decompress(chunk, BLOCK_BYTES)
            except IsalError:  # type: ignore[misc]  # the stub declares an instance
                reading.truncated = True
                return
            if text:
                yield text
            chunk = inflater.unconsumed_tail
            if inflater.eof:
                chunk, inflater = inflater.unused_data, isal_zlib.decompressobj(wbits=31)
            elif not text:
                break


def read_events(file: IO[bytes], reading: Reading) -> None:
    """Feed the events of a trace to `reading.sink`, block by block.

    Raises:
        InputError: It is no trace.
    """
    source = blocks(file, reading)
    head, buffer = opening(source)
    if FINE_AND_LATE.search(buffer):
        reading.decoder = EXACT
    for block in source:
        buffer = take_block(buffer, reading) + block
    buffer = take_block(buffer, reading)
    tail = take_rest(buffer, reading)
    reading.metadata = metadata(head, tail)


def opening(source: Iterable[bytes]) -> tuple[bytes, bytes]:
    """The text up to the list of events, and what was read beyond."""
    buffer = b""
    for block in source:
        buffer += block
        if found := ARRAY.search(buffer) or BARE.match(buffer):
            return buffer[: found.end()], buffer[found.end() :].lstrip(BETWEEN)
        if len(buffer) > HEAD_AT_MOST:
            break
    raise InputError("no traceEvents: not a profiler trace", "give a file that torch.profiler wrote")


def take_block(buffer: bytes, reading: Reading) -> bytes:
    """Pass on the whole events at the buffer's beginning; returns the rest."""
    if len(buffer) < BLOCK_BYTES // 2:
        return buffer
    if (taken := reading.shortcut(buffer, reading)) is not None:
        return buffer[taken:].lstrip(BETWEEN)
    near = [match.end() for match in SEAM.finditer(buffer, max(0, len(buffer) - NEAR_END))]
    taken = cut(buffer, reversed(near), reading)
    if taken is None and len(buffer) > EVENT_AT_MOST:
        return salvage(buffer, reading)
    return buffer if taken is None else buffer[taken:].lstrip(BETWEEN)


def take_rest(buffer: bytes, reading: Reading) -> bytes:
    """Pass on the events before the list's end; returns what follows it."""
    if empty := re.match(rb"[\s,]*\]", buffer):
        return buffer[empty.end() :]
    taken = cut(buffer, (match.end() for match in CLOSE.finditer(buffer)), reading)
    if taken is not None:
        return buffer[taken:].lstrip()[1:]
    rest = salvage(buffer, reading).lstrip(BETWEEN)
    if rest.startswith(b"]"):
        return rest[1:]
    reading.truncated = True
    return b""


def cut(buffer: bytes, ends: Iterable[int], reading: Reading) -> int | None:
    """Decode up to the first of `ends` that leaves whole events; how far that was, or None."""
    for end in islice(ends, CUTS_AT_MOST):
        try:
            events = decoded(b"[" + buffer[:end] + b"]", reading)
        except msgspec.DecodeError:
            continue
        except UnicodeDecodeError:
            return None
        reading.sink(events)
        return end
    return None


def decoded(text: bytes, reading: Reading) -> Events:
    """The events of a list."""
    try:
        events: Events = reading.decoder.decode(text)
    except msgspec.ValidationError:
        return one_by_one(text, reading)
    if COUNTED in text:
        take_counters(text, reading)
    return events


def take_counters(text: bytes, reading: Reading) -> None:
    """Keep the performance counters of a list of events, unless these are of odd types."""
    with suppress(msgspec.DecodeError):
        reading.counters += [event for event in COUNTERS.decode(text) if event.cat == COUNTED.decode()]


def one_by_one(text: bytes, reading: Reading) -> Events:
    """The events of a list of which some have odd types."""
    found = []
    for raw in RAW.decode(text):
        try:
            found += reading.decoder.decode(b"[" + bytes(raw) + b"]")
        except msgspec.ValidationError:
            try:
                found.append(BARE_EVENT.decode(raw))
                reading.stripped += 1
            except msgspec.ValidationError:
                reading.dropped += 1
    return found


def salvage(buffer: bytes, reading: Reading) -> bytes:
    """Events one at a time from text that no cut makes whole; returns what is behind the last one."""
    mended = NOT_FINITE.sub(b"null", buffer.translate(BLANKED).decode("utf-8", "replace").encode())
    reading.repaired |= mended != buffer.translate(BLANKED) or any_controls(buffer)
    ends = [match.end() for match in EVENT_END.finditer(mended)]
    found: Events = []
    start = at = 0
    while at < len(ends) and not mended[start : start + 64].lstrip(BETWEEN).startswith(b"]"):
        taken, events = first_whole(mended, start, ends[at : at + ENDS_AT_MOST], reading)
        reading.dropped += not taken
        found += events
        at += taken or 1
        start = ends[at - 1]
    reading.sink(found)
    return mended[start:]


def first_whole(text: bytes, start: int, ends: Sequence[int], reading: Reading) -> tuple[int, Events]:
    """The event from `start` to one of `ends`, and how many of these it took; 0 where none makes it whole."""
    for taken, end in enumerate(ends, 1):
        one = b"[" + text[start:end].lstrip(BETWEEN) + b"]"
        try:
            return taken, one_by_one(one, reading)
        except msgspec.DecodeError:
            continue
    return 0, []


def any_controls(buffer: bytes) -> bool:
    return len(buffer.translate(None, CONTROLS.translate(None, b"\t\r\n"))) != len(buffer)


def metadata(head: bytes, tail: bytes) -> dict[str, Any]:
    """The keys beside the events, wherever they stood; those before the events where the rest is missing."""
    for text in (head + b"]" + tail, head + b"]}"):
        try:
            found = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        return found if isinstance(found, dict) else {}
    return {}
