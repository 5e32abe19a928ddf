"""The parts of the trace page about the events in a time range, and about all ranks in the same time range."""

from dataclasses import dataclass
from functools import lru_cache

import pandas as pd
from dash import html

from analyzers.run import Artefact
from analyzers.store import Options
from analyzers.traces import views
from workbench.present.tables.trace import latest_arrivals, longest_events
from workbench.web.components.figure import drawn
from workbench.web.components.links import Elements, table
from workbench.web.components.rank_charts import activity, lateness, memory_chart
from workbench.web.query import Query, search_text
from workbench.web.served_run import ServedRun

WIDTH = 1200
"""The width of a chart in columns; events that are narrower than a column are joined with their neighbours."""
_WINDOWS = 64
_COLLECTIVES = 60
LATEST_NS = 1 << 62
COLOURS = ("kind", "stream", "phase")

Nanoseconds = tuple[int, int]


@dataclass(frozen=True)
class EventQuery:
    """The options for drawing events, from the query of the page's address (URL).

    `colour` says what the colours mean (`kind`, `stream` or `phase`), `find` is the text to search for, and `path` says
    whether the critical path is shown.
    """

    colour: str
    find: str
    path: bool


def event_query(query: Query) -> EventQuery:
    """Return the options for drawing events, from the query of an address; missing options get their defaults."""
    colour = query["colour"] if query.get("colour") in COLOURS else COLOURS[0]
    return EventQuery(colour, search_text(query), query.get("path") == "1")


def _whole_span(blocks: pd.DataFrame) -> Nanoseconds:
    """Return the time range (0, end) in ns that covers all events of a table; the trace starts at 0."""
    return 0, int((blocks["start_ns"] + blocks["dur_ns"]).max()) if len(blocks) else 1


def longest_section(served: ServedRun, file: int, span: Nanoseconds | None) -> Elements:
    """Return a table of the longest events of the trace file with index `file` in the time range `span` (None: all)."""
    return [table(longest_events(_blocks_in(served.traces[file], served.options, span)))]


def has_memory(served: ServedRun, file: int) -> bool:
    """Return whether the trace file with index `file` recorded allocations."""
    return bool(len(views.memory(served.traces[file], served.options, None, 1)))


def memory_section(served: ServedRun, file: int, span: Nanoseconds | None) -> Elements:
    """Return a chart of the devices' memory in the time range `span` of the trace file with index `file`.

    Return an empty list if the range has no recorded allocation.
    """
    artefact = served.traces[file]
    frame = views.memory(artefact, served.options, span, WIDTH)
    if not len(frame):
        return []
    window = span or _whole_span(_blocks_in(artefact, served.options, span))
    figure = memory_chart(frame, window)
    return [drawn("held", figure, "Allocated and reserved memory over time", zooms=True)]


@lru_cache(_WINDOWS)
def _blocks_in(artefact: Artefact, options: Options, span: Nanoseconds | None) -> pd.DataFrame:
    """Return a table of the events in a time range; neighbouring short events are joined to blocks.

    The result is cached, because computing it takes a third of a second for a large trace.
    """
    return views.timeline(artefact, options, span, WIDTH)


def all_ranks(served: ServedRun, file: int, span: Nanoseconds | None) -> Elements:
    """Return two charts of all ranks on a common clock: the main activity, and the lateness at collectives.

    `span` is the time range to show, in ns on the clock of the trace file with index `file`; None shows the whole
    recording. The list is empty if only one rank was traced.
    """
    if len(served.traces) == 1:
        return []
    shift = clock_shift(served, file)
    common = (span[0] + shift, span[1] + shift) if span else None
    late = views.lateness(served.traces, served.options, _COLLECTIVES)
    # Lateness was computed over the whole recording; only collectives in the window are shown.
    if common:
        late = late[(late["start_ns"] < common[1]) & (late["end_ns"] > common[0])]
    figure = activity(views.ranks_timeline(served.traces, served.options, common))
    elements: Elements = [
        html.H2("All ranks over time"),
        drawn("fleet", figure, "What each rank mostly does", zooms=True),
    ]
    if not len(late):
        return elements
    label = "How late each rank arrives at the collectives with the most waiting"
    title = html.H2("Who arrives late at collectives", id="waits")
    return [*elements, title, drawn("lateness", lateness(late), label), table(latest_arrivals(late))]


def clock_shift(served: ServedRun, file: int) -> int:
    """Return the offset in ns from the clock of the file with index `file` to the clock that all ranks share.

    The caller adds this offset to the times of the file.
    """
    shifts = views.axis(served.traces, served.options).set_index("path")["shift_ns"]
    return int(shifts[str(served.traces[file].path)])
