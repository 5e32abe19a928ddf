"""Memory over time of one rank's device, and what is alive at an instant.

`?device=N` chooses the device, `entry=N` the instant and `by=` the grouping; zooming asks the server for the window.
"""

from typing import Any
from urllib.parse import parse_qsl, urlencode

import pandas as pd
from dash import Dash, Input, Output, State, dcc, html, no_update

from analyzers.memory import views
from analyzers.memory.block_map import block_map
from analyzers.run import Artefact
from workbench.present.sections import categories, device_name, stacks, worst_first
from workbench.present.table import Table
from workbench.present.table import table as table_of
from workbench.present.units import size
from workbench.web.components.charts import block_chart, icicle, timeline
from workbench.web.components.text import navigation, table
from workbench.web.view import View

BUCKETS = 1000
CELLS, SEGMENTS = 200, 40
DIGITS = 12
LEVELS = 2
GROUPINGS = ("module", "line", "stack", "category")
PLAIN_BAR: dcc.Graph.Config = {"displaylogo": False}


def layout(view: View, query: dict[str, str]) -> html.Div:
    if "memory" not in view.parts:
        return html.Div("This run holds no memory snapshots.")
    devices = worst_first(view.parts["memory"].devices)
    at = number(query, "device", len(devices), 0)
    device = devices[at]
    entry = number(query, "entry", device.entries, device.peak_index)
    by = query.get("by", "") if query.get("by") in GROUPINGS else GROUPINGS[0]
    place = {"device": at, "entry": entry, "by": by}
    return html.Div(
        [
            navigation(
                [link(device_name(d), {"device": i}, i == at) for i, d in enumerate(devices)], "devices", "ranks"
            ),
            html.H2(device_name(device).capitalize()),
            dcc.Graph(id="timeline", figure=timeline(window(view, device, None), entry), config=PLAIN_BAR),
            dcc.Store(id="device", data=at),
            html.H2(f"Alive after entry {entry}{' (the peak)' if entry == device.peak_index else ''}", id="instant"),
            html.P("Click the timeline to look at another instant.", className="label"),
            navigation([link(f"by {name}", place | {"by": name}, name == by) for name in GROUPINGS], "grouping"),
            *alive(view, device, entry, by),
            table(categories(device)),
            table(stacks(device)),
        ]
    )


def alive(view: View, device: Any, entry: int, by: str) -> list[Any]:
    """The tree of what is alive, with the largest of its nodes as a table, and the segments that hold it."""
    artefact, options, of = snapshot(view, device), view.options, device.device
    tree = views.tree(artefact, options, of, by=by, entry=entry)
    segments, blocks = views.segments(artefact, entry, options, of), views.state(artefact, entry, options, of)
    return [
        dcc.Graph(id="tree", figure=icicle(tree), config=PLAIN_BAR),
        table(holders(tree)),
        dcc.Graph(id="blocks", figure=block_chart(block_map(segments, blocks, CELLS, SEGMENTS)), config=PLAIN_BAR),
    ]


def holders(tree: pd.DataFrame) -> Table:
    """The first levels of a tree, largest first."""
    columns = (tree[name] for name in ("path", "bytes", "blocks"))
    rows = (
        (" / ".join(path), size(held), blocks)
        for path, held, blocks in zip(*columns, strict=True)
        if len(path) <= LEVELS
    )
    return table_of("Largest holders", "what | bytes> | blocks>", rows)


def number(query: dict[str, str], name: str, beyond: int, otherwise: int) -> int:
    """A number of the address below `beyond`; whatever else stands there is passed over."""
    wanted = query.get(name, "")
    fits = wanted.isascii() and wanted.isdigit() and len(wanted) < DIGITS and int(wanted) < beyond
    return int(wanted) if fits else otherwise


def link(text: str, query: dict[str, Any], here: bool) -> dcc.Link:
    return dcc.Link(text, href=f"/memory?{urlencode(query)}", className="here" if here else "")


def snapshot(view: View, device: Any) -> Artefact:
    artefact = view.snapshot(device.path)
    assert artefact is not None, "a device of the report comes from a file of the run"
    return artefact


def window(view: View, device: Any, span: tuple[int, int] | None) -> Any:
    """The reduced timeline of a window of entries, or of all."""
    return views.timeline(snapshot(view, device), view.options, device=device.device, buckets=BUCKETS, window=span)


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

    @app.callback(
        Output("address", "search"),
        Input("timeline", "clickData"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def look(clicked: dict[str, Any] | None, search: str | None) -> Any:
        """A click goes to the address of that instant, so that it can be shared."""
        if not clicked:
            return no_update
        query = dict(parse_qsl((search or "").lstrip("?")))
        return f"?{urlencode(query | {'entry': max(0, int(clicked['points'][0]['x']))})}"
