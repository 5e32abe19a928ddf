"""Read the text of a trace block by block: inflate it, cut it between events, decode the events.

A block may end in the middle of an event, so it is cut after the last event that is complete. This works for any
layout. In the block

    {"name": "a", "args": {"x": [{"y": 1}, {"y": 2}]}}, {"name": "b", "args": {"x": [{"y": 3}, {"y"

the last `}` that is followed by `, {` is inside an event: brackets are open there, so the JSON decoder refuses the text
up to it. The decoder accepts the text up to the previous such `}`: one complete event. The rest is kept for the next
block.

Broken text (control characters, invalid UTF-8, NaN, a truncated file) is repaired or left out event by event, and
reported by `ReadState.problems`; only a file without `traceEvents` is an error.
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
from analyzers.files import decoded_json
from analyzers.traces.reading.trace import Problem, ProblemKind

BLOCK_BYTES = 4 << 20
CHUNK_BYTES = 1 << 20
"""The number of bytes of a gzipped file that are read and inflated at once."""
_HEAD_BYTES_AT_MOST = 64 << 20
_EVENT_BYTES_AT_MOST = 32 << 20
_NEAR_END_BYTES = 16 << 10
"""The size of the last part of a block, in which the end of its last complete event is searched."""
_CUTS_AT_MOST = 64
_ENDS_AT_MOST = 16
"""The most positions that are tried as the end of an event in damaged text: `}, {` may also be inside of arguments."""
_GZIP_MAGIC = b"\x1f\x8b"

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"\s*\[")
_SEAM = re.compile(rb"\}(?=\s*,\s*\{)")
CLOSE = re.compile(rb"\}(?=\s*\])")
_EVENT_END = re.compile(rb"\}(?=\s*(?:,\s*\{|\]))")
COUNTED = b"cuda_profiler_range"
"""The category of events that hold hardware performance counters."""
INSTANT, ALLOCATION = "cpu_instant_event", "[memory]"
"""The category of events without a duration, and the name of events about allocations.

Exporters that stream give these events a duration that means nothing.
"""
_BETWEEN_EVENTS = b", \r\n\t"
# From 2**43 microseconds on a float64 does not hold each nanosecond. Some exporters write Unix time, which is later.
_FINE_AND_LATE = re.compile(rb'"ts"\s*:\s*\d{13,}\.\d*[1-9]')
# JSON knows neither, but recorders in C++ print them.
NOT_FINITE = re.compile(rb"(?<=[:\s,\[])-?(?:NaN|nan|Infinity|inf)(?=[\s,}\]])")
_CONTROL_CHARACTERS = bytes(range(32))
_BLANKED = bytes.maketrans(_CONTROL_CHARACTERS, b" " * 32)
NO_TEXT = msgspec.Raw()


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
        "source": "Src Rank",
        "destination": "Dst Rank",
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
    """The arguments of a trace event that the analyzers use; `rename` maps the fields to the names in the file.

    Arguments of type `Raw` are kept as JSON text. -1, 0 or an empty text means that the event has no such argument.
    """

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
    source: int = -1
    destination: int = -1
    bytes: int = -1
    size: msgspec.Raw = NO_TEXT
    graph: int = 0
    dims: msgspec.Raw = NO_TEXT
    types: msgspec.Raw = NO_TEXT
    concrete: msgspec.Raw = NO_TEXT
    occupancy: msgspec.Raw = NO_TEXT
    limits: msgspec.Raw = NO_TEXT
    warps: msgspec.Raw = NO_TEXT
    blocks: msgspec.Raw = NO_TEXT
    splits: msgspec.Raw = NO_TEXT
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
    """An event of the Chrome trace format; `ts` and `dur` (start and duration) are in microseconds."""

    ph: str
    name: str = ""
    cat: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = 0.0
    dur: float | None = None
    args: Args | None = None


class ExactEvent(msgspec.Struct, gc=False):
    """An event of the Chrome trace format with `Decimal` times, for times whose nanoseconds a float64 cannot hold.

    It is used only for files with such times, because decoding it takes 50 % longer than decoding `Event`.
    """

    ph: str
    name: str = ""
    cat: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: Decimal = Decimal(0)
    dur: Decimal | None = None
    args: Args | None = None


class BareEvent(msgspec.Struct, gc=False):
    """An event without its arguments, for events whose arguments have unexpected types.

    The field `args` exists only so that all classes of events have the same fields.
    """

    ph: str
    name: str = ""
    cat: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = 0.0
    dur: float | None = None
    args: None = msgspec.field(default=None, name="arguments that no recorder writes")


class CounterEvent(msgspec.Struct, gc=False):
    """A range of code with performance counters of the device; `args` includes {name of a counter: its value}."""

    name: str = ""
    cat: str = ""
    args: dict[str, Any] = {}


Events = list[Any]
"""A list of `Event`, `ExactEvent` or `BareEvent`, which have the same fields."""
FLOAT = msgspec.json.Decoder(list[Event], strict=False)
EXACT = msgspec.json.Decoder(list[ExactEvent], strict=False)
_COUNTERS = msgspec.json.Decoder(list[CounterEvent])
_RAW = msgspec.json.Decoder(list[msgspec.Raw])
_BARE_EVENT = msgspec.json.Decoder(BareEvent, strict=False)


@dataclass
class ReadState:
    """The state of reading one file: where its events go, and which problems were found so far.

    Each block of text goes to `fast_path` first, a function that returns the number of bytes that it consumed, or None
    if `decoder` must decode the block. The rest at the end of the file goes to `rest_path` in the same way. Decoded
    events go to `sink`.

    `dropped` is the number of events that could not be read, `stripped` the number of events that were read without
    their arguments. `damaged`: a part of the text was no list of JSON events. `odd_tail`: the text after the list is
    not the end of a JSON document. `repaired`: broken text was replaced. `truncated`: the file ends early. `metadata`
    holds all top-level entries of the file but `traceEvents`, `counters` the events with performance counters.
    """

    sink: Callable[[Events], None]
    fast_path: Callable[[bytes, "ReadState"], int | None] = lambda _text, _state: None
    rest_path: Callable[[bytes, "ReadState"], int | None] = lambda _text, _state: None
    decoder: Any = FLOAT
    dropped: int = 0
    stripped: int = 0
    damaged: bool = False
    odd_tail: bool = False
    repaired: bool = False
    truncated: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    counters: list["CounterEvent"] = field(default_factory=list)

    def problems(self) -> list[Problem]:
        """Return the problems of the file that were found so far."""
        known = [
            (Problem(kind=ProblemKind.CUT_OFF), self.truncated),
            (Problem(kind=ProblemKind.REPLACED_TEXT), self.repaired),
            (Problem(kind=ProblemKind.UNKNOWN_EVENTS, count=self.dropped), self.dropped),
            (Problem(kind=ProblemKind.ODD_ARGUMENTS, count=self.stripped), self.stripped),
        ]
        return [problem for problem, holds in known if holds]


def _inflated_blocks(file: IO[bytes], state: ReadState) -> Iterator[bytes]:
    """Yield the text of a file, gzipped or not, in blocks of at most `BLOCK_BYTES`.

    A broken gzip stream ends the text there and sets `state.truncated`.
    """
    magic = file.read(len(_GZIP_MAGIC))
    file.seek(0)
    if magic != _GZIP_MAGIC:
        yield from iter(lambda: file.read(BLOCK_BYTES), b"")
        return
    inflater = isal_zlib.decompressobj(wbits=31)
    while chunk := file.read(CHUNK_BYTES):
        while chunk:
            try:
                text = inflater.decompress(chunk, BLOCK_BYTES)
            except IsalError:  # type: ignore[misc]  # the stub declares an instance
                state.truncated = True
                return
            if text:
                yield text
            chunk = inflater.unconsumed_tail
            if inflater.eof:  # gzip files may be joined end to end: the next one begins here
                chunk, inflater = inflater.unused_data, isal_zlib.decompressobj(wbits=31)
            elif not text:
                break


def read_events(file: IO[bytes], state: ReadState) -> None:
    """Pass the events of a trace to `state.sink`, block by block, and record metadata and problems in `state`.

    Raises:
        InputError: The file is no profiler trace.
    """
    blocks = _inflated_blocks(file, state)
    head, buffer = _read_head(blocks)
    if _FINE_AND_LATE.search(buffer):
        state.decoder = EXACT
    for block in blocks:
        buffer = _consume_block(buffer, state) + block
    buffer = _consume_block(buffer, state)
    tail = _consume_rest(buffer, state)
    state.metadata = _decode_metadata(head, tail, state)


def _read_head(blocks: Iterable[bytes]) -> tuple[bytes, bytes]:
    """Return the file's text up to and including the `[` of the list of events, and the text already read after it.

    Raises:
        InputError: There is no such list.
    """
    buffer = b""
    for block in blocks:
        buffer += block
        if opening := _ARRAY.search(buffer) or _BARE.match(buffer):
            return buffer[: opening.end()], buffer[opening.end() :].lstrip(_BETWEEN_EVENTS)
        if len(buffer) > _HEAD_BYTES_AT_MOST:
            break
    raise InputError("no traceEvents: not a profiler trace", "give a file that torch.profiler wrote")


def _consume_block(buffer: bytes, state: ReadState) -> bytes:
    """Read the complete events at the beginning of the buffer, and return the rest of the buffer.

    A buffer of less than half a block is returned unchanged; it is read together with the next block.
    """
    if len(buffer) < BLOCK_BYTES // 2:
        return buffer
    if (consumed := state.fast_path(buffer, state)) is not None:
        return buffer[consumed:].lstrip(_BETWEEN_EVENTS)
    seams = [match.end() for match in _SEAM.finditer(buffer, max(0, len(buffer) - _NEAR_END_BYTES))]
    consumed = _decode_up_to(buffer, reversed(seams), state)
    # Without a limit a file that never closes an event would be collected as a whole.
    if consumed is None and len(buffer) > _EVENT_BYTES_AT_MOST:
        return _salvage(buffer, state)
    return buffer if consumed is None else buffer[consumed:].lstrip(_BETWEEN_EVENTS)


def _consume_rest(buffer: bytes, state: ReadState) -> bytes:
    """Read the remaining events up to the end of the list, and return the text that follows the `]`.

    If there is no `]`, set `state.truncated` and return an empty text.
    """
    if (read := state.rest_path(buffer, state)) is not None:
        buffer = buffer[read:]
    if no_events := re.match(rb"[\s,]*\]", buffer):
        return buffer[no_events.end() :]
    consumed = _decode_up_to(buffer, (match.end() for match in CLOSE.finditer(buffer)), state)
    if consumed is not None:
        return buffer[consumed:].lstrip()[1:]
    rest = _salvage(buffer, state).lstrip(_BETWEEN_EVENTS)
    if rest.startswith(b"]"):
        return rest[1:]
    state.truncated = True
    return b""


def _decode_up_to(buffer: bytes, ends: Iterable[int], state: ReadState) -> int | None:
    """Decode the events in the buffer up to the first position in `ends` at which an event is complete.

    The events go to `state.sink`. Return this position, or None if all positions that were tried are inside an event.
    """
    for end in islice(ends, _CUTS_AT_MOST):
        try:
            events = _decode_events(b"[" + buffer[:end] + b"]", state)
        except msgspec.DecodeError:
            continue
        except UnicodeDecodeError:  # no msgspec.DecodeError, and no other cut would help
            return None
        state.sink(events)
        return end
    return None


def _decode_events(text: bytes, state: ReadState) -> Events:
    """Return the events in `text`, a JSON list; if a value has an unexpected type, decode each event by itself.

    Raises:
        msgspec.DecodeError: The text is no JSON list.
    """
    try:
        events: Events = state.decoder.decode(text)
    except msgspec.ValidationError:
        # It is a subclass of DecodeError, but means a value of another type: the text itself is whole.
        return _decode_singly(text, state)
    if COUNTED in text:
        _keep_counters(text, state)
    return events


def _keep_counters(text: bytes, state: ReadState) -> None:
    """Add the events with performance counters in `text`, a JSON list, to `state.counters`.

    Nothing is added if an event of the list has an unexpected type.
    """
    with suppress(msgspec.DecodeError):
        state.counters += [event for event in _COUNTERS.decode(text) if event.cat == COUNTED.decode()]


def _decode_singly(text: bytes, state: ReadState) -> Events:
    """Return the events in `text`, a JSON list, decoded one at a time.

    An event whose arguments have unexpected types is kept without them; an event with other wrong types is dropped.
    Both are counted in `state`.
    """
    events: Events = []
    for raw in _RAW.decode(text):
        try:
            events += state.decoder.decode(b"[" + bytes(raw) + b"]")
        except msgspec.ValidationError:
            try:
                events.append(_BARE_EVENT.decode(raw))
                state.stripped += 1
            except msgspec.ValidationError:
                state.dropped += 1
    return events


def _salvage(buffer: bytes, state: ReadState) -> bytes:
    """Decode the events of a damaged text one at a time, and return the text that follows the last event.

    Broken characters and numbers are replaced first; what still is no event is dropped and counted in `state`.
    """
    state.damaged = True
    blanked = buffer.translate(_BLANKED)
    repaired = NOT_FINITE.sub(b"null", blanked.decode("utf-8", "replace").encode())
    state.repaired |= repaired != blanked or _has_control_characters(buffer)
    ends = [match.end() for match in _EVENT_END.finditer(repaired)]
    events: Events = []
    start = at = 0
    while at < len(ends) and not repaired[start : start + 64].lstrip(_BETWEEN_EVENTS).startswith(b"]"):
        used, decoded = _first_decodable(repaired, start, ends[at : at + _ENDS_AT_MOST], state)
        state.dropped += not used
        events += decoded
        at += used or 1
        start = ends[at - 1]
    state.sink(events)
    return repaired[start:]


def _first_decodable(text: bytes, start: int, ends: Sequence[int], state: ReadState) -> tuple[int, Events]:
    """Find the first position in `ends` such that the text from `start` to this position is one event.

    Return two things: how many positions were tried, and a list with the event (empty if the event was dropped). The
    result is (0, []) if no position gives valid JSON.
    """
    for used, end in enumerate(ends, 1):
        candidate = b"[" + text[start:end].lstrip(_BETWEEN_EVENTS) + b"]"
        try:
            return used, _decode_singly(candidate, state)
        except msgspec.DecodeError:
            continue
    return 0, []


def _has_control_characters(buffer: bytes) -> bool:
    forbidden = _CONTROL_CHARACTERS.translate(None, b"\t\r\n")
    return len(buffer.translate(None, forbidden)) != len(buffer)


def _decode_metadata(head: bytes, tail: bytes, state: ReadState) -> dict[str, Any]:
    """Return the top-level entries of a trace file except its events; {} if they cannot be read.

    `head` is the text of the file up to the `[` of the list of events, `tail` the text after its `]`. If the tail does
    not close the brackets that the head opens, `state.odd_tail` is set.
    """
    # What stands before `[` and behind `]` is a JSON object, once the list between them is closed.
    for text in (head + b"]" + tail, head + b"]}"):
        try:
            metadata = decoded_json(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            state.odd_tail = bool(tail)
            continue
        return metadata if isinstance(metadata, dict) else {}
    return {}
