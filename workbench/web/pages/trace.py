"""How the time divides by rank, and the events of a window.

`?file=N` chooses the trace, `from=NS` and `to=NS` the window, `steps=` the same in steps, `colour=` what colour tells.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from analyzers.run import Artefact
from analyzers.traces import views
from workbench.palette import KINDS, qualitative
from workbench.present.traces import events, latest
from workbench.present.traces import trace as tables_of
from workbench.web.clocks import trace_marks
from workbench.web.components.figure import ALL, Span, drawn, zoomed
from workbench.web.components.text import choice, table
from workbench.web.components.timing import fleet, gantt, lateness, shares
from workbench.web.view import View, asked, number, span_of
from workbench.web.window import Window, read, window_of

WIDTH = 1200
"""Columns of a picture; what is narrower than one is joined with its neighbours."""
COLLECTIVES = 60
LATEST_NS = 1 << 62
COLOURS = ("kind", "stream", "phase")

Nanoseconds = tuple[int, int]


def layout(view: View, query: dict[str, str]) -> html.Div:
    if "trace" not in view.parts:
        return html.Div("This run holds no profiler traces.")
    artefacts, colour = traces(view), colour_of(query)
    at, shown = chosen(view, query), window(view, query)
    files = [(str(i), name(artefact)) for i, artefact in enumerate(artefacts)]
    figure, others, listed = drawing(view, at, colour, shown.span)
    kept: dict[str, str] = {key: value for key, value in query.items() if key in ("steps", "colour")}
    return html.Div(
        [
            html.H2("Where the time goes"),
            drawn("shares", shares(view.parts["trace"].ranks), "Share of each kind of work, a bar a rank"),
            *(table(section) for section in tables_of(view.parts["trace"])[:1]),
            html.Div(others, id="together"),
            html.H2(f"Events of {name(artefacts[at])}"),
            choice("file", files, str(at), kept),
            choice("colour", [(one, f"colour by {one}") for one in COLOURS], colour, query),
            html.P("Drag to zoom in: short events come to sight. Double click for all.", className="hint"),
            dcc.Store(id="file", data=at),
            drawn("gantt", figure, "Events of a window, a row a stream or thread", zooms=True),
            html.Div(listed, id="events"),
            *(table(section) for section in tables_of(view.parts["trace"])[1:] if section.rows),
        ]
    )


def traces(view: View) -> list[Artefact]:
    """The files that were understood, in the order of the report."""
    paths = dict.fromkeys(account.path for account in view.parts["trace"].ranks)
    known = {str(artefact.path): artefact for artefact in view.run.artefacts}
    return [known[path] for path in paths]


def name(artefact: Artefact) -> str:
    rank = "unknown rank" if artefact.rank is None else f"rank {artefact.rank}"
    return rank if artefact.step is None else f"{rank}, step {artefact.step}"


def chosen(view: View, query: dict[str, str]) -> int:
    """The number of the file that the address names, else of the first that holds some of the steps in sight."""
    artefacts, steps = traces(view), read(query.get("steps", ""))
    holds = (i for i, one in enumerate(artefacts) if steps and trace_marks(view, one).place(steps))
    return number(query, "file", len(artefacts), next(holds, 0))


def colour_of(query: dict[str, str]) -> str:
    return query["colour"] if query.get("colour") in COLOURS else COLOURS[0]


def window(view: View, query: dict[str, str]) -> Window:
    """The nanoseconds of the chosen file that are in sight, and the steps that these are."""
    marks = trace_marks(view, traces(view)[chosen(view, query)])
    return window_of(query, span_of(query, LATEST_NS), marks)


def drawing(view: View, at: int, colour: str, span: Nanoseconds | None) -> tuple[Any, list[Any], list[Any]]:
    """What follows the window: the events of one file, all ranks beside each other, and the longest events."""
    artefact = traces(view)[at]
    blocks = views.timeline(artefact, view.options, span, WIDTH)
    whole = (0, int((blocks["start_ns"] + blocks["dur_ns"]).max()) if len(blocks) else 1)
    told, colours = coloured(artefact, view, blocks, colour)
    return gantt(blocks.assign(colour=told), span or whole, colours), together(view, at, span), [table(events(blocks))]


def coloured(artefact: Artefact, view: View, blocks: pd.DataFrame, colour: str) -> tuple[Sequence[str], dict[str, str]]:
    """What colour tells of each block, and the colour of each such thing, the same in every window."""
    if colour == "kind":
        return blocks["kind"].tolist(), KINDS
    known = views.lanes(artefact, view.options) if colour == "stream" else views.PHASES
    colours = {title: qualitative(i) for i, title in enumerate(known)} | {"other": KINDS[""]}
    if colour == "stream":
        return blocks["lane"].tolist(), colours
    return views.phases(artefact, blocks["row"].to_numpy(), view.options), colours


def together(view: View, at: int, span: Nanoseconds | None) -> list[Any]:
    """All ranks on one clock: what each does, and who comes late to which collective."""
    artefacts = traces(view)
    if len(artefacts) == 1:
        return []
    shift = shift_of(view, at)
    common = (span[0] + shift, span[1] + shift) if span else None
    over_time = views.fleet(artefacts, view.options, common)
    late = views.lateness(artefacts, view.options, COLLECTIVES)
    if common:
        late = late[(late["start_ns"] < common[1]) & (late["end_ns"] > common[0])]
    found = [
        html.H2("All ranks over time"),
        drawn("fleet", fleet(over_time), "What each rank does most of the time", zooms=True),
    ]
    if len(late):
        label = "How late each rank comes to the collectives with most waiting"
        found += [html.H2("Who comes late"), drawn("lateness", lateness(late), label), table(latest(late))]
    return found


def shift_of(view: View, at: int) -> int:
    """From the clock of a file to the common one, in ns."""
    shifts = views.axis(traces(view), view.options).set_index("path")["shift_ns"]
    return int(shifts[str(traces(view)[at].path)])


def install(app: Dash, view: View) -> None:
    """Zooming: the events of the window are asked for anew, so that short ones come to sight."""
    if "trace" not in view.parts:
        return

    # The chart of all ranks is not on every page, and Dash asks that all inputs of a callback are: hence two.
    for chart in ("gantt", "fleet"):

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
            shown = narrowed(view, at, wanted, common=ctx.triggered_id == "fleet")
            return *drawing(view, at, colour_of(asked(search)), shown.span), shown.told()


def narrowed(view: View, at: int, wanted: Span, *, common: bool) -> Window:
    """The window of a zoom: in ns of the file, or in ms of the common clock."""
    if wanted == ALL:
        return Window()
    low, high = (edge * 1e6 - shift_of(view, at) for edge in wanted) if common else wanted
    span = max(0, int(low)), int(high) + 1
    return Window(span, trace_marks(view, traces(view)[at]).within(span)) if span[0] < span[1] else Window()
