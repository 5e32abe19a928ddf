"""Interpret the fields of one Flight Recorder entry, which differ between versions and backends of PyTorch.

An entry is a dict that describes one operation. A damaged or hostile dump may hold anything in its fields, so the
functions that convert a field take any value and never raise.
"""

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

_TEXT_AT_MOST = 500
LARGEST = 1 << 62
"""The bound to which numbers are clipped, so that they fit into a signed 64-bit column."""

Entry = dict[str, Any]


def is_done(entry: Entry) -> bool:
    """Return whether the operation of a dump entry has completed.

    Gloo never sets the state to completed, so `retired` is the only evidence there. With NCCL, an entry that is retired
    but not completed has timed out.
    """
    if entry.get("state") == "completed":
        return True
    return bool(entry.get("retired")) and str(entry.get("profiling_name", "")).startswith("gloo:")


def launch(entry: Entry) -> tuple[str, int, int]:
    """Return (process group id, collective sequence number, p2p sequence number) of a dump entry.

    Operations that NCCL launched together (coalesced) have the same three values. A missing number is -1.
    """
    return text(entry.get("pg_id")), whole(entry.get("collective_seq_id")), whole(entry.get("p2p_seq_id"))


def group_of(entry: Entry) -> tuple[str, str]:
    return group_name(entry.get("process_group"))


def group_name(group: object) -> tuple[str, str]:
    """Return (name, description) of a process group, given the field `process_group` of an entry."""
    if isinstance(group, (list, tuple)) and len(group) == 2:
        return text(group[0]), text(group[1])
    return "", ""


def signature(entry: Entry) -> tuple[Any, ...]:
    """Return (backend, operation, input sizes, input dtypes, output sizes, output dtypes) of an entry.

    Backend and operation are the parts of the entry's name before and after the last colon: `nccl:all_reduce`.
    """
    backend, _, operation = text(entry.get("profiling_name", "")).rpartition(":")
    return (
        backend,
        operation,
        sizes(entry.get("input_sizes")),
        dtypes(entry.get("input_dtypes")),
        sizes(entry.get("output_sizes")),
        dtypes(entry.get("output_dtypes")),
    )


def frame(value: object) -> tuple[str, str, int] | None:
    if not isinstance(value, dict):
        return None
    return text(value.get("name", "")), text(value.get("filename", "")), whole(value.get("line"), 0)


def sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    """Return the field `input_sizes` or `output_sizes` as a tuple with the shape of each tensor.

    A single shape that is not in a list of shapes becomes a tuple of one shape.
    """
    if not isinstance(value, (list, tuple)):
        return ()
    shapes = value if any(isinstance(item, (list, tuple)) for item in value) else [value] if value else []
    return tuple(tuple(map(whole, shape)) for shape in shapes if isinstance(shape, (list, tuple)))


def dtypes(value: Any) -> tuple[str, ...]:
    """Return the field `input_dtypes` or `output_dtypes` as a tuple with the dtype's name of each tensor.

    A single name that is not in a list becomes a tuple of one name.
    """
    items = value if isinstance(value, (list, tuple)) else [value] if value else []
    return tuple(text(item) for item in items)


def statuses(value: Any) -> dict[str, list[int]]:
    """Return the field `pg_status` as {process group id: [last enqueued, last started, last completed]}.

    The values are sequence numbers; -1 if the field has none.
    """
    if not isinstance(value, dict):
        return {}
    keys = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return {text(name): [whole(s.get(key)) for key in keys] for name, s in value.items() if isinstance(s, dict)}


def integers(value: str) -> list[int]:
    """Return the ranks in a text such as "[0, 1, 2]"; the text is parsed by a pattern and never evaluated."""
    # More than nine digits are no rank, and would overflow a column.
    return [int(number) for number in re.findall(r"\d{1,9}", value)]


def whole(value: Any, default: int = -1) -> int:
    """Return a field of an entry as an integer, clipped to `LARGEST`; `default` if the value is not a number."""
    # The common case comes first, as a dump has thousands of numbers; `type` because a bool is an int too.
    if type(value) is int and -LARGEST < value < LARGEST:
        return value
    try:
        return max(-LARGEST, min(LARGEST, int(value)))
    except (TypeError, ValueError, OverflowError):
        return default


def _wholes(entries: Sequence[Entry], field: str, default: int = -1) -> list[int]:
    """Return a field of each entry as an integer, as `whole` does."""
    values: list[Any] = [entry.get(field) for entry in entries]
    if set(map(type, values)) == {int} and min(values) > -LARGEST and max(values) < LARGEST:
        return values
    return [whole(value, default) for value in values]


def text(value: Any) -> str:
    """Return a value as text of at most `_TEXT_AT_MOST` characters; characters that UTF-8 cannot encode become `?`.

    Lists and dicts become an empty text.
    """
    # Nearly all texts are short and ASCII, and encoding them takes longer than checking.
    if type(value) is str and len(value) <= _TEXT_AT_MOST and value.isascii():
        return value
    return str(value)[:_TEXT_AT_MOST].encode("utf-8", "replace").decode() if not isinstance(value, (list, dict)) else ""


# Convert the recent entries of a dump to columns, from dicts or from the native reader.
#
# Process groups, signatures and stacks are numbered over all dumps of a set.

Value = TypeVar("Value", bound=Hashable)
Frame = tuple[str, str, int]

_SIGNED = ("profiling_name", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes")
"""The fields of an entry that make up its signature."""


Columns = dict[str, list[int]]
"""{name: column of the entries}, for the fields in `reader.OPS` except `dump`, and for those in `ENDS`."""
ENDS = ("group", "pg_id", "p2p", "seq", "done")
"""The columns that say how far a rank got in each process group."""
_SIDE_LISTS = ("groups", "signatures", "stacks", "has_frames")
"""The names of what the native reader returns besides columns: lists to which numbers in columns refer, and a flag."""


class Interned(Generic[Value]):
    """Numbers distinct values from 0, in order of appearance; calling it with a value returns the value's number."""

    def __init__(self) -> None:
        self.numbers: dict[Value, int] = {}

    def __call__(self, value: Value) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def values(self) -> list[Value]:
        return list(self.numbers)


class Numbering:
    """Numbers the process groups, signatures and stacks of all dumps of a set, each from 0 in order of appearance.

    The entries of a pickle share the objects in their fields. So if an object was seen before in the same dump, its
    number is found by its memory address, without comparing its content. The addresses are valid until `begin_dump`.
    """

    def __init__(self) -> None:
        self.groups = Interned[tuple[str, str]]()
        self.signatures = Interned[tuple[Any, ...]]()
        self.stacks = Interned[tuple[Frame, ...]]()
        self.written_signatures: dict[str, int] = {}
        self.packed_signatures: dict[bytes, int] = {}
        self.packed_stacks: dict[bytes, int] = {}
        self.begin_dump()

    def begin_dump(self) -> None:
        """Forget all object addresses, because a new dump begins."""
        self.group_at: dict[int, int] = {}
        self.frame_at: dict[int, Frame | None] = {}
        self.stack_at: dict[tuple[int, ...], int] = {}
        self.signature_at: dict[tuple[int, ...], int] = {}

    def group(self, entry: Entry) -> int:
        return self.group_of_value(entry.get("process_group"))

    def group_of_value(self, value: object) -> int:
        """Return the number of the process group in a field of an entry."""
        address = id(value)
        number = self.group_at.get(address)
        if number is None:
            number = self.group_at[address] = self.groups(group_name(value))
        return number

    def stack(self, entry: Entry) -> int:
        """Return the number of an entry's stack."""
        value = entry.get("frames")
        if not isinstance(value, (list, tuple)):
            return self.stacks(())
        addresses = tuple(map(id, value))
        number = self.stack_at.get(addresses)
        if number is None:
            number = self.stack_at[addresses] = self.stacks(tuple(filter(None, map(self.frame, value))))
        return number

    def frame(self, value: object) -> Frame | None:
        """Return a (function, file, line) tuple as a frame of a stack; None if the value is no frame."""
        address = id(value)
        if address not in self.frame_at:
            self.frame_at[address] = frame(value)
        return self.frame_at[address]

    def signature(self, entry: Entry) -> int:
        """Return the number of an entry's signature: its name, shapes and dtypes."""
        values = [entry.get(key) for key in _SIGNED]
        addresses = tuple(map(id, values))
        number = self.signature_at.get(addresses)
        if number is None:
            number = self.signature_at[addresses] = self.written_signature(values, entry)
        return number

    def written_signature(self, values: list[Any], entry: Entry) -> int:
        """Return the number of an entry's signature; `values` are its fields `_SIGNED`."""
        # Most are known, and writing one as text is cheaper than normalizing it again.
        written = str(values)
        number = self.written_signatures.get(written)
        if number is None:
            number = self.written_signatures[written] = self.signatures(signature(entry))
        return number

    def packed_signature(self, packed: bytes) -> int:
        """Return the number of a signature, whose five values are given in MessagePack, one after the other."""
        number = self.packed_signatures.get(packed)
        if number is None:
            # 95 begins a list of five.
            values: list[Any] = msgspec.msgpack.decode(b"\x95" + packed)
            entry = dict(zip(_SIGNED, values, strict=True))
            number = self.packed_signatures[packed] = self.written_signature(values, entry)
        return number

    def packed_stack(self, packed: bytes) -> int:
        """Return the number of a stack, whose list of frames is given in MessagePack."""
        number = self.packed_stacks.get(packed)
        if number is None:
            frames = map(frame, msgspec.msgpack.decode(packed))
            number = self.packed_stacks[packed] = self.stacks(tuple(filter(None, frames)))
        return number


@dataclass(frozen=True)
class Ops:
    """The operations of a dump: `recent` are columns of the last ones, `pg_texts` their process group ids as texts.

    `old` are earlier entries, all of them done; `left_out` is the number of further old entries that were not even
    decoded. `has_frames` says whether the last entry has a stack.
    """

    old: list[Entry]
    left_out: int
    recent: Columns
    pg_texts: list[str]
    has_frames: bool

    @property
    def size(self) -> int:
        """How many recent operations there are."""
        return len(self.pg_texts)

    def first(self, column: str, field: str) -> int:
        """Return a number of the first operation of all, from its column `column` or entry field `field`; -1: none."""
        if self.old:
            return whole(self.old[0].get(field))
        return self.recent[column][0] if self.size else -1


def ops_of(old: list[Entry], recent: list[Entry], numbers: Numbering) -> Ops:
    """Return the operations of a dump from its entries."""
    columns = end_columns(recent, numbers) | {
        "signature": list(map(numbers.signature, recent)),
        "stack": list(map(numbers.stack, recent)),
        "started": [entry.get("state") == "started" for entry in recent],
        "retired": [bool(entry.get("retired")) for entry in recent],
        "p2p_seq": _wholes(recent, "p2p_seq_id"),
        "record": _wholes(recent, "record_id"),
        "op_id": _wholes(recent, "op_id"),
        # JSON has 0 where a pickle has None: both mean unknown.
        "created_ns": _wholes(recent, "time_created_ns", 0),
        "completed_ns": _wholes(recent, "time_discovered_completed_ns", 0),
        "timeout_ms": _wholes(recent, "timeout_ms", 0),
    }
    # A recorder writes stacks into all entries or none.
    has_frames = any("frames" in entry for entry in (recent or old)[-1:])
    return Ops(old, 0, columns, [text(entry.get("pg_id")) for entry in recent], has_frames)


def end_columns(entries: Sequence[Entry], numbers: Numbering) -> Columns:
    """Return the columns `ENDS` of some entries."""
    return {
        "group": list(map(numbers.group, entries)),
        "pg_id": _wholes(entries, "pg_id"),
        "p2p": [bool(entry.get("is_p2p")) for entry in entries],
        "seq": _wholes(entries, "collective_seq_id"),
        "done": list(map(is_done, entries)),
    }


def native_ops(old: list[Entry], left_out: int, recent: dict[str, Any], numbers: Numbering) -> Ops:
    """Return the operations of a dump whose recent operations are columns from the native reader."""
    # Some are done only because their whole launch is, which their state does not say.
    old = [entry if is_done(entry) else entry | {"state": "completed"} for entry in old]
    columns = {name: _column_integers(column) for name, column in recent.items() if name not in _SIDE_LISTS}
    columns["group"] = _renumbered(columns["group"], map(numbers.group_of_value, recent["groups"]))
    columns["signature"] = _renumbered(columns["signature"], map(numbers.packed_signature, recent["signatures"]))
    columns["stack"] = _renumbered(columns["stack"], map(numbers.packed_stack, recent["stacks"]))
    return Ops(old, left_out, columns, list(map(str, columns["pg_id"])), recent["has_frames"])


def _column_integers(column: bytearray) -> list[int]:
    numbers: list[int] = np.frombuffer(column, np.int64).tolist()
    return numbers


def _renumbered(column: list[int], numbers: Iterable[int]) -> list[int]:
    known = list(numbers)
    return [known[index] for index in column]
