"""Read blocks of a trace with the native reader; the resulting rows are the same as those of the JSON decoder."""

from typing import Any

import msgspec
import numpy as np

from analyzers.columns import Column, Integers
from analyzers.native import native_module
from analyzers.traces.reading.event_table import (
    ALLOCATIONS,
    COLUMNS,
    SPARSE_TABLES,
    EventRows,
    EventTable,
    numbers_of,
)
from analyzers.traces.reading.stream import ALLOCATION, COUNTED, EXACT, INSTANT, Args, Events, ReadState
from analyzers.traces.reading.text_numbers import with_new_texts

WORDS = (*Args.__struct_encode_fields__, INSTANT, ALLOCATION, COUNTED.decode())
"""The names in a file that the native reader looks for: of arguments, and of three kinds of events."""
_TEXT_COLUMNS = ("name", "cat")
_ID_COLUMNS = ("pid", "tid", "stream")
_COLLECTIVE_TEXTS = [SPARSE_TABLES["collective"].index(name) for name in ("name", "group", "dtype", "splits")]
_MEMORY_IDS = [1 + ALLOCATIONS.index(name) for name in ("pid", "tid")]


class NotNative(Exception):
    """Raised if the native reader does not understand the file; the reader in Python then reads all of the file."""


class NativeBlockReader:
    """A reader for the blocks of one file; the few events that the native reader cannot read are decoded as JSON."""

    def __init__(self, table: EventTable, module: Any) -> None:
        self.table = table
        self.module = module

    def read_block(self, buffer: bytes, state: ReadState) -> int | None:
        """Add the complete events at the beginning of the buffer to the event table; return how many bytes they took.

        The result is None, and nothing is added, if the whole block must be decoded instead.

        Raises:
            NotNative: The text is damaged, or written in a way that no known recorder writes.
        """
        if buffer.startswith(b"]"):
            return None
        found = self.module.read_events(buffer, WORDS, state.decoder is EXACT)
        if found is None:
            raise NotNative
        left = _decode_left(buffer, found, state)
        if left is None:
            return None
        self.table.add_rows(self.rows(found), self.table.rows_of(*left))
        return int(found["consumed"])

    def rows(self, found: dict[str, Any]) -> EventRows:
        """Return the rows that the native reader made of a block, with texts replaced by their numbers in the table."""
        text = numbers_of(found["texts"], self.table.texts)
        columns: dict[str, Column] = {name: integers(found[name]) for name in COLUMNS}
        columns |= {name: text[columns[name]] for name in _TEXT_COLUMNS}
        columns |= {name: with_new_texts(columns[name], text) for name in _ID_COLUMNS}
        sparse = {table: integers(found[table]).reshape(-1, len(names)) for table, names in SPARSE_TABLES.items()}
        memory = integers(found["memory"]).reshape(-1, 1 + len(ALLOCATIONS))
        if len(memory):
            memory[:, _MEMORY_IDS] = with_new_texts(memory[:, _MEMORY_IDS], text)
        numbers = {
            "shape": numbers_of(found["shapes"], self.table.shapes),
            "occupancy": numbers_of(found["occupancies"], self.table.occupancies),
        }
        for table, number in numbers.items():
            sparse[table][:, 1] = number[sparse[table][:, 1]]
        sparse["collective"][:, _COLLECTIVE_TEXTS] = text[sparse["collective"][:, _COLLECTIVE_TEXTS]]
        return EventRows(
            integers(found["order"]), columns, {t: rows for t, rows in sparse.items() if len(rows)}, memory
        )


def block_reader(table: EventTable) -> NativeBlockReader | None:
    """Return a reader for the blocks of one file; None if there is no native reader."""
    module = native_module()
    return NativeBlockReader(table, module) if module else None


def integers(column: bytearray) -> Integers:
    """Return a column that the native reader made."""
    return np.frombuffer(column, np.int64)


def _decode_left(buffer: bytes, found: dict[str, Any], state: ReadState) -> tuple[Events, Integers] | None:
    """Decode the events of a block that the native reader left; return them, and the index of each in the block.

    The result is None if the whole block must be decoded, because such an event has a value of an unexpected type, is
    broken, or has performance counters (only `stream` keeps their arguments).
    """
    places = zip(integers(found["left_start"]).tolist(), integers(found["left_end"]).tolist(), strict=True)
    text = b",".join(buffer[start:end] for start, end in places)
    try:
        events: Events = state.decoder.decode(b"[%b]" % text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if any(event.cat == COUNTED.decode() for event in events):
        return None
    return events, integers(found["left_order"])
