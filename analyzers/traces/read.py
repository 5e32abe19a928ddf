"""A profiler trace -> columns, one row a duration event, times in integer nanoseconds.

Runs in the limited child of `analyzers.store`. Memory grows with the columns, not with the text.
"""

from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analyzers.traces.stream import Args, Events, Reading, read_events

VERSION = 2

Column = npt.NDArray[Any]
NO_ARGS = Args()
MICROSECONDS_AT_MOST = 4.5e15
"""Half of what int64 nanoseconds hold: sums and ends stay inside."""
INTEGERS = ("name", "cat", "start", "end", "pid", "tid", "correlation", "external", "device", "stream")
KINDS = (np.int32, np.int32, np.int64, np.int64, np.int64, np.int64, np.int64, np.int64, np.int32, np.int64)
COLLECTIVE = ("row", "name", "group", "elements", "sequence")
NUMBER_AT_MOST = 1 << 31
FIRST_NAME = -2
"""In pid, tid and stream the number of text n is `FIRST_NAME - n`."""


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
    """Collects events into columns; texts become numbers, in places (pid, tid, stream) those below -1."""

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
        """A pid, tid or stream: -1 is none, and one that is no such number counts as a name."""
        if isinstance(value, int) and -1 <= value < 1 << 62:
            return value
        return FIRST_NAME - self.text(str(value))

    def places(self, values: list[int | str]) -> Column:
        """The same for many: nearly always all are numbers."""
        if all(type(value) is int for value in values):
            with suppress(OverflowError):
                numbers = np.array(values, np.int64)
                if numbers.min() >= -1:
                    return numbers
        return np.array([self.place(value) for value in values], np.int64)

    def numbers(self, texts: list[str]) -> list[int]:
        known = self.texts
        return [known.setdefault(text, len(known)) for text in texts]

    def add(self, events: Events) -> None:
        """Take a block of events."""
        for event in events:
            if event.ph == "M" and event.name == "thread_name" and event.args:
                self.threads.append((self.place(event.pid), self.place(event.tid), event.args.name))
        lasting = [event for event in events if event.ph == "X"]
        ts, dur = [event.ts for event in lasting], [event.dur or 0 for event in lasting]
        odd = impossible(ts, dur)
        if odd.any():
            lasting = [event for event, is_odd in zip(lasting, odd, strict=True) if not is_odd]
            ts, dur = [event.ts for event in lasting], [event.dur or 0 for event in lasting]
            self.odd_times += int(odd.sum())
        if lasting:
            start = nanoseconds(ts)
            self.add_lasting(lasting, start, start + nanoseconds(dur))

    def add_lasting(self, events: Events, start: Column, end: Column) -> None:
        args = [event.args or NO_ARGS for event in events]
        columns = (
            self.numbers([event.name for event in events]),
            self.numbers([event.cat for event in events]),
            start,
            end,
            self.places([event.pid for event in events]),
            self.places([event.tid for event in events]),
            integers([a.correlation for a in args]),
            integers([a.external if a.external >= 0 else a.external_old for a in args]),
            integers([a.device for a in args], NUMBER_AT_MOST),
            self.places([a.stream for a in args]),
        )
        self.parts.append([np.asarray(column, kind) for column, kind in zip(columns, KINDS, strict=True)])
        for row, a in [(row, a) for row, a in enumerate(args, self.rows) if a.collective or not a.finished]:
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


def impossible(ts: list[Any], dur: list[Any]) -> Column:
    """Which events begin, last or end where no clock reaches."""
    begin, length = np.array(ts, np.float64), np.array(dur, np.float64)
    return (np.abs(begin) >= MICROSECONDS_AT_MOST) | (length < 0) | (length >= MICROSECONDS_AT_MOST)


def bounded(value: int, limit: int = 1 << 62) -> int:
    """A number as its column holds it; others no recorder writes."""
    return value if -1 <= value < limit else -1


def integers(values: list[int], limit: int = 1 << 62) -> Column:
    """The same for many."""
    try:
        numbers = np.array(values, np.int64)
    except OverflowError:
        numbers = np.array([bounded(value) for value in values], np.int64)
    return np.where((numbers >= -1) & (numbers < limit), numbers, -1)


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
