"""Memory over time of one rank's device; `?device=N` chooses it, zooming asks the server for the window."""

from typing import Any
from urllib.parse import urlencode

from dash import Dash, Input, Output, State, dcc, html, no_update

from analyzers.memory import views
from workbench.present.sections import categories, device_name, stacks, worst_first
from workbench.web.components.charts import timeline
from workbench.web.components.text import navigation, table
from workbench.web.view import View

BUCKETS = 1000


def layout(view: View, query: dict[str, str]) -> html.Div:
    if "memory" not in view.parts:
        return html.Div("This run holds no memory snapshots.")
    devices = worst_first(view.parts["memory"].devices)
    at = chosen(query, len(devices))
    device = devices[at]
    return html.Div(
        [
            navigation([link(i, at, d) for i, d in enumerate(devices)], "devices", "ranks"),
            html.H2(device_name(device).capitalize()),
            dcc.Graph(id="timeline", figure=timeline(window(view, device, None)), config={"displaylogo": False}),
            dcc.Store(id="device", data=at),
            table(categories(device)),
            table(stacks(device)),
        ]
    )


def chosen(query: dict[str, str], count: int) -> int:
    wanted = query.get("device", "0")
    return int(wanted) if wanted.isascii() and wanted.isdigit() and int(wanted) < count else 0


def link(i: int, at: int, device: Any) -> dcc.Link:
    style = "here" if i == at else ""
    return dcc.Link(device_name(device), href=f"/memory?{urlencode({'device': i})}", className=style)


def window(view: View, device: Any, span: tuple[int, int] | None) -> Any:
    """The reduced timeline of a window of entries, or of all."""
    artefact = view.snapshot(device.path)
    assert artefact is not None, "a device of the report comes from a file of the run"
    return views.timeline(artefact, view.options, device=device.device, buckets=BUCKETS, window=span)


def visible(relayout: dict[str, Any], full: tuple[int, int]) -> tuple[int, int] | None:
    """The entries that a zoom shows. Plotly spells one dragged, set by code and reset in three ways."""
    if "xaxis.range[0]" in relayout:
        low, high = float(relayout["xaxis.range[0]"]), float(relayout["xaxis.range[1]"])
    elif "xaxis.range" in relayout:
        low, high = map(float, relayout["xaxis.range"])
    else:
        return full if "xaxis.autorange" in relayout else None
    low, high = max(full[0], int(low)), min(full[1], int(high) + 1)
    return (low, high) if low < high else None


def install(app: Dash, view: View) -> None:
    """Zooming: the window is reduced anew on the server, so that every peak in it survives."""
    if "memory" not in view.parts:
        return
    devices = worst_first(view.parts["memory"].devices)

    @app.callback(
        Output("timeline", "figure"),
        Input("timeline", "relayoutData"),
        State("device", "data"),
        prevent_initial_call=True,
    )
    def zoom(relayout: dict[str, Any] | None, at: int) -> Any:
        device = devices[at]
        span = visible(relayout or {}, (0, device.entries))
        return no_update if span is None else timeline(window(view, device, span))
