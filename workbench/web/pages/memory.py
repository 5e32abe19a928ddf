"""Memory over time of one rank's device, and what is alive at an instant.

`?device=N` chooses the device, `entry=N` the instant, `by=` the grouping, `under=N` the subtree, `find=` what
stands out, `from=` and `to=` the window of entries, `steps=` the same in steps, `colour=` what the timeline shows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from analyzers.memory import ranks, views
from analyzers.memory.block_map import block_map
from workbench.console import clean
from workbench.present.memory import by_step, found
from workbench.present.sections import categories, device_name, stacks, worst_first
from workbench.present.table import Table
from workbench.present.table import table as table_of
from workbench.present.units import size
from workbench.web.clocks import memory_marks
from workbench.web.components.figure import Span, drawn, zoomed
from workbench.web.components.memory import block_chart, icicle
from workbench.web.components.memory import ranks as rank_chart
from workbench.web.components.text import address, choice, place, table
from workbench.web.pages.timeline import COLOURS, chart, snapshot
from workbench.web.view import GROUPINGS, WHOLE, Instant, View, asked, instant, number, span_of
from workbench.web.window import OWN, Window, window_of

CELLS, SEGMENTS = 200, 40
LEVELS = 2
NODES = 500
FOUND = 40


def layout(view: View, query: dict[str, str]) -> html.Div:
    if "memory" not in view.parts:
        return html.Div("This run holds no memory snapshots.")
    devices = worst_first(view.parts["memory"].devices)
    device = devices[chosen(devices, query)]
    at, shown = instant(query, device), window(view, query)
    names = [(str(i), device_name(d)) for i, d in enumerate(devices)]
    return html.Div(
        [
            *together(devices),
            choice("device", names, str(devices.index(device)), {name: query[name] for name in OWN if name in query}),
            html.H2(device_name(device).capitalize()),
            choice("colour", [(name, f"colour by {name}") for name in COLOURS], at.colour, query),
            drawn(
                "timeline",
                chart(view, device, at, shown.span),
                f"Allocated memory by {at.colour} over time",
                zooms=True,
            ),
            html.P("Drag to zoom in, click to look at another instant, double click for all.", className="hint"),
            dcc.Store(id="device", data=devices.index(device)),
            *steps_of(view, device, shown),
            *around(device, at),
            *alive(view, device, at, query),
            table(categories(device)),
            table(stacks(device)),
        ]
    )


def chosen(devices: Sequence[Any], query: dict[str, str]) -> int:
    """The number of the device that the address asks for."""
    return number(query, "device", len(devices), 0)


def window(view: View, query: dict[str, str]) -> Window:
    """The entries that the timeline shows, and the steps that these are."""
    devices = worst_first(view.parts["memory"].devices)
    device = devices[chosen(devices, query)]
    return window_of(query, span_of(query, device.entries), memory_marks(view, device))


def together(devices: Sequence[Any]) -> list[Any]:
    """Ranks beside each other, where there are several."""
    frame = ranks.matrix(devices)
    if len(frame) == 1:
        return []
    return [html.H2("Ranks at their peaks"), drawn("ranks", rank_chart(frame), "Bytes by rank and category")]


def steps_of(view: View, device: Any, shown: Window) -> Iterator[Any]:
    """The numbers behind the timeline, of the steps in sight."""
    frame = views.steps(snapshot(view, device), view.options, device.device)
    first, last = shown.span or (0, device.entries)
    if len(frame := frame[(frame["first_entry"] < last) & (frame["last_entry"] >= first)]):
        yield table(by_step(frame))


def around(device: Any, at: Instant) -> list[Any]:
    """The instant, and the ways to another that need no mouse."""
    which = " (the peak)" if at.entry == device.peak_index else ""
    entry = dcc.Input(id="entry", type="number", value=at.entry, min=0, max=device.entries - 1, debounce=True)
    find = dcc.Input(id="find", type="search", value=at.find, debounce=True)
    return [
        html.H2(f"Alive after entry {at.entry}{which}", id="instant"),
        html.Div(
            [html.Label(["at entry ", entry]), html.Label(["find a name, line, 0x address or >=64MiB ", find])],
            className="tools",
        ),
    ]


def alive(view: View, device: Any, at: Instant, query: dict[str, str]) -> list[Any]:
    """The tree of what is alive, with the largest of its nodes as a table, and the segments that hold it."""
    artefact, options, of = snapshot(view, device), view.options, device.device
    tree = views.tree(artefact, options, of, by=at.by, entry=at.entry)
    segments = views.segments(artefact, at.entry, options, of)
    blocks = views.state(artefact, at.entry, options, of)
    return [
        choice("by", [(name, f"by {name}") for name in GROUPINGS], at.by, query),
        drawn("tree", icicle(*below(tree, at.under), at.find), f"What is alive, by {at.by}"),
        *path_of(tree, at.under),
        table(holders(tree)),
        *([table(found(views.search(artefact, at.find, options, of, FOUND), FOUND))] if at.find else []),
        drawn("blocks", block_chart(block_map(segments, blocks, CELLS, SEGMENTS)), "Segments and what fills them"),
    ]


def path_of(tree: pd.DataFrame, under: int) -> list[Any]:
    """What was clicked on, from the outermost to it: of a stack its frames, each a way to its source."""
    known = tree[tree["node"] == under]
    if not len(known):
        return []
    node = known.iloc[0]
    title = f"{size(int(node['bytes']))} in {node['blocks']} blocks, reached by"
    return [html.P(title, className="hint"), html.Ol([html.Li(place(clean(name))) for name in node["path"]], id="path")]


def below(tree: pd.DataFrame, under: int) -> tuple[pd.DataFrame, int]:
    """The largest nodes of the tree at and below `under`, at most `NODES`, and where a click on the first leads.

    A parent holds at least what a child holds and comes before it, so none is taken without its parents.
    """
    if under not in set(tree["node"]):
        return tree.nlargest(NODES, "bytes", keep="first"), WHOLE
    parents = dict(zip(tree["node"], tree["parent"], strict=True))
    inside = {under}
    for node, parent in parents.items():
        if parent in inside:
            inside.add(node)
    kept = tree[tree["node"].isin(inside)].nlargest(NODES, "bytes", keep="first")
    return kept.assign(parent=kept["parent"].where(kept["node"] != under, WHOLE)), parents[under]


def holders(tree: pd.DataFrame) -> Table:
    """The first levels of a tree, largest first."""
    columns = (tree[name] for name in ("path", "bytes", "blocks"))
    rows = (
        (" / ".join(path), size(held), blocks)
        for path, held, blocks in zip(*columns, strict=True)
        if len(path) <= LEVELS
    )
    return table_of("Largest holders", "what | bytes> | blocks>", rows)


def install(app: Dash, view: View) -> None:
    """Zooming reduces the window anew on the server, so that every peak in it survives; clicks go to an address."""
    if "memory" not in view.parts:
        return
    devices = worst_first(view.parts["memory"].devices)

    @app.callback(
        Output("timeline", "figure"),
        Output("window", "data", allow_duplicate=True),
        Input("timeline", "relayoutData"),
        State("device", "data"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def zoom(relayout: dict[str, Any] | None, at: int, search: str | None) -> Any:
        device = devices[at]
        if (wanted := zoomed(relayout)) is None:
            return no_update, no_update
        shown = narrowed(view, device, wanted)
        return chart(view, device, instant(asked(search), device), shown.span), shown.told()

    @app.callback(
        Output("address", "search"),
        Input("timeline", "clickData"),
        Input("tree", "clickData"),
        Input("find", "value"),
        Input("entry", "value"),
        State("address", "search"),
        State("window", "data"),
        prevent_initial_call=True,
    )
    def look(clicked: Any, node: Any, find: str | None, entry: Any, search: str | None, shown: dict[str, Any]) -> Any:
        """What is clicked or sought goes to the address, so that it can be shared."""
        change = sought(str(ctx.triggered_id), {"timeline": clicked, "tree": node, "find": find, "entry": entry})
        query = asked(search)
        # A zoom is written into the address bar behind the back of Dash, whose `search` is that of before.
        kept = {name: value for name, value in query.items() if name not in OWN} | shown["own"]
        wanted = {name: str(value) for name, value in (kept | change).items() if value not in ("", WHOLE, None)}
        return no_update if wanted == query or not change else address(wanted)


def narrowed(view: View, device: Any, wanted: Span) -> Window:
    """The window of a zoom, which may reach beyond the entries."""
    low, high = max(0, int(max(wanted[0], 0))), int(min(wanted[1] + 1, device.entries))
    if low >= high or (low, high) == (0, device.entries):
        return Window()
    return Window((low, high), memory_marks(view, device).within((low, high)))


def sought(part: str, values: dict[str, Any]) -> dict[str, Any]:
    """What a gesture on a part of the page changes in the address."""
    value = values.get(part)
    if part == "find":
        return {"find": value or ""}
    if part == "entry":
        return {} if value is None else {"entry": int(value), "under": WHOLE}
    if not value:
        return {}
    [point, *_] = value["points"]
    return (
        {"under": int(point["customdata"][0])} if part == "tree" else {"entry": max(0, int(point["x"])), "under": WHOLE}
    )
