"""One entry of a dump: what its fields say, in whatever way a version or a backend spells them."""

import re
from collections.abc import Sequence
from typing import Any

TEXT_AT_MOST = 500
LARGEST = 1 << 62

Entry = dict[str, Any]


def is_done(entry: Entry) -> bool:
    """Completed. Gloo never says so: there `retired` is the only sign, which on NCCL means a timeout."""
    if entry.get("state") == "completed":
        return True
    return bool(entry.get("retired")) and str(entry.get("profiling_name", "")).startswith("gloo:")


def launch(entry: Entry) -> tuple[str, int, int]:
    """What the entries of one launch have in common."""
    return text(entry.get("pg_id")), whole(entry.get("collective_seq_id")), whole(entry.get("p2p_seq_id"))


def count_of(entry: Entry) -> int:
    """The number of an operation in its group, by whichever count is behind."""
    own = whole(entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"))
    return min(whole(entry.get("op_id")), own)


def group_of(entry: Entry) -> tuple[str, str]:
    """(name, description) of an entry's process group."""
    group = entry.get("process_group")
    if isinstance(group, (list, tuple)) and len(group) == 2:
        return text(group[0]), text(group[1])
    return "", ""


def signature(entry: Entry) -> tuple[Any, ...]:
    """(backend, operation, input sizes, input dtypes, output sizes, output dtypes)."""
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
    return tuple(
        (text(f.get("name", "")), text(f.get("filename", "")), whole(f.get("line"), 0))
        for f in value
        if isinstance(f, dict)
    )


def sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    """Shapes; a bare shape counts as a list of one."""
    if not isinstance(value, (list, tuple)):
        return ()
    shapes = value if any(isinstance(item, (list, tuple)) for item in value) else [value] if value else []
    return tuple(tuple(map(whole, shape)) for shape in shapes if isinstance(shape, (list, tuple)))


def dtypes(value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, (list, tuple)) else [value] if value else []
    return tuple(text(item) for item in items)


def statuses(value: Any) -> dict[str, list[int]]:
    """pg_status as {pg_id: [last enqueued, last started, last completed]}."""
    if not isinstance(value, dict):
        return {}
    keys = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return {text(name): [whole(s.get(key)) for key in keys] for name, s in value.items() if isinstance(s, dict)}


def integers(value: str) -> list[int]:
    """The numbers in a text such as "[0, 1, 2]"."""
    return [int(number) for number in re.findall(r"\d{1,9}", value)]


def whole(value: Any, default: int = -1) -> int:
    """A number that fits a column; dumps hold strings and None too."""
    if type(value) is int and -LARGEST < value < LARGEST:
        return value
    try:
        return max(-LARGEST, min(LARGEST, int(value)))
    except (TypeError, ValueError, OverflowError):
        return default


def text(value: Any) -> str:
    """Cut, and free of what UTF-8 cannot hold."""
    if type(value) is str and len(value) <= TEXT_AT_MOST and value.isascii():
        return value
    return str(value)[:TEXT_AT_MOST].encode("utf-8", "replace").decode() if not isinstance(value, (list, dict)) else ""
