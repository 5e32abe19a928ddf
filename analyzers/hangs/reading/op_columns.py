"""The recent entries of a dump as columns, from dicts or from the native reader."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzers.hangs.reading.dump_entry import Entry, is_done, text, whole, wholes
from analyzers.hangs.reading.numbering import Numbering

Columns = dict[str, list[int]]
"""The columns of entries by name: the fields `reader.OPS` but for `dump`, and those of `ENDS`."""
ENDS = ("group", "pg_id", "p2p", "seq", "done")
"""The columns that say how far a rank got in each process group."""
SIDE_LISTS = ("groups", "signatures", "stacks", "has_frames")
"""What the native reader returns beside columns: the values that numbers in columns refer to, and a flag."""


@dataclass(frozen=True)
class Ops:
    """The operations of a dump: `recent` are the columns of those that are kept, `pg_texts` their group ids as texts.

    `old` are entries before them, all done; `left_out` more of these were not even decoded. `has_frames` says whether
    the last entry has a stack.
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
        """Return a number of the first operation of all: its name as a column and as a field of an entry; -1: none."""
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
        "p2p_seq": wholes(recent, "p2p_seq_id"),
        "record": wholes(recent, "record_id"),
        "op_id": wholes(recent, "op_id"),
        # JSON has 0 where a pickle has None: both mean unknown.
        "created_ns": wholes(recent, "time_created_ns", 0),
        "completed_ns": wholes(recent, "time_discovered_completed_ns", 0),
        "timeout_ms": wholes(recent, "timeout_ms", 0),
    }
    # A recorder writes stacks into all entries or none.
    has_frames = any("frames" in entry for entry in (recent or old)[-1:])
    return Ops(old, 0, columns, [text(entry.get("pg_id")) for entry in recent], has_frames)


def end_columns(entries: Sequence[Entry], numbers: Numbering) -> Columns:
    """Return the columns `ENDS` of some entries."""
    return {
        "group": list(map(numbers.group, entries)),
        "pg_id": wholes(entries, "pg_id"),
        "p2p": [bool(entry.get("is_p2p")) for entry in entries],
        "seq": wholes(entries, "collective_seq_id"),
        "done": list(map(is_done, entries)),
    }


def native_ops(old: list[Entry], left_out: int, recent: dict[str, Any], numbers: Numbering) -> Ops:
    """Return the operations of a dump whose recent ones the native reader returned as columns."""
    columns = {name: integers(column) for name, column in recent.items() if name not in SIDE_LISTS}
    columns["group"] = renumbered(columns["group"], map(numbers.group_of_value, recent["groups"]))
    columns["signature"] = renumbered(columns["signature"], map(numbers.packed_signature, recent["signatures"]))
    columns["stack"] = renumbered(columns["stack"], map(numbers.packed_stack, recent["stacks"]))
    return Ops(old, left_out, columns, list(map(str, columns["pg_id"])), recent["has_frames"])


def integers(column: bytearray) -> list[int]:
    """Return a column that the native reader made."""
    numbers: list[int] = np.frombuffer(column, np.int64).tolist()
    return numbers


def renumbered(column: list[int], numbers: Iterable[int]) -> list[int]:
    """Return a column of indices as the numbers at these indices."""
    known = list(numbers)
    return [known[index] for index in column]
