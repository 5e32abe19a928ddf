"""Interpret the fields of one dump entry, whose names and values differ between versions and backends of PyTorch.

Fields of a damaged or hostile dump may hold anything, so each function here takes any value and never raises.
"""

import re
from collections.abc import Sequence
from typing import Any

TEXT_AT_MOST = 500
LARGEST = 1 << 62
"""The largest number that is kept, as columns are signed integers of 64 bits."""

Entry = dict[str, Any]


def is_done(entry: Entry) -> bool:
    """Return whether an operation has completed.

    Gloo never sets the state to completed: there `retired` is the only sign. On NCCL an entry that is retired and not
    completed has timed out.
    """
    if entry.get("state") == "completed":
        return True
    return bool(entry.get("retired")) and str(entry.get("profiling_name", "")).startswith("gloo:")


def launch(entry: Entry) -> tuple[str, int, int]:
    """Return (process group, collective sequence number, p2p sequence number) of a dump entry.

    All entries of operations that NCCL launched together (coalesced) have the same three values.
    """
    return text(entry.get("pg_id")), whole(entry.get("collective_seq_id")), whole(entry.get("p2p_seq_id"))


def count_of(entry: Entry) -> int:
    """Return the lower of the two sequence numbers that a dump entry has in its process group.

    One (`op_id`) counts all operations of the group, the other only its collectives, or only its sends and receives.
    """
    own = whole(entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"))
    return min(whole(entry.get("op_id")), own)


def group_of(entry: Entry) -> tuple[str, str]:
    """Return (name, description) of an entry's process group."""
    group = entry.get("process_group")
    if isinstance(group, (list, tuple)) and len(group) == 2:
        return text(group[0]), text(group[1])
    return "", ""


def signature(entry: Entry) -> tuple[Any, ...]:
    """Return (backend, operation, input sizes, input dtypes, output sizes, output dtypes) of an entry.

    Backend and operation are the parts of its name, such as `nccl:all_reduce`, around the last colon.
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


def frames(value: Sequence[Any]) -> tuple[tuple[str, str, int], ...]:
    """Return (function, file, line) of each frame, innermost first."""
    return tuple(
        (text(f.get("name", "")), text(f.get("filename", "")), whole(f.get("line"), 0))
        for f in value
        if isinstance(f, dict)
    )


def sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    """Return a field of sizes as a tuple of shapes; a single shape outside of a list counts as a list of one shape."""
    if not isinstance(value, (list, tuple)):
        return ()
    shapes = value if any(isinstance(item, (list, tuple)) for item in value) else [value] if value else []
    return tuple(tuple(map(whole, shape)) for shape in shapes if isinstance(shape, (list, tuple)))


def dtypes(value: Any) -> tuple[str, ...]:
    """Return the names of tensor types; a single name outside of a list counts as a list of one name."""
    items = value if isinstance(value, (list, tuple)) else [value] if value else []
    return tuple(text(item) for item in items)


def statuses(value: Any) -> dict[str, list[int]]:
    """Return the field `pg_status` as {pg_id: [last enqueued, last started, last completed]}."""
    if not isinstance(value, dict):
        return {}
    keys = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return {text(name): [whole(s.get(key)) for key in keys] for name, s in value.items() if isinstance(s, dict)}


def integers(value: str) -> list[int]:
    """Return the numbers in a text such as "[0, 1, 2]"; the text is never evaluated."""
    # More than nine digits are no rank, and would overflow a column.
    return [int(number) for number in re.findall(r"\d{1,9}", value)]


def whole(value: Any, default: int = -1) -> int:
    """Return a field as an integer of at most 64 bits; `default` for anything else, such as None."""
    # The common case comes first, as a dump has thousands of numbers; `type` because a bool is an int too.
    if type(value) is int and -LARGEST < value < LARGEST:
        return value
    try:
        return max(-LARGEST, min(LARGEST, int(value)))
    except (TypeError, ValueError, OverflowError):
        return default


def text(value: Any) -> str:
    """Return a value as text, truncated to `TEXT_AT_MOST` characters and without characters that UTF-8 cannot encode.

    Lists and dicts become an empty text.
    """
    # Nearly all texts are short and ASCII, and encoding them takes longer than checking.
    if type(value) is str and len(value) <= TEXT_AT_MOST and value.isascii():
        return value
    return str(value)[:TEXT_AT_MOST].encode("utf-8", "replace").decode() if not isinstance(value, (list, dict)) else ""
