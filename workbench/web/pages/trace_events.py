"""The section on the events in a time range of a trace, with charts of what all ranks did in this time."""

from dataclasses import dataclass
from functools import lru_cache

import pandas as pd
from dash import html

from analyzers.run import Artefact
from analyzers.store import Options
from analyzers.traces import views
from workbench.colours import EVENT_KINDS, nth_colour
from workbench.console import clean
from workbench.present.tables.trace import latest_arrivals, longest_events
from workbench.web.components.event_chart import event_chart
from workbench.web.components.figure import FigurePart, drawn
from workbench.web.components.links import source_code
from workbench.web.components.memory import DIMMED
from workbench.web.components.rank_charts import activity, lateness
from workbench.web.components.text import table
from workbench.web.components.trace_memory import memory_chart
from workbench.web.pages.elements import Elements
from workbench.web.pages.trace_critical_path import path_blocks
from workbench.web.query import Query, number, search_text
from workbench.web.served_run import ServedRun

WIDTH = 1200
"""Columns of a chart; events that are narrower than a column are joined with their neighbours."""
WINDOWS = 64
COLLECTIVES = 60
LATEST_NS = 1 << 62
COLOURS = ("kind", "stream", "phase")
NO_MATCH = "no match"
NAME = 120

Nanoseconds = tuple[int, int]


@dataclass(frozen=True)
class EventQuery:
    """What the event chart shows: what colours stand for (`colour`: kind, stream or phase), and the searched text.

    `path` says whether the critical path is shown.
    """

    colour: str
    find: str
    path: bool


@dataclass(frozen=True)
class EventParts:
    """The parts of the page that change with the time range."""

    events: FigurePart
    all_ranks: Elements
    tables: Elements


def event_query(query: Query) -> EventQuery:
    """Return how events are to be drawn, from the query of an address."""
    colour = query["colour"] if query.get("colour") in COLOURS else COLOURS[0]
    return EventQuery(colour, search_text(query), query.get("path") == "1")


def event_parts(served: ServedRun, file: int, wanted: EventQuery, span: Nanoseconds | None) -> EventParts:
    """Return the parts of the page on a time range of one file: events, all ranks, memory, longest events."""
    artefact = served.traces[file]
    blocks = blocks_in(artefact, served.options, span)
    whole = (0, int((blocks["start_ns"] + blocks["dur_ns"]).max()) if len(blocks) else 1)
    names, colours = block_colours(artefact, served, blocks, wanted)
    shown = blocks.assign(colour=names)
    if wanted.path:
        shown = pd.concat([path_blocks(served, artefact, span or whole, WIDTH), shown], ignore_index=True)
    tables = [*memory_section(served, artefact, span, whole), table(longest_events(blocks))]
    return EventParts(event_chart(shown, span or whole, EVENT_KINDS | colours), all_ranks(served, file, span), tables)


def memory_section(served: ServedRun, artefact: Artefact, span: Nanoseconds | None, whole: Nanoseconds) -> Elements:
    """Return a chart of the devices' memory in the same time range; empty if allocations were not recorded."""
    frame = views.memory(artefact, served.options, span, WIDTH)
    if not len(frame):
        return []
    label = "Allocated and reserved memory over time"
    return [
        html.H2("Memory over time", id="held"),
        drawn("held", memory_chart(frame, span or whole), label, zooms=True),
    ]


@lru_cache(WINDOWS)
def blocks_in(artefact: Artefact, options: Options, span: Nanoseconds | None) -> pd.DataFrame:
    """Return a table of the events in a time range; it is cached, because a large trace takes a third of a second."""
    return views.timeline(artefact, options, span, WIDTH)


def block_colours(
    artefact: Artefact, served: ServedRun, blocks: pd.DataFrame, wanted: EventQuery
) -> tuple[list[str], dict[str, str]]:
    """Return (names, {name: colour}) for the legend: `names` has the legend name of each block's colour.

    A name has the same colour in every time range. Blocks that do not match the searched text are grey.
    """
    names, colours = named_colours(artefact, served, blocks, wanted.colour)
    if not wanted.find:
        return names, colours
    matches = blocks["name"].str.contains(wanted.find, case=False, regex=False)
    kept = [name if match else NO_MATCH for name, match in zip(names, matches, strict=True)]
    return kept, {**colours, NO_MATCH: DIMMED}


def named_colours(
    artefact: Artefact, served: ServedRun, blocks: pd.DataFrame, colour: str
) -> tuple[list[str], dict[str, str]]:
    """Return the same as `block_colours`, but without grey blocks, as if no text was searched.

    `colour` says what colours stand for: kind, stream or phase.
    """
    if colour == "kind":
        return blocks["kind"].tolist(), EVENT_KINDS
    known = views.lanes(artefact, served.options) if colour == "stream" else views.PHASES
    colours = {title: nth_colour(i) for i, title in enumerate(known)} | {"other": EVENT_KINDS[""]}
    if colour == "stream":
        return blocks["lane"].tolist(), colours
    return views.phases(artefact, blocks["row"].to_numpy(), served.options), colours


def all_ranks(served: ServedRun, file: int, span: Nanoseconds | None) -> Elements:
    """Return charts of all ranks on a common clock: the activity of each, and how late each arrives at collectives."""
    if len(served.traces) == 1:
        return []
    shift = clock_shift(served, file)
    common = (span[0] + shift, span[1] + shift) if span else None
    late = views.lateness(served.traces, served.options, COLLECTIVES)
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
    """Return the ns to add to times in file number `file` to get times on the common clock."""
    shifts = views.axis(served.traces, served.options).set_index("path")["shift_ns"]
    return int(shifts[str(served.traces[file].path)])


def callers(artefact: Artefact, served: ServedRun, query: Query) -> Elements:
    """Return the clicked event and the events that enclose it; each has a link to its source line if it names one."""
    names = views.callers(artefact, number(query, "event", LATEST_NS, -1), served.options) if "event" in query else []
    if not names:
        return []
    lines = [html.Li(source_code(name)) for name in names]
    return [html.H2(f"Callers of {clean(names[0][:NAME])}", id="callers"), html.Ol(lines)]
