"""Tables of an incident: the chain of events from cause to consequences, and tables of the analyzers that found it."""

from analyzers.incident import IncidentData
from analyzers.rooms import ROOMS, imported
from workbench.present.table import Table, table
from workbench.rooms import FACES

_CHAIN = "Chain of events"
"""The title of the table of events."""
_TABLES_BEHIND = 3
"""The number of tables that are shown of each analyzer that the chain names; the analyzer's own view has the others."""

_LAST = ("steps", "trace")


def incident_tables(data: IncidentData) -> list[Table]:
    """Return the chain of events of an incident, and the tables of the analyzers that found these events.

    A chain of one event is left out, because it says no more than the verdict. Without an incident, return the first
    table of each analyzer.
    """
    events = data.chain if len(data.chain) > 1 else ()
    chain = table(_CHAIN, "# | event", ((i, link.text) for i, link in enumerate(events, 1)))
    named = {finding.partition(".")[0] for link in data.chain for finding in link.findings}
    rooms = _tables_by_room(data)
    # Nothing went wrong, so no room explains anything: each shows its first table as an overview.
    if not named:
        return [chain, *(table for tables in rooms.values() for table in tables[:1])]
    return [chain, *(table for room, tables in rooms.items() if room in named for table in tables[:_TABLES_BEHIND])]


def _tables_by_room(data: IncidentData) -> dict[str, list[Table]]:
    names = sorted(ROOMS, key=lambda name: _LAST.index(name) if name in _LAST else -1)
    found = ((name, getattr(data, name, None)) for name in names)
    return {name: imported(FACES[name].tables)(data) for name, data in found if data is not None}
