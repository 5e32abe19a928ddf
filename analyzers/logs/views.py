"""Build the tables about logs for the user interfaces: the events, and the lines of the log around one event."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from analyzers.case.facts import LogEvent
from analyzers.logs.model import LogsData
from analyzers.words import source_line

_MESSAGE_LENGTH = 120


@dataclass(frozen=True)
class EventRow:
    """An event as a row of a table; `index` is its index in `data.events`.

    `log` is its position as file and line of the log, and `source` is the line of the user's code.
    """

    index: int
    rank: int | None
    time: str
    kind: str
    step: int | None
    message: str
    source: str
    log: str
    count: int


class ExcerptLine(NamedTuple):
    """A line of the excerpt of a log around an event; `is_event` marks the event's own line."""

    text: str
    is_event: bool


def events(data: LogsData, rank: int | None = None) -> list[EventRow]:
    """Return the events in the order of the logs as rows; only those of `rank` if it is given."""
    return [_row_of(index, event) for index, event in enumerate(data.events) if rank in (None, event.rank)]


def _row_of(index: int, event: LogEvent) -> EventRow:
    """Return an event as a row of the events table; `index` is its index in `data.events`."""
    file, _, line = event.source.rpartition(":")
    return EventRow(
        index=index,
        rank=event.rank,
        time=_time_text(event.time_ns),
        kind=str(event.kind),
        step=event.step,
        message=shortened(event.headline),
        source=source_line(file, int(line)) if file else "",
        log=source_line(event.path, event.line),
        count=event.count,
    )


def shortened(headline: str) -> str:
    """Return the beginning of a message; three dots at the end mean that the message is longer."""
    return headline if len(headline) <= _MESSAGE_LENGTH else f"{headline[: _MESSAGE_LENGTH - 3]}..."


def _time_text(time_ns: int | None) -> str:
    """Return a time as `03-26 16:50:50`, in UTC; empty for None or a time out of range."""
    if time_ns is None:
        return ""
    try:
        return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return ""


def excerpt(event: LogEvent) -> list[ExcerptLine]:
    """Return the lines of the log around an event.

    The first line that contains the beginning of the event's message is marked as the event's own line.
    """
    first = event.headline[:_MESSAGE_LENGTH]
    lines = event.excerpt.split("\n")
    own = next((i for i, line in enumerate(lines) if first and first in line), None)
    return [ExcerptLine(line, i == own) for i, line in enumerate(lines)]
