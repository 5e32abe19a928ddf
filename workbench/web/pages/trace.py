"""The page on traces: time by rank, and the events in a time range.

`?file=N` selects the trace, `from=NS` and `to=NS` the time range, `steps=` the same range in steps, `colour=` the
meaning of colours; `path=1` shows the critical path. `trace_timeline` has the parameters of the timeline, and
`trace_calls` those of the tree of calls.
"""

from math import ceil, floor

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from analyzers.run import Artefact
from analyzers.traces import TraceData
from analyzers.traces.views import traffic
from analyzers.words import quantity
from workbench.axes import Span
from workbench.console import clean
from workbench.present.tables.trace import trace_tables
from workbench.rooms import EvidenceLink
from workbench.web.components.figure import Drawing, drawn, zoom_of
from workbench.web.components.links import (
    Elements,
    Tab,
    choice,
    not_recorded,
    picker,
    prose,
    selected,
    table,
    workspace,
)
from workbench.web.components.rank_charts import bytes_sent, named_first, share_bars, step_parts, time_shares
from workbench.web.page import ALL, Page, whole_number, zoomed_range
from workbench.web.pages.trace_details import (
    COLOURS,
    LATEST_NS,
    all_ranks,
    calls_section,
    clock_shift,
    event_query,
    has_memory,
    install_calls,
    longest_section,
    memory_section,
    path_section,
)
from workbench.web.pages.trace_details import NAME as CALLS
from workbench.web.pages.trace_timeline import (
    NAME,
    beside,
    chosen_event,
    install_timeline,
    selected_event,
    timeline,
)
from workbench.web.query import Query, number, parse_query
from workbench.web.query import window as window_in
from workbench.web.served_run import ServedRun
from workbench.web.step_window import Window, parse_steps, trace_marks, window_of

PATHS = (("0", "events"), ("1", "with critical path"))
FINDINGS, BARS = 4, 32
_FEW_BARS = 10
"""The most bars in the chart on the first page."""
_NOT_WITHIN = html.Div(id="within", hidden=True)
"""An empty, hidden element with the id `within`, for tabs that do not depend on the time range.

The callback of zooms writes to an element with this id, and Dash requires that it exists.
"""
_KEPT_IN_ANOTHER_FILE = ("steps", "colour", "find", "path", "tab")
_HINT = "Wheel or W S: zoom. Drag or A D: move. Shift-drag: measure. Click: select."
_BELOW = ("fleet", "held")
"""The charts in tabs that show the same time as the timeline; a zoom into one of them moves the timeline."""


def layout(served: ServedRun, query: Query) -> html.Div:
    data = served.data(TraceData)
    if data is None:
        return not_recorded(
            "profiler traces",
            "To record step 10 of a job:",
            "workbench launch --profile-step 10 -- COMMAND",
        )
    position, span = _file_position(served, query), window(served, query).span
    stores = [dcc.Store(id="file", data=position), dcc.Store(id="moved")]
    canvas: Elements = [timeline(served, position, query, span), *stores]
    tabs = _every_tab(served, data, position, span, query)
    return workspace(_event_controls(served, query), canvas, inspector(served, data, query), tabs, query, tall=True)


def _every_tab(served: ServedRun, data: TraceData, file: int, span: tuple[int, int] | None, query: Query) -> list[Tab]:
    artefact = served.traces[file]
    calls = Tab(CALLS, "Calls", lambda: [*calls_section(served, artefact, query), _NOT_WITHIN])
    return [*_path_tabs(served, query), *_window_tabs(served, file, span), calls, *_whole_tabs(served, data)]


def _window_tabs(served: ServedRun, file: int, span: tuple[int, int] | None) -> list[Tab]:
    """Return the tabs about the time range that the chart shows; a zoom computes the selected one again."""
    sections = {
        "longest": ("Longest events", longest_section),
        **({"ranks": ("All ranks", all_ranks)} if len(served.traces) > 1 else {}),
        **({"memory": ("Memory", memory_section)} if has_memory(served, file) else {}),
    }
    return [
        Tab(name, title, lambda of=of: [html.Div(of(served, file, span), id="within")])  # type: ignore[misc]
        for name, (title, of) in sections.items()
    ]


def _path_tabs(served: ServedRun, query: Query) -> list[Tab]:
    artefact = served.traces[_file_position(served, query)]
    path = Tab("critical", "Critical path", lambda: [*path_section(served, artefact, query), _NOT_WITHIN])
    return [path] if event_query(query).path else []


def _whole_tabs(served: ServedRun, data: TraceData) -> list[Tab]:
    """Return the tabs about the whole recording, which do not depend on the time range that the chart shows."""
    first, second, *rest = trace_tables(data)
    shares = Tab("shares", "Where the time goes", lambda: [*shares_section(served, data), table(first), _NOT_WITHIN])
    savings = Tab(
        "opportunities", "What could be saved", lambda: [html.Div(table(second), id="opportunities"), _NOT_WITHIN]
    )
    sent = Tab("sent", "All-to-all", lambda: [*_bytes_sent_section(data), _NOT_WITHIN])
    return [
        shares,
        *([savings] if second.rows else []),
        *([sent] if not traffic(data.ranks).empty else []),
        Tab("report", "All tables", lambda: [*(table(section) for section in rest if section.rows), _NOT_WITHIN]),
    ]


def shares_section(served: ServedRun, data: TraceData) -> Elements:
    """Return a chart of the parts of the time of each rank, those of the verdict first; at most `BARS` fit a page."""
    shown = named_first(data.ranks, served.report.verdict.ranks)[:BARS]
    label = "Share of each kind of work in the recorded time of each rank"
    rest = f"The chart shows {len(shown)} of {quantity(len(data.ranks), 'rank')}; the table has all of them."
    hint = [html.P(rest, className="hint")] if len(shown) < len(data.ranks) else []
    return [*hint, drawn("shares", time_shares(shown), label)]


def _event_controls(served: ServedRun, query: Query) -> Elements:
    """Return the input fields and links that select what the chart of events shows."""
    wanted, position = event_query(query), _file_position(served, query)
    files = [(str(i), _file_name(artefact)) for i, artefact in enumerate(served.traces)]
    field = dcc.Input(id="event-name", type="search", value=wanted.find, debounce=True, placeholder="find an event")
    kept = {key: value for key, value in query.items() if key in _KEPT_IN_ANOTHER_FILE}
    others = [("", "no other"), *(choice for choice in files if choice[0] != str(position))]
    other = beside(served, position, query)
    return [
        html.H2(f"Events of {_file_name(served.traces[position])}"),
        choice("file", files, str(position), kept, "a trace"),
        picker("beside", [(value, f"beside: {text}") for value, text in others], shown(other), query, "a second trace")
        if len(files) > 1
        else None,
        choice("colour", [(name, name) for name in COLOURS], wanted.colour, query, "the colours"),
        choice("path", PATHS, "1" if wanted.path else "0", query, "whether to show the critical path"),
        html.Div(html.Label([html.Span("Search events by name", className="spoken"), field])),
        html.P(_HINT, className="hint"),
    ]


def inspector(served: ServedRun, data: TraceData, query: Query) -> Elements:
    """Return a description of the selection: the clicked event with its callers, and the parts of the rank's time.

    Without a clicked event, it has the first findings about traces.
    """
    position = _file_position(served, query)
    artefact, chosen = served.traces[position], chosen_event(served, position, query)
    selected = selected_event(served, position, chosen, query) if chosen else []
    found = [finding for finding in served.report.findings if finding.id.startswith("trace.")][:FINDINGS]
    summary = [part for finding in found for part in (html.H2(clean(finding.title)), html.P(prose(finding.why)))]
    whose = "Unknown rank" if artefact.rank is None else f"Rank {artefact.rank}"
    account = next((rank for rank in data.ranks if rank.path == str(artefact.path)), data.ranks[0])
    return [
        html.Div(id="selection"),
        *(selected or [html.P("Click an event to see its callers, and what it launched.", className="hint")]),
        html.H2(f"{whose}: share of the recorded time"),
        *share_bars(account),
        *([] if selected else summary),
    ]


def shown(other: int | None) -> str:
    return "" if other is None else str(other)


def _bytes_sent_section(data: TraceData) -> Elements:
    """Return a chart of the bytes that ranks send to each other in all-to-all collectives; empty if there are none."""
    sent = traffic(data.ranks)
    if sent.empty:
        return []
    label = "Bytes that each rank (down) sends to each other (across) by all-to-all"
    return [html.H2(label), drawn("traffic", bytes_sent(sent), label)]


def _file_name(artefact: Artefact) -> str:
    rank = "unknown rank" if artefact.rank is None else f"rank {artefact.rank}"
    return rank if artefact.step is None else f"{rank}, step {artefact.step}"


def _file_position(served: ServedRun, query: Query) -> int:
    """Return the index in `served.traces` of the file that the address selects.

    By default, it is the first file that has one of the selected steps, of a rank that the verdict names if there is
    one.
    """
    steps = parse_steps(query.get("steps", ""))
    holds = [i for i, file in enumerate(served.traces) if not steps or trace_marks(served, file).span_of(steps)]
    blamed = (i for i in holds if served.traces[i].rank in served.report.verdict.ranks)
    return number(query, "file", len(served.traces), next(blamed, next(iter(holds), 0)))


def window(served: ServedRun, query: Query) -> Window:
    """Return the time range, in ns, that the address selects in the trace file, and the corresponding steps."""
    marks = trace_marks(served, served.traces[_file_position(served, query)])
    return window_of(query, window_in(query, LATEST_NS), marks)


def install(app: Dash, served: ServedRun) -> None:
    if served.data(TraceData) is None:
        return
    install_timeline(app, served)
    install_calls(app)
    # The charts of all ranks and of memory are not on every page, and Dash requires all inputs of a callback to exist.
    for chart in _BELOW:
        _install_zoom_below(app, served, chart)
    move, moved = ClientsideFunction("workbench", "move"), Input("moved", "data")
    app.clientside_callback(move, moved, prevent_initial_call=True)  # type: ignore[no-untyped-call]

    @app.callback(
        Output("within", "children", allow_duplicate=True),
        Output("window", "data", allow_duplicate=True),
        Input(zoom_of(NAME), "data"),
        State("file", "data"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def zoom(change: object, file: object, search: object) -> object:
        if (wanted := zoomed_range(change)) is None:
            return (no_update,) * 2
        position = whole_number(file) or 0
        visible = _zoomed_window(served, position, wanted)
        return within(served, position, visible.span, parse_query(search)), visible.state()


def _install_zoom_below(app: Dash, served: ServedRun, chart: str) -> None:
    """Register the callback of zooms in a chart below the timeline, which then moves to the same time."""

    @app.callback(
        Output("moved", "data", allow_duplicate=True),
        Input(zoom_of(chart), "data"),
        State("file", "data"),
        prevent_initial_call=True,
    )
    def zoom(change: object, file: object) -> object:
        if (wanted := zoomed_range(change)) is None:
            return no_update
        visible = _zoomed_window(served, whole_number(file) or 0, wanted, on_common_clock=chart == "fleet")
        return {"span": visible.span}


def within(served: ServedRun, file: int, span: tuple[int, int] | None, query: Query) -> object:
    """Return the content of the selected tab for the new time range `span`.

    If the content does not depend on the range, return Dash's `no_update`.
    """
    data = served.data(TraceData)
    tab = selected(_every_tab(served, data, file, span, query), query) if data else None
    about = {"longest": longest_section, "ranks": all_ranks, "memory": memory_section}
    return about[tab.name](served, file, span) if tab and tab.name in about else no_update


def _zoomed_window(served: ServedRun, file: int, wanted: Span, *, on_common_clock: bool = False) -> Window:
    """Return the time range after a zoom to `wanted`, in ns, and the corresponding steps.

    The result is in times of the file's own clock; with `on_common_clock`, `wanted` is in times of the clock that all
    ranks share.
    """
    if wanted == ALL:
        return Window()
    shift = clock_shift(served, file) if on_common_clock else 0
    span = max(0, floor(wanted[0] - shift)), ceil(wanted[1] - shift)
    if span[0] >= span[1]:
        return Window()
    return Window(span, trace_marks(served, served.traces[file]).steps_within(span))


def _evidence_query(served: ServedRun, at: EvidenceLink) -> Query:
    ranks = [trace.rank for trace in served.traces]
    return {"file": str(ranks.index(at.rank))} if at.rank in ranks else {}


def _evidence_drawing(served: ServedRun, at: EvidenceLink) -> Drawing | None:
    """Return a chart of the parts of each rank's time; if a single rank was traced, of each step's time.

    The finding's rank comes first. Return None if nothing was recorded.
    """
    data = served.data(TraceData)
    if data is None or not data.ranks:
        return None
    first = data.ranks[0]
    if len(data.ranks) == 1 and len(first.step_times) > 1:
        whose = "" if first.rank is None else f" of rank {first.rank}"
        return f"Kinds of work in each step{whose}", step_parts(first)
    shown = named_first(data.ranks, [at.rank])[:_FEW_BARS]
    rest = f" ({len(shown)} of {quantity(len(data.ranks), 'rank')})" if len(shown) < len(data.ranks) else ""
    return f"Kinds of work in the recorded time of each rank{rest}", time_shares(shown)


PAGE = Page(
    "Trace",
    layout,
    window,
    install,
    _evidence_query,
    _evidence_drawing,
    {"waits": "ranks", "opportunities": "opportunities", "held": "memory"},
)
