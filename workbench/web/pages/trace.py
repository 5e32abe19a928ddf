"""The page on traces: time by rank, and the events in a time range.

`?file=N` selects the trace, `from=NS` and `to=NS` the time range, `steps=` the same range in steps, `colour=` the
meaning of colours, `find=` the text to highlight, `event=N` the event whose callers are shown; `path=1` shows the
critical path.
"""

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from analyzers.run import Artefact
from analyzers.traces.across.traffic import traffic
from analyzers.traces.report import TraceData
from workbench.present.tables.trace import trace_tables
from workbench.step_axis import Span
from workbench.web.components.figure import drawn
from workbench.web.components.links import choice
from workbench.web.components.rank_charts import bytes_sent, time_shares
from workbench.web.components.text import table
from workbench.web.gestures import ALL, clicked_point, point_data, typed_text, whole_number, zoomed_range
from workbench.web.pages.elements import Elements
from workbench.web.pages.trace_critical_path import path_section
from workbench.web.pages.trace_events import (
    COLOURS,
    LATEST_NS,
    callers,
    clock_shift,
    event_parts,
    event_query,
)
from workbench.web.query import Query, address, number, parse_query
from workbench.web.query import window as window_in
from workbench.web.served_run import ServedRun
from workbench.web.step_marks import trace_marks
from workbench.web.step_window import Window, parse_steps, window_of, window_state, with_window

PATHS = (("0", "events only"), ("1", "with the critical path of the last step"))
KEPT_IN_ANOTHER_FILE = ("steps", "colour", "find", "path")
HINT = "Drag to zoom in: short events appear. Click an event to see its callers, double-click to show everything."
ZOOMING = ("gantt", "fleet", "held")


def layout(served: ServedRun, query: Query) -> html.Div:
    """Return the page on profiler traces."""
    data = served.rooms.trace
    if data is None:
        return html.Div("This run has no profiler traces.")
    tables = trace_tables(data)
    parts = event_parts(served, file_position(served, query), event_query(query), window(served, query).span)
    return html.Div(
        [
            html.H2("Where the time goes"),
            drawn("shares", time_shares(data.ranks), "Share of each kind of work in the recorded time of each rank"),
            *(table(section) for section in tables[:1]),
            html.Div([table(section) for section in tables[1:2] if section.rows], id="opportunities"),
            html.Div(parts.all_ranks, id="together"),
            *event_controls(served, query),
            drawn("gantt", parts.events, "Events of the window, a row for each stream or thread", zooms=True),
            *event_details(served, query),
            html.Div(parts.tables, id="events"),
            *bytes_sent_section(data),
            *(table(section) for section in tables[2:] if section.rows),
        ]
    )


def event_controls(served: ServedRun, query: Query) -> Elements:
    """Return the input fields and links that select what the chart of events shows."""
    wanted, position = event_query(query), file_position(served, query)
    files = [(str(i), file_name(artefact)) for i, artefact in enumerate(served.traces)]
    field = dcc.Input(id="event-name", type="search", value=wanted.find, debounce=True)
    kept = {key: value for key, value in query.items() if key in KEPT_IN_ANOTHER_FILE}
    return [
        html.H2(f"Events of {file_name(served.traces[position])}"),
        choice("file", files, str(position), kept, "a trace"),
        choice("colour", [(name, f"colour by {name}") for name in COLOURS], wanted.colour, query, "the colours"),
        choice("path", PATHS, "1" if wanted.path else "0", query, "whether to show the critical path"),
        html.P(HINT, className="hint"),
        html.Div(html.Label(["Search events by name ", field]), className="fields"),
        dcc.Store(id="file", data=position),
    ]


def event_details(served: ServedRun, query: Query) -> Elements:
    """Return the callers of the clicked event, and the critical path if it is turned on."""
    artefact = served.traces[file_position(served, query)]
    path = path_section(served, artefact, query) if event_query(query).path else []
    return [*callers(artefact, served, query), *path]


def bytes_sent_section(data: TraceData) -> Elements:
    """Return a chart of the bytes that ranks send to each other in all-to-all collectives; empty if there are none."""
    sent = traffic(data.ranks)
    if sent.empty:
        return []
    label = "Bytes that each rank (down) sends to each other (across) by all-to-all"
    return [html.H2("Bytes sent by all-to-all", id="sent"), drawn("traffic", bytes_sent(sent), label)]


def file_name(artefact: Artefact) -> str:
    """Return the label of a trace file, such as `rank 3, step 10`; without the step if it is unknown."""
    rank = "unknown rank" if artefact.rank is None else f"rank {artefact.rank}"
    return rank if artefact.step is None else f"{rank}, step {artefact.step}"


def file_position(served: ServedRun, query: Query) -> int:
    """Return the index in `served.traces` of the file in the address, else of the first file with a selected step."""
    steps = parse_steps(query.get("steps", ""))
    holds = (i for i, file in enumerate(served.traces) if steps and trace_marks(served, file).span_of(steps))
    return number(query, "file", len(served.traces), next(holds, 0))


def window(served: ServedRun, query: Query) -> Window:
    """Return the time range of the selected file that the page shows, in ns, and the corresponding steps."""
    marks = trace_marks(served, served.traces[file_position(served, query)])
    return window_of(query, window_in(query, LATEST_NS), marks)


def install(app: Dash, served: ServedRun) -> None:
    """Register the callbacks of zooms, clicks and the search field."""
    if served.rooms.trace is None:
        return
    # The charts of all ranks and of memory are not on every page, and Dash requires all inputs of a callback to exist.
    for chart in ZOOMING:
        install_zoom(app, served, chart)

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input("gantt", "clickData"),
        Input("event-name", "value"),
        State("address", "search"),
        State("window", "data"),
        prevent_initial_call=True,
    )
    def follow_gesture(click: object, find: object, search: object, shown: object) -> object:
        point, query = clicked_point(click), parse_query(search)
        if ctx.triggered_id == "gantt" and point:
            change = {"event": point_data(point, 1)}
        elif ctx.triggered_id == "event-name":
            change = {"find": typed_text(find)}
        else:
            return no_update
        changed = with_window(query, window_state(shown)) | change
        wanted = {name: value for name, value in changed.items() if value}
        return no_update if wanted == query else address(wanted)


def install_zoom(app: Dash, served: ServedRun, chart: str) -> None:
    """Register the callback of zooms in one chart; it reads the events in the new range, so that short events
    appear.
    """

    @app.callback(
        Output("gantt", "figure", allow_duplicate=True),
        Output("together", "children", allow_duplicate=True),
        Output("events", "children", allow_duplicate=True),
        Output("window", "data", allow_duplicate=True),
        Input(chart, "relayoutData"),
        State("file", "data"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def zoom(relayout: object, file: object, search: object) -> object:
        if (wanted := zoomed_range(relayout)) is None:
            return (no_update,) * 4
        position = whole_number(file) or 0
        shown = zoomed_window(served, position, wanted, on_common_clock=chart == "fleet")
        parts = event_parts(served, position, event_query(parse_query(search)), shown.span)
        return parts.events, parts.all_ranks, parts.tables, shown.state()


def zoomed_window(served: ServedRun, file: int, wanted: Span, *, on_common_clock: bool) -> Window:
    """Return the time range after a zoom to `wanted`, and its steps; times are in ns.

    Times are those of the file's own clock, or with `on_common_clock` of the clock that all ranks share.
    """
    if wanted == ALL:
        return Window()
    shift = clock_shift(served, file) if on_common_clock else 0
    span = max(0, int(wanted[0] - shift)), int(wanted[1] - shift) + 1
    if span[0] >= span[1]:
        return Window()
    return Window(span, trace_marks(served, served.traces[file]).steps_within(span))
