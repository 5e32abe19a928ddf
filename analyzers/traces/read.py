"""A profiler trace -> columns, one row a duration event, times in integer nanoseconds.

Runs in the limited child of `analyzers.store`. Memory grows with the columns, not with the text.
"""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analyzers.traces.stream import Args, Events, Reading, read_events

VERSION = 1

Column = npt.NDArray[Any]
NO_ARGS = Args()
MICROSECONDS_AT_MOST = 4.5e15
"""Half of what int64 nanoseconds hold: sums and ends stay inside."""
INTEGERS = ("name", "cat", "start", "end", "pid", "tid", "correlation", "external", "device", "stream")
KINDS = (np.int32, np.int32, np.int64, np.int64, np.int64, np.int64, np.int64, np.int64, np.int32, np.int64)
COLLECTIVE = ("row", "name", "group", "elements", "sequence")
NUMBER_AT_MOST = 1 << 31


def read(paths: list[Path]) -> tuple[dict[str, Column], dict[str, Any]]:
    """The columns of one trace and its `meta`; see `model.Trace` for what they mean.

    Raises:
        InputError: It is no trace.
    """
    table = Table()
    reading = Reading(table.add)
    with paths[0].open("rb") as file:
        read_events(file, reading)
    meta = {
        "names": list(table.texts),
        "threads": table.threads,
        "problems": reading.problems() + table.problems(),
        "truncated": reading.truncated,
        "header": header(reading.metadata),
    }
    return table.columns(), meta


class Table:
    """Collects events into columns; texts become numbers, in pid and tid negative ones."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.parts: list[list[Column]] = []
        self.collectives: list[tuple[int, int, int, int, int]] = []
        self.unfinished: list[int] = []
        self.threads: list[tuple[int, int, str]] = []
        self.rows = 0
        self.odd_times = 0

    def text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def place(self, value: int | str) -> int:
        """A pid or tid; one beyond what operating systems give counts as a name."""
        if isinstance(value, int) and 0 <= value < 1 << 62:
            return value
        return -1 - self.text(str(value))

    def add(self, events: Events) -> None:
        """Take a block of events."""
        for event in events:
            if event.ph == "M" and event.name == "thread_name" and event.args:
                self.threads.append((self.place(event.pid), self.place(event.tid), event.args.name))
        lasting = [event for event in events if event.ph == "X" and sane(event)]
        self.odd_times += sum(event.ph == "X" for event in events) - len(lasting)
        if lasting:
            self.add_lasting(lasting)

    def add_lasting(self, events: Events) -> None:
        text, place, args = self.text, self.place, [event.args or NO_ARGS for event in events]
        start = nanoseconds([event.ts for event in events])
        columns = (
            [text(event.name) for event in events],
            [text(event.cat) for event in events],
            start,
            start + np.maximum(nanoseconds([event.dur or 0 for event in events]), 0),
            [place(event.pid) for event in events],
            [place(event.tid) for event in events],
            [bounded(a.correlation) for a in args],
            [bounded(max(a.external, a.external_old)) for a in args],
            [a.device if -1 <= a.device < NUMBER_AT_MOST else -1 for a in args],
            [place(a.stream) for a in args],
        )
        self.parts.append([np.array(column, kind) for column, kind in zip(columns, KINDS, strict=True)])
        for row, a in enumerate(args, self.rows):
            if a.collective:
                self.note_collective(row, a)
            if not a.finished:
                self.unfinished.append(row)
        self.rows += len(events)

    def note_collective(self, row: int, a: Args) -> None:
        group = self.text(str(a.group))
        self.collectives.append((row, self.text(a.collective), group, bounded(a.elements), bounded(a.sequence)))

    def columns(self) -> dict[str, Column]:
        parts = self.parts or [[np.zeros(0, kind) for kind in KINDS]]
        made = {name: np.concatenate(column) for name, column in zip(INTEGERS, zip(*parts, strict=True), strict=True)}
        collectives = np.array(self.collectives, np.int64).reshape(-1, len(COLLECTIVE))
        made |= {f"collective_{name}": collectives[:, i] for i, name in enumerate(COLLECTIVE)}
        return made | {"unfinished": np.array(self.unfinished, np.int64)}

    def problems(self) -> list[str]:
        return [f"{self.odd_times} events with impossible times were left out"] if self.odd_times else []


def sane(event: Any) -> bool:
    return -MICROSECONDS_AT_MOST < event.ts < MICROSECONDS_AT_MOST and 0 <= (event.dur or 0) < MICROSECONDS_AT_MOST


def bounded(value: int) -> int:
    """A number as int64 holds it; others no recorder writes."""
    return value if -1 <= value < 1 << 62 else -1


def nanoseconds(microseconds: list[Any]) -> Column:
    """Decimal microseconds as integer nanoseconds, exact for floats below 2**43 and for decimals."""
    if any(isinstance(value, Decimal) for value in microseconds[:1]):
        return np.array([int(value * 1000) for value in microseconds], np.int64)
    values = np.array(microseconds, np.float64)
    whole = np.floor(values)
    return whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)


def header(metadata: dict[str, Any]) -> dict[str, Any]:
    """What the file says about its job: rank, world size, backend, time base, devices."""
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    properties = metadata.get("deviceProperties")
    devices = [p.get("name") for p in properties if isinstance(p, dict)] if isinstance(properties, list) else []
    found = {
        "rank": whole_number(info.get("rank")),
        "world_size": whole_number(info.get("world_size")),
        "backend": text_or_none(info.get("backend")),
        "base_ns": whole_number(metadata.get("baseTimeNanoseconds")) or 0,
        "host": text_or_none(metadata.get("host_name")),
        "devices": [name for name in devices if isinstance(name, str)],
    }
    return {key: value for key, value in found.items() if value is not None}


def whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and abs(value) < 1 << 62 else None


def text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
