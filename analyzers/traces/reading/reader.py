"""Read a profiler trace into columns: one row for each event with a duration, times in integer nanoseconds.

The reader runs in a child process with limits on memory and time (`analyzers.child`). Only one block of the file's text
is in memory at a time, so the memory grows with the number of events, not with the length of the text.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from analyzers.columns import Column, Integers
from analyzers.files import open_regular
from analyzers.native import native_module
from analyzers.traces.reading.event_table import (
    ALLOCATIONS,
    COLUMNS,
    SPARSE_TABLES,
    EventRows,
    EventTable,
    numbers_of,
)
from analyzers.traces.reading.numbering import with_new_texts
from analyzers.traces.reading.stream import (
    ALLOCATION,
    COUNTED,
    EXACT,
    INSTANT,
    Args,
    CounterEvent,
    Events,
    ReadState,
    read_events,
)

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


def _block_reader(table: EventTable) -> NativeBlockReader | None:
    module = native_module()
    return NativeBlockReader(table, module) if module else None


def integers(column: bytearray) -> Integers:
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


_MEMBERS_AT_MOST = 1 << 20
"""The most ranks of one process group that are read; further ones are left out."""
_COUNTER_AT_MOST = 1e18


def read(paths: list[Path]) -> tuple[dict[str, Column], dict[str, Any]]:
    """Return the columns of the trace `paths[0]` by name, and its metadata: texts, problems, the job's properties.

    Class `trace.Trace` gives typed access to both.

    Raises:
        InputError: The file is no profiler trace.
    """
    table, state = _read_into_table(paths[0])
    columns, texts = table.finish()
    meta = {
        **texts,
        "problems": msgspec.to_builtins(state.problems() + table.problems()),
        "truncated": state.truncated,
        "header": header_of(state.metadata),
        "counters": _summed_counters(state.counters),
    }
    return columns, meta


def _read_into_table(path: Path) -> tuple[EventTable, ReadState]:
    """Return the events of a file, and the state of reading at its end.

    A damaged file is always read by the reader in Python, so that the result does not depend on whether the native
    reader is installed.

    Raises:
        InputError: The file is no profiler trace.
    """
    table = EventTable()
    if blocks := _block_reader(table):
        with suppress(NotNative):
            state = _read_file(path, ReadState(table.add, blocks.read_block, blocks.read_block))
            if not state.damaged and not state.odd_tail:
                return table, state
        table = EventTable()
    return table, _read_file(path, ReadState(table.add))


def _read_file(path: Path, state: ReadState) -> ReadState:
    with open_regular(path) as file:
        read_events(file, state)
    return state


def _summed_counters(events: list[CounterEvent]) -> list[dict[str, object]]:
    """Return the sum of each hardware performance counter over all runs of each profiled range of code.

    An entry has `range` (the name of the range of code), `name` (of the counter), `count` (how many values) and
    `total` (their sum).
    """
    values_of: dict[tuple[str, str], list[float]] = {}
    for event in events:
        for name, value in event.args.items():
            if isinstance(value, int | float) and abs(value) < _COUNTER_AT_MOST:
                values_of.setdefault((event.name, name), []).append(value)
    return [
        {"range": code_range, "name": name, "count": len(values), "total": sum(values)}
        for (code_range, name), values in values_of.items()
    ]


def header_of(metadata: Mapping[str, object]) -> dict[str, object]:
    """Return the properties of the job that are recorded in the file, by name.

    `rank`, `world_size`, `backend`, `host` and `capability` (the major compute capability of the first device) are
    missing if not recorded. The other properties are always present: `base_ns` (0 if not recorded; add it to times to
    get Unix time), `devices` (names), `device_bytes` ({device id: bytes of memory}), `groups` (see `_process_groups`),
    `shapes` and `stacks` (whether the profiler was asked to record input shapes and Python stacks).
    """
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    properties = metadata.get("deviceProperties")
    devices = [device for device in properties if isinstance(device, dict)] if isinstance(properties, list) else []
    capability = [whole_number(device.get("computeMajor")) for device in devices]
    sizes = {str(device.get("id")): whole_number(device.get("totalGlobalMem")) for device in devices}
    header = {
        "rank": whole_number(info.get("rank")),
        "world_size": whole_number(info.get("world_size")),
        "backend": _text_or_none(info.get("backend")),
        "base_ns": whole_number(metadata.get("baseTimeNanoseconds")) or 0,
        "host": _text_or_none(metadata.get("host_name")),
        "devices": [name for device in devices if isinstance(name := device.get("name"), str)],
        "capability": capability[0] if capability else None,
        "device_bytes": {device: size for device, size in sizes.items() if size},
        "groups": _process_groups(info.get("pg_config")),
        "shapes": bool(metadata.get("record_shapes")),
        "stacks": bool(metadata.get("with_stack")),
    }
    return {key: value for key, value in header.items() if value is not None}


def _process_groups(config: object) -> list[dict[str, object]]:
    """Return the process groups of a job, with `name`, `desc` (such as `mesh_tp`) and `ranks` of each.

    `config` is the value of `pg_config` in the trace file.
    """
    groups = [group for group in config if isinstance(group, dict)] if isinstance(config, list) else []
    return [
        {"name": str(group.get("pg_name", "")), "desc": str(group.get("pg_desc") or ""), "ranks": members(group)}
        for group in groups
    ]


def members(group: Mapping[str, object]) -> list[int]:
    """Return the ranks of a process group, given its entry in the trace file; empty if they are not recorded."""
    ranks = group.get("ranks")
    # torch writes a list, Kineto on its own a text such as "[0, 1]".
    if isinstance(ranks, str):
        ranks = [int(word) for word in ranks.strip("[] ").split(",") if word.strip().isdecimal()]
    return [rank for rank in ranks if isinstance(rank, int)][:_MEMBERS_AT_MOST] if isinstance(ranks, list) else []


def whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and abs(value) < 1 << 62 else None


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
