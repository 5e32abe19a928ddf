"""Interpret the fields of one Flight Recorder entry, which differ between versions and backends of PyTorch.

An entry is a dict that describes one operation. A damaged or hostile dump may hold anything in its fields, so the
functions that convert a field take any value and never raise.
"""

import re
from collections.abc import Sequence
from typing import Any

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
    """Return (name, description) of the process group of a dump entry; both are empty if it names none."""
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
    """Return a frame of a dump entry's stack as a tuple (function, file, line); None if it is no frame."""
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


def wholes(entries: Sequence[Entry], field: str, default: int = -1) -> list[int]:
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
