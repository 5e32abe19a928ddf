"""Memory over time of one rank's device, and what is alive at an instant.

`?device=N` chooses the device, `entry=N` the instant, `by=` the grouping, `under=N` the subtree, `find=` what
stands out, `block=0x..` the address that is told of, `from=` and `to=` the window of entries, `steps=` the same in
steps, `colour=` what the timeline shows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from analyzers.memory import matrix, views
from workbench.present.tables.memory import category_tables, device_name, device_suffix, largest_stacks, worst_first
from workbench.present.tables.snapshot import step_peaks
from workbench.web.components.figure import Span, drawn, zoomed
from workbench.web.components.memory import ranks as rank_chart
from workbench.web.components.text import address, choice, table
from workbench.web.pages.memory_allocator import allocator
from workbench.web.pages.memory_instant import alive, around, since
from workbench.web.pages.memory_segments import segments
from workbench.web.pages.memory_timeline import COLOURS, chart, snapshot
from workbench.web.served_run import WHOLE, ServedRun, asked, instant, number, span_of
from workbench.web.step_marks import memory_marks
from workbench.web.step_window import OWN, Window, kept, window_of

GESTURES = {"timeline": "clickData", "tree": "clickData", "blocks": "clickData", "find": "value", "entry": "value"}
"""The parts of the page that a reader points at or types into, and what tells of it."""


def layout(served: ServedRun, query: dict[str, str]) -> html.Div:
    if "memory" not in served.parts:
        return html.Div("This run holds no memory snapshots.")
    devices = worst_first(served.parts["memory"].devices)
    device = devices[chosen(devices, query)]
    at, shown = instant(query, device), window(served, query)
    names = [(str(i), device_name(d)) for i, d in enumerate(devices)]
    return html.Div(
        [
            *together(devices),
            choice("device", names, str(devices.index(device)), {name: query[name] for name in OWN if name in query}),
            html.H2(device_name(device).capitalize()),
            choice("colour", [(name, f"colour by {name}") for name in COLOURS], at.colour, query),
            drawn(
                "timeline",
                chart(served, device, at, shown.span),
                f"Allocated memory by {at.colour} over time",
                zooms=True,
            ),
            html.P("Drag to zoom in, click to look at another instant, double click for all.", className="hint"),
            dcc.Store(id="device", data=devices.index(device)),
            *steps_of(served, device, shown),
            *around(device, at, query),
            *since(served, device, at, query),
            *alive(served, device, at, query),
            *segments(served, device, at, query),
            *allocator(served, device, at, query, shown.span),
            *map(table, category_tables(device, device_suffix(device, devices))),
            table(largest_stacks(device, device_suffix(device, devices))),
        ]
    )


def chosen(devices: Sequence[Any], query: dict[str, str]) -> int:
    """The number of the device that the address asks for."""
    return number(query, "device", len(devices), 0)


def window(served: ServedRun, query: dict[str, str]) -> Window:
    """The entries that the timeline shows, and the steps that these are."""
    devices = worst_first(served.parts["memory"].devices)
    device = devices[chosen(devices, query)]
    return window_of(query, span_of(query, device.entries), memory_marks(served, device))


def together(devices: Sequence[Any]) -> list[Any]:
    """Ranks beside each other, where there are several."""
    frame = matrix(devices)
    if len(frame) == 1:
        return []
    return [html.H2("Ranks at their peaks"), drawn("ranks", rank_chart(frame), "Bytes by rank and category")]


def steps_of(served: ServedRun, device: Any, shown: Window) -> Iterator[Any]:
    """The numbers behind the timeline, of the steps in sight."""
    frame = views.steps(snapshot(served, device), served.options, device.device)
    first, last = shown.span or (0, device.entries)
    if len(frame := frame[(frame["first_entry"] < last) & (frame["last_entry"] >= first)]):
        yield table(step_peaks(frame))


def install(app: Dash, served: ServedRun) -> None:
    """Zooming reduces the window anew on the server, so that every peak in it survives; clicks go to an address."""
    if "memory" not in served.parts:
        return
    devices = worst_first(served.parts["memory"].devices)

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
        shown = narrowed(served, device, wanted)
        return chart(served, device, instant(asked(search), device), shown.span), shown.told()

    @app.callback(
        Output("address", "search"),
        *(Input(part, told) for part, told in GESTURES.items()),
        State("address", "search"),
        State("window", "data"),
        prevent_initial_call=True,
    )
    def look(*given: Any) -> Any:
        """What is clicked or sought goes to the address, so that it can be shared."""
        *values, search, shown = given
        change = sought(str(ctx.triggered_id), dict(zip(GESTURES, values, strict=True)))
        query = asked(search)
        there = kept(query, shown) | change
        wanted = {name: str(value) for name, value in there.items() if value not in ("", WHOLE, None)}
        return no_update if wanted == query or not change else address(wanted)


def narrowed(served: ServedRun, device: Any, wanted: Span) -> Window:
    """The window of a zoom, which may reach beyond the entries."""
    low, high = max(0, int(max(wanted[0], 0))), int(min(wanted[1] + 1, device.entries))
    if low >= high or (low, high) == (0, device.entries):
        return Window()
    return Window((low, high), memory_marks(served, device).within((low, high)))


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
    if part == "blocks":
        return {"block": point["customdata"]}
    if part == "tree":
        return {"under": int(point["customdata"][0])}
    return {"entry": max(0, int(point["x"])), "under": WHOLE}
