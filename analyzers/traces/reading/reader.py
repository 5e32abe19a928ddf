"""A profiler trace -> columns, one row a duration event, times in integer nanoseconds.

Runs in the limited child of `analyzers.store`. Memory grows with the columns, not with the text.
"""

from pathlib import Path
from typing import Any

from analyzers.columns import Column
from analyzers.traces.reading.event_table import EventTable, decoded_texts
from analyzers.traces.reading.stream import CounterEvent, Reading, read_events
from analyzers.traces.reading.templated_events import Shortcut

VERSION = 3

MEMBERS_AT_MOST = 1 << 20
COUNTER_AT_MOST = 1e18
KEPT_BYTES = 31 << 20
"""Once so much was allocated and freed, glibc keeps as much for what comes next; else it gives the memory of each block
of text back, and the next block costs as many page faults as pages."""


def read(paths: list[Path]) -> tuple[dict[str, Column], dict[str, Any]]:
    """The columns of one trace and its `meta`; see `model.Trace` for what they mean.

    Raises:
        InputError: It is no trace.
    """
    bytes(KEPT_BYTES)
    table = EventTable()
    reading = Reading(table.add, Shortcut(table).take)
    with paths[0].open("rb") as file:
        read_events(file, reading)
    meta = {
        "names": list(table.texts),
        "shapes": decoded_texts(table.shapes),
        "occupancies": decoded_texts(table.occupancies),
        "threads": table.threads,
        "problems": reading.problems() + table.problems(),
        "truncated": reading.truncated,
        "header": header(reading.metadata),
        "counters": counters(reading.counters),
    }
    return table.columns(), meta


def counters(events: list[CounterEvent]) -> list[dict[str, Any]]:
    """Each counter of each range of the device, summed: `range`, `name`, `count`, `total`."""
    found: dict[tuple[str, str], list[float]] = {}
    for event in events:
        for name, value in event.args.items():
            if isinstance(value, int | float) and abs(value) < COUNTER_AT_MOST:
                found.setdefault((event.name, name), []).append(value)
    return [
        {"range": part, "name": name, "count": len(values), "total": sum(values)}
        for (part, name), values in found.items()
    ]


def header(metadata: dict[str, Any]) -> dict[str, Any]:
    """What the file says about its job: rank, world size, backend, time base, devices, process groups."""
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    properties = metadata.get("deviceProperties")
    listed = [p for p in properties if isinstance(p, dict)] if isinstance(properties, list) else []
    found = {
        "rank": whole_number(info.get("rank")),
        "world_size": whole_number(info.get("world_size")),
        "backend": text_or_none(info.get("backend")),
        "base_ns": whole_number(metadata.get("baseTimeNanoseconds")) or 0,
        "host": text_or_none(metadata.get("host_name")),
        "devices": [name for p in listed if isinstance(name := p.get("name"), str)],
        "device_bytes": {str(p.get("id")): size for p in listed if (size := whole_number(p.get("totalGlobalMem")))},
        "groups": groups(info.get("pg_config")),
        "shapes": bool(metadata.get("record_shapes")),
        "stacks": bool(metadata.get("with_stack")),
    }
    return {key: value for key, value in found.items() if value is not None}


def groups(config: object) -> list[dict[str, Any]]:
    """The process groups: name, description and ranks, which older recorders write as a text."""
    listed = [group for group in config if isinstance(group, dict)] if isinstance(config, list) else []
    return [
        {"name": str(group.get("pg_name", "")), "desc": str(group.get("pg_desc") or ""), "ranks": members(group)}
        for group in listed
    ]


def members(group: dict[str, Any]) -> list[int]:
    ranks = group.get("ranks")
    if isinstance(ranks, str):
        ranks = [int(word) for word in ranks.strip("[] ").split(",") if word.strip().isdecimal()]
    return [rank for rank in ranks if isinstance(rank, int)][:MEMBERS_AT_MOST] if isinstance(ranks, list) else []


def whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and abs(value) < 1 << 62 else None


def text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
