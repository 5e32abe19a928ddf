"""What the text logs report: the events, and the ranks that they show."""

from analyzers.logs import views
from analyzers.logs.model import LogsData
from analyzers.words import size
from workbench.present.table import Table, table

EVENTS, RANKS = 20, 40
QUIET = frozenset({"dump_written", "watchdog_status", "overflow_skip"})
"""Kinds that say little on their own; the document in JSON has them."""


def logs_tables(data: LogsData) -> list[Table]:
    """Return the events, the ranks and the files."""
    return [event_table(data), ranks(data), files(data)]


def event_table(data: LogsData, limit: int = EVENTS) -> Table:
    """Return the events in the order of the logs."""
    heads = "rank> | time | event | after step> | message | source line | log | times>"
    return table("Events in the logs", heads, map(event_cells, shown_events(data)), limit)


def shown_events(data: LogsData) -> list[views.EventRow]:
    """Return the events that say something on their own."""
    return [row for row in views.events(data) if row.kind not in QUIET]


def event_cells(row: views.EventRow) -> tuple[object, ...]:
    """Return the cells of an event; what it does not have is empty."""
    rank, step = ("" if value is None else value for value in (row.rank, row.step))
    return (rank, row.time, row.kind.replace("_", " "), step, row.message, row.source, row.log, row.count)


def ranks(data: LogsData) -> Table:
    """Return the last step and line of each rank that the logs show."""
    rows = ((r.rank, "" if r.last_step is None else r.last_step, r.last_line.strip()) for r in data.ranks)
    return table("Ranks in the logs", "rank> | last step> | last line", rows, RANKS)


def files(data: LogsData) -> Table:
    """Return the logs that were read."""
    rows = ((f.path, f.lines, size(f.bytes), f.problem) for f in data.files)
    return table("Logs", "log | lines> | size> | problem", rows)
