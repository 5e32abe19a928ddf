"""How the time divides by rank, and the events of a window; `?file=N&from=NS&to=NS` chooses it."""

from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from analyzers.run import Artefact
from analyzers.traces import views
from workbench.present.traces import trace as tables_of
from workbench.web.components.figure import drawn, visible
from workbench.web.components.text import choice, table
from workbench.web.components.timing import fleet, gantt, lateness, shares
from workbench.web.view import View, number, span_of

WIDTH = 1200
"""Columns of a picture; what is narrower than one is joined with its neighbours."""
COLLECTIVES = 60
LATEST_NS = 1 << 62


def layout(view: View, query: dict[str, str]) -> html.Div:
    if "trace" not in view.parts:
        return html.Div("This run holds no profiler traces.")
    artefacts = traces(view)
    at = number(query, "file", len(artefacts), 0)
    files = [(str(i), name(artefact)) for i, artefact in enumerate(artefacts)]
    return html.Div(
        [
            html.H2("Where the time goes"),
            drawn("shares", shares(view.parts["trace"].ranks), "Share of each kind of work, a bar a rank"),
            *(together(artefacts, view) if len(artefacts) > 1 else []),
            html.H2(f"Events of {name(artefacts[at])}"),
            choice("file", files, str(at)),
            html.P("Drag to zoom in, double click for all.", className="hint"),
            dcc.Store(id="file", data=at),
            drawn(
                "gantt",
                drawing(view, artefacts[at], span_of(query, LATEST_NS)),
                "Events of a window, a row a stream or thread",
            ),
            *(table(section) for section in tables_of(view.parts["trace"]) if section.rows),
        ]
    )


def together(artefacts: list[Artefact], view: View) -> list[Any]:
    """All ranks on one clock: what each does, and who comes late to which collective."""
    late = views.lateness(artefacts, view.options, COLLECTIVES)
    over_time = views.fleet(artefacts, view.options)
    found = [html.H2("All ranks over time"), drawn("fleet", fleet(over_time), "What each rank does most of the time")]
    if len(late):
        label = "How late each rank comes to the collectives with most waiting"
        found += [html.H2("Who comes late"), drawn("lateness", lateness(late), label)]
    return found


def traces(view: View) -> list[Artefact]:
    """The files that were understood, in the order of the report."""
    paths = dict.fromkeys(account.path for account in view.parts["trace"].ranks)
    known = {str(artefact.path): artefact for artefact in view.run.artefacts}
    return [known[path] for path in paths]


def name(artefact: Artefact) -> str:
    rank = "unknown rank" if artefact.rank is None else f"rank {artefact.rank}"
    return rank if artefact.step is None else f"{rank}, step {artefact.step}"


def drawing(view: View, artefact: Artefact, window: tuple[int, int] | None) -> Any:
    blocks = views.timeline(artefact, view.options, window, WIDTH)
    whole = (0, int((blocks["start_ns"] + blocks["dur_ns"]).max()) if len(blocks) else 1)
    return gantt(blocks, window or whole)


def install(app: Dash, view: View) -> None:
    """Zooming: the events of the window are asked for anew, so that short ones come to sight."""
    if "trace" not in view.parts:
        return
    artefacts = traces(view)

    @app.callback(
        Output("gantt", "figure"), Input("gantt", "relayoutData"), State("file", "data"), prevent_initial_call=True
    )
    def zoom(relayout: dict[str, Any] | None, at: int) -> Any:
        span = visible(relayout or {}, (0, LATEST_NS))
        if span is None:
            return no_update
        return drawing(view, artefacts[at], None if span == (0, LATEST_NS) else span)
