"""Tables of an incident: the chain of events from cause to consequences, and tables of the analyzers that found it."""

from collections.abc import Iterator

from analyzers.incident import IncidentData
from workbench.present.table import Table, table
from workbench.present.tables.hang import hang_tables
from workbench.present.tables.logs import logs_tables
from workbench.present.tables.memory import memory_tables
from workbench.present.tables.steps import steps_tables
from workbench.present.tables.trace import trace_tables

_CHAIN = "Chain of events"
"""The title of the table of events."""
_TABLES_BEHIND = 3
"""The number of tables that are shown of each analyzer that the chain names; the analyzer's own view has the others."""


def incident_tables(data: IncidentData) -> list[Table]:
    """Return the chain of events of an incident, and the tables of the analyzers that found these events.

    A chain of one event is left out, because it says no more than the verdict. Without an incident, return the first
    table of each analyzer.
    """
    events = data.chain if len(data.chain) > 1 else ()
    chain = table(_CHAIN, "# | event", ((i, link.text) for i, link in enumerate(events, 1)))
    named = {finding.partition(".")[0] for link in data.chain for finding in link.findings}
    rooms = dict(_room_tables(data))
    # Nothing went wrong, so no room explains anything: each shows its first table as an overview.
    if not named:
        return [chain, *(table for tables in rooms.values() for table in tables[:1])]
    return [chain, *(table for room, tables in rooms.items() if room in named for table in tables[:_TABLES_BEHIND])]


def _room_tables(data: IncidentData) -> Iterator[tuple[str, list[Table]]]:
    """Yield (name of the analyzer, its tables) for each analyzer that has data."""
    if data.memory:
        yield "memory", memory_tables(data.memory)
    if data.hang:
        yield "hang", hang_tables(data.hang)
    if data.logs:
        yield "logs", logs_tables(data.logs)
    if data.steps:
        yield "steps", steps_tables(data.steps)
    if data.trace:
        yield "trace", trace_tables(data.trace)
