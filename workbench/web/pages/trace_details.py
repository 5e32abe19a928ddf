"""Draw the details of a trace: the tree of calls, the critical path, and the table of events."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import pandas as pd
from dash import ClientsideFunction, Dash, Input, Output, html

from analyzers.run import Artefact
from analyzers.store import Options
from analyzers.traces import TraceData, critical_parts, views
from analyzers.traces.costs import is_user_function
from analyzers.traces.model import RankTrace
from analyzers.words import duration_ns, quantity, share, shortened, user_function
from workbench.console import clean
from workbench.present.table import Table
from workbench.present.table import table as table_of
from workbench.present.tables.trace import CALLS_BY, critical_path, latest_arrivals, longest_events
from workbench.web.components.figure import drawn, figure_of_tree, plain, theme
from workbench.web.components.links import Elements, choice, link, source_code, table
from workbench.web.components.rank_charts import activity, lateness, memory_chart
from workbench.web.components.tree import FRAMES, Tree, icicle, subtree, with_room_for_children
from workbench.web.query import NO_NODE, NODES, Query, address, number, search_text
from workbench.web.served_run import ServedRun
from workbench.web.step_window import without_window

# The calls of a trace as a tree: operators, modules or Python functions, by the time of the work that they launched.
#
# `?by=` sets what the nodes are, `under=N` selects a node, and `library=1` shows functions in libraries, too.

NAME = "calls"
"""The id of the chart, and the name of its tab."""
LEVELS = 40
"""The most levels of calls that are shown at once."""
KEPT, LARGEST, _CALLERS = 4, 40, 12


def calls_section(served: ServedRun, artefact: Artefact, query: Query) -> Elements:
    by = query["by"] if query.get("by") in CALLS_BY else CALLS_BY[0]
    library = by != "function" or query.get("library") == "1"
    frame = _call_tree(artefact, served.options, by if library else "user_function")
    controls = html.Div(_tree_controls(by, query), className="controls")
    if frame.empty:
        return [controls, html.P("The trace recorded no calls of this kind.", className="hint")]
    where = "device" if frame["clock"].iloc[0] == "device_ns" else "host"
    hint = f"Time on the {where}. Click a part of the tree to zoom into it, the top bar to zoom out."
    node = number(query, "under", NODES, NO_NODE)
    shown, up = subtree(frame, node, "ns")
    return [
        controls,
        html.P(hint, className="hint"),
        drawn(NAME, icicle(_tree_of(shown), _title_of(shown), up, LEVELS), f"Calls as a tree, by {by}", tree=True),
        *_selected_call(frame, node),
        table(_longest_calls(frame, where)),
    ]


def _tree_controls(by: str, query: Query) -> Elements:
    # The numbers of nodes are those of one tree.
    kept = {name: value for name, value in query.items() if name != "under"}
    shown = "1" if query.get("library") == "1" else "0"
    return [
        choice("by", [(name, f"by {name}") for name in CALLS_BY], by, kept, "what the calls are"),
        choice("library", FRAMES, shown, kept, "the functions") if by == "function" else None,
    ]


@lru_cache(KEPT)
def _call_tree(artefact: Artefact, options: Options, by: str) -> pd.DataFrame:
    """Return the table of `traces.views.tree` with three more columns; the result is cached for the next click.

    `ns` is the time on the device or, if nothing ran there, on the host, which `clock` names. `path` has the names of
    the node and the nodes around it, outermost first. Nodes without such time are left out.
    """
    frame = views.tree(artefact, options, by)
    clock = "device_ns" if frame["device_ns"].any() else "host_ns"
    frame = with_room_for_children(frame.assign(ns=frame[clock], clock=clock), "ns")
    paths: dict[int, tuple[str, ...]] = {}
    for node, parent, name in zip(*(frame[column].tolist() for column in ("node", "parent", "name")), strict=True):
        paths[node] = (*paths.get(parent, ()), name)
    return frame.assign(path=pd.Series(paths, frame.index, dtype=object))[frame["ns"] > 0]


def _tree_of(frame: pd.DataFrame) -> Tree:
    """Return what is drawn for each call in `frame`; functions in the user's own files have a colour of their own."""
    total = int(frame["ns"][frame["parent"] < 0].sum())
    facts = (frame[name].tolist() for name in ("path", "ns", "count"))
    hovers = [
        f"{'<br>'.join(plain(name) for name in path[-_CALLERS:])}<br>"
        f"{duration_ns(spent)} in {quantity(count, 'call')}, {share(spent, total)} of what is shown"
        for path, spent, count in zip(*facts, strict=True)
    ]
    hues = theme().hues
    colours = [hues["blue" if is_user_function(name) else "pale"] for name in frame["name"]]
    names = [plain(name) for name in frame["name"]]
    return Tree(frame["node"].tolist(), frame["parent"].tolist(), frame["ns"].tolist(), names, hovers, colours)


def _title_of(frame: pd.DataFrame) -> str:
    return f"{duration_ns(int(frame['ns'][frame['parent'] < 0].sum()))} in all calls"


def _selected_call(frame: pd.DataFrame, node: int) -> Elements:
    """Return the path to the selected call, outermost first; functions are links to their source."""
    known = frame[frame["node"] == node]
    if known.empty:
        return []
    spent, count, path = (known[name].iloc[0] for name in ("ns", "count", "path"))
    title = f"Selected: {duration_ns(int(spent))} in {quantity(int(count), 'call')}, at"
    return [html.P(title, className="hint"), html.Ol([html.Li(source_code(clean(name))) for name in path], id="path")]


def _longest_calls(frame: pd.DataFrame, where: str) -> Table:
    """Return a table of the calls with the most time; `where` is "device" or "host", where that time was spent."""
    largest = frame.nlargest(LARGEST, "ns", keep="first")
    columns = (largest[name].tolist() for name in ("path", "ns", "count", "own_ns"))
    rows = (
        (
            user_function(path[-1]),
            duration_ns(spent),
            count,
            duration_ns(own),
            user_function(path[-2:][0]) * (len(path) > 1),
        )
        for path, spent, count, own in zip(*columns, strict=True)
    )
    return table_of(
        "Calls with the most time", f"name | {where} time> | calls> | own host time> | called by", rows, LARGEST
    )


def install_calls(app: Dash) -> None:
    """Register the callbacks of the tree: names are shortened to their room, and a click selects a node."""
    fit, choose = (ClientsideFunction("tree", name) for name in ("fit", "choose"))
    stored, clicked = Input(figure_of_tree(NAME), "data"), Input(NAME, "clickData")
    app.clientside_callback(fit, Output(NAME, "figure"), stored)  # type: ignore[no-untyped-call]
    app.clientside_callback(choose, clicked, prevent_initial_call=True)  # type: ignore[no-untyped-call]


# The critical path of a trace's last step: a row in the chart of events, and a table of its longest pieces.
#
# `?path=1` in the address shows the path. By default it is left out, because computing the path of a large trace takes
# seconds.

_PIECES = 30
AROUND = 2
"""The time that a link to a piece of the path shows before and after the piece, in durations of the piece."""
_TRACE_CRITICAL_PATH_KEPT = 16


def _account_of(served: ServedRun, artefact: Artefact) -> RankTrace:
    accounts = data.ranks if (data := served.data(TraceData)) else []
    return next(account for account in accounts if account.path == str(artefact.path))


def path_of(served: ServedRun, artefact: Artefact) -> pd.DataFrame:
    """Return the critical path of a trace's last step, as a table with a row per piece.

    If the trace does not mark steps, the path covers the whole recording.
    """
    steps = [step.step for step in _account_of(served, artefact).step_times]
    return _path_through(artefact, served.options, steps[-1] if steps else None)


@lru_cache(_TRACE_CRITICAL_PATH_KEPT)
def _path_through(artefact: Artefact, options: Options, step: int | None) -> pd.DataFrame:
    """Return the critical path of a step as a table; None stands for the whole recording.

    The result is cached, because a zoom asks for the same path again.
    """
    return views.critical_path(artefact, options, step)


def path_section(served: ServedRun, artefact: Artefact, query: Query) -> Elements:
    """Return two tables of the critical path: its parts, such as one kernel, and its longest pieces as links."""
    parts, path = critical_parts(_account_of(served, artefact), served.options), path_of(served, artefact)
    longest = path.nlargest(_PIECES, "dur_ns", keep="first").sort_values("start_ns")
    spans = longest[["start_ns", "dur_ns"]].itertuples()
    links = {
        _piece_name(position): link(_piece_name(position), _piece_address(start, dur, query), fixed=True)
        for position, start, dur in spans
    }
    return [
        html.H2("Critical path", id="critical"),
        table(critical_path(parts)),
        table(_piece_list(longest), links.get),
    ]


def _piece_name(position: int) -> str:
    return f"#{position + 1}"


def _piece_address(start: int, dur: int, query: Mapping[str, str]) -> str:
    """Return the address at which the chart of events shows a piece of the critical path and some time around it.

    `start` and `dur` are the piece's start time and duration in ns.
    """
    low, high = max(0, start - AROUND * dur), start + (1 + AROUND) * dur
    return address({**without_window(query), "from": str(low), "to": str(high)})


def _piece_list(longest: pd.DataFrame) -> Table:
    """Return a table of pieces of the critical path, in the order of `longest`, which is sorted by time."""
    rows = (
        (_piece_name(position), shortened(name), kind, duration_ns(at), duration_ns(dur))
        for position, at, dur, kind, name in longest[["start_ns", "dur_ns", "kind", "name"]].itertuples()
    )
    return table_of(
        "Longest pieces of the path, in order of time", "piece | name | kind | start> | duration>", rows, _PIECES
    )


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
    colour = query["colour"] if query.get("colour") in COLOURS else COLOURS[0]
    return EventQuery(colour, search_text(query), query.get("path") == "1")


def _whole_span(blocks: pd.DataFrame) -> Nanoseconds:
    return 0, int((blocks["start_ns"] + blocks["dur_ns"]).max()) if len(blocks) else 1


def longest_section(served: ServedRun, file: int, span: Nanoseconds | None) -> Elements:
    return [table(longest_events(_blocks_in(served.traces[file], served.options, span)))]


def has_memory(served: ServedRun, file: int) -> bool:
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
