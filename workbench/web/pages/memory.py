"""Memory over time of one rank's device, and what is alive at an instant.

`?device=N` chooses the device, `entry=N` the instant, `by=` the grouping, `under=N` the subtree, `find=` what
stands out, `from=` and `to=` the window of entries, `colour=` what the timeline stacks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from analyzers.memory import ranks, views
from analyzers.memory.block_map import block_map
from analyzers.run import Artefact
from workbench.palette import CATEGORIES, qualitative
from workbench.present.sections import device_name, kinds_held, stacks, worst_first
from workbench.present.table import Table
from workbench.present.table import table as table_of
from workbench.present.units import size
from workbench.web.components.figure import drawn, visible
from workbench.web.components.memory import block_chart, icicle, timeline
from workbench.web.components.memory import ranks as rank_chart
from workbench.web.components.text import choice, table
from workbench.web.view import View, asked, number, span_of

BUCKETS = 1000
CELLS, SEGMENTS = 200, 40
LEVELS = 2
NODES = 500
WHOLE = -1
GROUPINGS = ("module", "line", "stack", "category")
COLOURS = ("category", "pool", "stream")
FOUND = 40


def layout(view: View, query: dict[str, str]) -> html.Div:
    if "memory" not in view.parts:
        return html.Div("This run holds no memory snapshots.")
    devices = worst_first(view.parts["memory"].devices)
    at = number(query, "device", len(devices), 0)
    device, place = devices[at], instant(query, devices[at])
    span, entry = span_of(query, device.entries), place.entry
    names = [(str(i), device_name(d)) for i, d in enumerate(devices)]
    return html.Div(
        [
            *together(devices),
            choice("device", names, str(at)),
            html.H2(device_name(device).capitalize()),
            choice("colour", [(name, f"colour by {name}") for name in COLOURS], place.colour, query),
            drawn("timeline", chart(view, device, place, span), f"Allocated memory by {place.colour} over time"),
            html.P("Drag to zoom in, click to look at another instant, double click for all.", className="hint"),
            dcc.Store(id="device", data=at),
            html.H2(f"Alive after entry {entry}{remark(device, entry)}", id="instant"),
            choice("by", [(name, f"by {name}") for name in GROUPINGS], place.by, query),
            html.Label(
                [
                    "find a name, line, 0x address or >=64MiB ",
                    dcc.Input(id="find", type="search", value=place.find, debounce=True),
                ]
            ),
            *alive(view, device, place),
            *map(table, kinds_held(device)),
            table(stacks(device)),
        ]
    )


def remark(device: Any, entry: int) -> str:
    """What is special about an instant."""
    failed = device.oom if device.oom and device.oom.index == entry else None
    peak = " (the peak)" if entry == device.peak_index else ""
    return peak + (f" ({size(failed.requested_bytes)} more were asked for, which failed)" if failed else "")


def together(devices: Sequence[Any]) -> list[Any]:
    """Ranks beside each other, where there are several."""
    frame = ranks.matrix(devices)
    if len(frame) == 1:
        return []
    return [html.H2("Ranks at their peaks"), drawn("ranks", rank_chart(frame), "Bytes by rank and category")]


@dataclass(frozen=True)
class Place:
    """Where the page looks: the instant, the grouping, the subtree, what is sought, and the colours."""

    entry: int
    by: str
    under: int
    find: str
    colour: str


def instant(query: dict[str, str], device: Any) -> Place:
    """The place that the address names; what makes no sense there is passed over."""
    by, colour = query.get("by", ""), query.get("colour", "")
    return Place(
        number(query, "entry", device.entries, device.oom.index if device.oom else device.peak_index),
        by if by in GROUPINGS else GROUPINGS[0],
        number(query, "under", 1 << 40, WHOLE),
        query.get("find", "")[:100],
        colour if colour in COLOURS else COLOURS[0],
    )


def alive(view: View, device: Any, place: Place) -> list[Any]:
    """The tree of what is alive, with the largest of its nodes as a table, and the segments that hold it."""
    artefact, options, of = snapshot(view, device), view.options, device.device
    tree = views.tree(artefact, options, of, by=place.by, entry=place.entry)
    segments = views.segments(artefact, place.entry, options, of)
    blocks = views.state(artefact, place.entry, options, of)
    return [
        drawn("tree", icicle(*below(tree, place.under), place.find), f"What is alive, by {place.by}"),
        table(holders(tree)),
        *([table(found(views.search(artefact, place.find, options, of, FOUND)))] if place.find else []),
        drawn("blocks", block_chart(block_map(segments, blocks, CELLS, SEGMENTS)), "Segments and what fills them"),
    ]


def found(blocks: pd.DataFrame) -> Table:
    """The blocks that fit what is sought. An address finds all that were ever there: its life."""
    columns = (blocks[name] for name in ("address", "requested", "born", "died", "category", "frame"))
    rows = ((f"{at:#x}", size(requested), *rest) for at, requested, *rest in zip(*columns, strict=True))
    return table_of("Blocks found", "address | bytes> | from entry> | to entry> | category | line", rows, FOUND)


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


def snapshot(view: View, device: Any) -> Artefact:
    artefact = view.snapshot(device.path)
    assert artefact is not None, "a device of the report comes from a file of the run"
    return artefact


def chart(view: View, device: Any, place: Place, span: tuple[int, int] | None) -> go.Figure:
    """The reduced timeline of a window of entries, or of all."""
    artefact, options, of = snapshot(view, device), view.options, device.device
    frame = views.timeline(artefact, options, of, BUCKETS, span)
    if place.colour == COLOURS[0]:
        return timeline(frame, CATEGORIES, place.entry)
    placed = views.places(artefact, options, of, place.colour, BUCKETS, span)
    names = [str(name) for name in placed if name not in ("entry", "time_us", "allocated")]
    parts = {f"{place.colour} {name}" if name[:1].isdigit() else name: name for name in names}
    coloured = frame[["entry", "allocated", "oom"]].assign(**{title: placed[name] for title, name in parts.items()})
    return timeline(coloured, {title: qualitative(i) for i, title in enumerate(parts)}, place.entry)


def install(app: Dash, view: View) -> None:
    """Zooming reduces the window anew on the server, so that every peak in it survives; clicks go to an address."""
    if "memory" not in view.parts:
        return
    devices = worst_first(view.parts["memory"].devices)

    @app.callback(
        Output("timeline", "figure"),
        Input("timeline", "relayoutData"),
        State("device", "data"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def zoom(relayout: dict[str, Any] | None, at: int, search: str | None) -> Any:
        device = devices[at]
        span = visible(relayout or {}, (0, device.entries))
        if span is None:
            return no_update
        return chart(view, device, instant(asked(search), device), span)

    @app.callback(
        Output("address", "search"),
        Input("timeline", "clickData"),
        Input("tree", "clickData"),
        Input("find", "value"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def look(clicked: Any, node: Any, find: str | None, search: str | None) -> Any:
        """What is clicked or sought goes to the address, so that it can be shared."""
        change = sought(str(ctx.triggered_id), {"timeline": clicked, "tree": node, "find": find})
        query = asked(search)
        wanted = {name: str(value) for name, value in (query | change).items() if value not in ("", WHOLE)}
        return no_update if wanted == query else f"?{urlencode(wanted)}"


def sought(part: str, values: dict[str, Any]) -> dict[str, Any]:
    """What a gesture on a part of the page changes in the address."""
    value = values.get(part)
    if part == "find":
        return {"find": value or ""}
    if not value:
        return {}
    [point, *_] = value["points"]
    return (
        {"under": int(point["customdata"][0])} if part == "tree" else {"entry": max(0, int(point["x"])), "under": WHOLE}
    )
