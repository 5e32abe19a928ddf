"""Tables of a report on text logs: events, ranks and files."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from analyzers.device_memory import untracked
from analyzers.logs import views
from analyzers.logs.model import LogsData
from analyzers.report import Finding
from analyzers.words import size
from workbench.present.table import Table, table
from workbench.present.tables.memory import device_memory
from workbench.present.tables.run import shared_folder

_EVENTS, _RANKS = 20, 40
_QUIET = frozenset({"dump_written", "watchdog_status", "overflow_skip"})
"""The kinds of events that the tables leave out, because they say little on their own; the JSON document has them."""


def logs_tables(data: LogsData) -> list[Table]:
    return [event_table(data), *_device_tables(data), ranks(data), files(data)]


def _device_tables(data: LogsData) -> list[Table]:
    """Return a list with the memory table of one device: the device with the most memory outside the allocator.

    The numbers come from out-of-memory messages in the logs. If no log has such a message, the list is empty.
    """
    fullest = max(data.memory, key=lambda account: untracked(account.parts), default=None)
    if fullest is None:
        return []
    rank = "" if fullest.rank is None else f", rank {fullest.rank}"
    return [device_memory(fullest.parts, f"{rank}, when {size(fullest.requested_bytes)} were requested")]


def event_table(data: LogsData, limit: int = _EVENTS) -> Table:
    heads = "rank> | time | event | after step> | message | source line | log | times>"
    return table("Events in the logs", heads, map(_event_cells, shown_events(data)), limit)


def shown_events(data: LogsData) -> list[views.EventRow]:
    return [row for row in views.events(data) if row.kind not in _QUIET]


def _event_cells(row: views.EventRow) -> tuple[object, ...]:
    rank, step = ("" if value is None else value for value in (row.rank, row.step))
    return (rank, row.time, row.kind.replace("_", " "), step, row.message, row.source, row.log, row.count)


def first_to_show(rows: Sequence[views.EventRow], findings: Sequence[Finding], culprits: Sequence[int]) -> int:
    """Return the index in `rows` of the event that is selected at first.

    This is the event that is evidence of the first finding about logs. Without one, it is the first event of a rank in
    `culprits`, because the other ranks only log consequences. Otherwise it is the first event.
    """
    facts = [fact for found in findings if found.id.startswith("logs.") for fact in found.evidence]
    source = facts[0].source if facts else ""
    evidence = (number for number, row in enumerate(rows) if source.endswith(row.log))
    of_culprits = (number for number, row in enumerate(rows) if row.rank in culprits)
    return next(chain(evidence, of_culprits), 0)


def ranks(data: LogsData) -> Table:
    """Return a table with a row for each rank in the logs: its last logged step and its last line."""
    rows = ((r.rank, "" if r.last_step is None else r.last_step, r.last_line.strip()) for r in data.ranks)
    return table("Ranks in the logs", "rank> | last step> | last line", rows, _RANKS)


def files(data: LogsData) -> Table:
    """Return a table of the logs that were read; of the folders that all paths share, only the last is shown."""
    folder = shared_folder([Path(file.path).parent for file in data.files]).parent
    rows = ((below(f.path, folder), f.lines, size(f.bytes), f.problem) for f in data.files)
    return table("Logs", "log | lines> | size> | problem", rows)


def below(path: str, folder: Path) -> str:
    """Return a path relative to `folder`; a path outside of this folder is returned unchanged."""
    return str(Path(path).relative_to(folder)) if Path(path).is_relative_to(folder) else path
