"""How the time divides by rank, and the events of a window.

`?file=N` chooses the trace, `from=NS` and `to=NS` the window, `steps=` the same in steps, `colour=` what colour tells,
`find=` what stands out, `path=1` the critical path, `event=N` the event whose callers are told.
"""

from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from analyzers.run import Artefact
from analyzers.traces.across.traffic import traffic
from workbench.present.tables.trace import trace_tables as tables_of
from workbench.web.components.figure import ALL, Span, drawn, zoomed
from workbench.web.components.text import address, choice, table
from workbench.web.components.timing import shares
from workbench.web.components.timing import traffic as drawn_traffic
from workbench.web.pages import trace_critical_path
from workbench.web.pages.trace_events import COLOURS, LATEST_NS, callers, drawing, look_of, shift_of, traces
from workbench.web.served_run import ServedRun, asked, number, span_of
from workbench.web.step_marks import trace_marks
from workbench.web.step_window import Window, kept, read, window_of

PATHS = (("0", "events alone"), ("1", "with the critical path of the last step"))


def layout(served: ServedRun, query: dict[str, str]) -> html.Div:
    if "trace" not in served.parts:
        return html.Div("This run holds no profiler traces.")
    artefacts, look = traces(served), look_of(query)
    at, shown = chosen(served, query), window(served, query)
    files = [(str(i), name(artefact)) for i, artefact in enumerate(artefacts)]
    figure, others, listed = drawing(served, at, look, shown.span)
    field = dcc.Input(id="event-name", type="search", value=look.find, debounce=True)
    along: dict[str, str] = {key: value for key, value in query.items() if key in ("steps", "colour", "find", "path")}
    return html.Div(
        [
            html.H2("Where the time goes"),
            drawn("shares", shares(served.parts["trace"].ranks), "Share of each kind of work, a bar a rank"),
            *(table(section) for section in tables_of(served.parts["trace"])[:1]),
            html.Div(others, id="together"),
            html.H2(f"Events of {name(artefacts[at])}"),
            choice("file", files, str(at), along),
            choice("colour", [(one, f"colour by {one}") for one in COLOURS], look.colour, query),
            choice("path", PATHS, "1" if look.path else "0", query),
            html.P(
                "Drag to zoom in: short events come to sight. Click one for its callers, twice for all.",
                className="hint",
            ),
            html.Div(html.Label(["find events by name ", field]), className="fields"),
            dcc.Store(id="file", data=at),
            drawn("gantt", figure, "Events of a window, a row a stream or thread", zooms=True),
            *callers(artefacts[at], served, query),
            *(trace_critical_path.told(served, artefacts[at], query) if look.path else []),
            html.Div(listed, id="events"),
            *sent(served),
            *(table(section) for section in tables_of(served.parts["trace"])[1:] if section.rows),
        ]
    )


def sent(served: ServedRun) -> list[Any]:
    """Who sends how much to whom, where the ranks exchange anything."""
    found = traffic(served.parts["trace"].ranks)
    if found.empty:
        return []
    label = "Bytes that each rank, down, sends to each other, across, in all-to-alls"
    return [html.H2("Who sends to whom in all-to-alls", id="sent"), drawn("traffic", drawn_traffic(found), label)]


def name(artefact: Artefact) -> str:
    rank = "unknown rank" if artefact.rank is None else f"rank {artefact.rank}"
    return rank if artefact.step is None else f"{rank}, step {artefact.step}"


def chosen(served: ServedRun, query: dict[str, str]) -> int:
    """The number of the file that the address names, else of the first that holds some of the steps in sight."""
    artefacts, steps = traces(served), read(query.get("steps", ""))
    holds = (i for i, one in enumerate(artefacts) if steps and trace_marks(served, one).place(steps))
    return number(query, "file", len(artefacts), next(holds, 0))


def window(served: ServedRun, query: dict[str, str]) -> Window:
    """The nanoseconds of the chosen file that are in sight, and the steps that these are."""
    marks = trace_marks(served, traces(served)[chosen(served, query)])
    return window_of(query, span_of(query, LATEST_NS), marks)


def install(app: Dash, served: ServedRun) -> None:
    """Zooming: the events of the window are asked for anew, so that short ones come to sight."""
    if "trace" not in served.parts:
        return

    # The charts of all ranks and of memory are not on every page, and Dash asks that all inputs of a callback are.
    for chart in ("gantt", "fleet", "held"):

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
        def zoom(relayout: dict[str, Any] | None, at: int, search: str | None) -> Any:
            if (wanted := zoomed(relayout)) is None:
                return (no_update,) * 4
            shown = narrowed(served, at, wanted, common=ctx.triggered_id == "fleet")
            return *drawing(served, at, look_of(asked(search)), shown.span), shown.told()

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input("gantt", "clickData"),
        Input("event-name", "value"),
        State("address", "search"),
        State("window", "data"),
        prevent_initial_call=True,
    )
    def look(clicked: Any, find: str | None, search: str | None, shown: dict[str, Any]) -> Any:
        """What is clicked or sought goes to the address, so that it can be shared."""
        if ctx.triggered_id == "gantt" and clicked:
            change = {"event": str(clicked["points"][0]["customdata"][1])}
        elif ctx.triggered_id == "event-name":
            change = {"find": find or ""}
        else:
            return no_update
        query = asked(search)
        wanted = {name: value for name, value in (kept(query, shown) | change).items() if value}
        return no_update if wanted == query else address(wanted)


def narrowed(served: ServedRun, at: int, wanted: Span, *, common: bool) -> Window:
    """The window of a zoom: in ns of the file, or in ms of the common clock."""
    if wanted == ALL:
        return Window()
    low, high = (edge * 1e6 - shift_of(served, at) for edge in wanted) if common else wanted
    span = max(0, int(low)), int(high) + 1
    return Window(span, trace_marks(served, traces(served)[at]).within(span)) if span[0] < span[1] else Window()
