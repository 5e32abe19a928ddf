"""The page on memory: memory over time of a rank's device, and the live memory at an instant.

`?device=N` selects the device, `entry=N` the instant, `by=` the grouping of the tree, `under=N` the node of the tree,
`find=` the text to highlight, `block=0x..` the address to describe, `from=` and `to=` the range of entries, `steps=`
the same range in steps, `colour=` the meaning of the timeline's colours.
"""

from collections.abc import Iterator, Mapping, Sequence

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from analyzers.memory import Device, matrix, views
from workbench.present.tables.memory import category_tables, device_name, device_suffix, largest_stacks, worst_first
from workbench.present.tables.snapshot import step_peaks
from workbench.step_axis import Span
from workbench.web.components.figure import drawn
from workbench.web.components.links import choice
from workbench.web.components.memory import rank_matrix
from workbench.web.components.text import table
from workbench.web.gestures import clicked_point, point_data, typed_text, whole_number, zoomed_range
from workbench.web.pages.elements import Elements
from workbench.web.pages.memory_allocator import allocator_section
from workbench.web.pages.memory_instant import changes_since, instant_controls, live_memory
from workbench.web.pages.memory_segments import segment_section
from workbench.web.pages.memory_timeline import chart
from workbench.web.query import COLOURS, NO_NODE, Query, address, memory_query, number, parse_query
from workbench.web.query import window as window_in
from workbench.web.served_run import ServedRun
from workbench.web.step_marks import memory_marks
from workbench.web.step_window import Window, own_window, window_of, window_state, with_window

GESTURES = {"timeline": "clickData", "tree": "clickData", "blocks": "clickData", "find": "value", "entry": "value"}
"""The parts of the page that a reader clicks or types into, and the property that changes."""
HINT = "Drag to zoom in, click to look at another instant, double-click to show everything."


def layout(served: ServedRun, query: Query) -> html.Div:
    """Return the page on the memory of one device."""
    if served.rooms.memory is None:
        return html.Div("This run has no memory snapshots.")
    devices = worst_first(served.rooms.memory.devices)
    position = device_position(devices, query)
    device = devices[position]
    at, shown, suffix = memory_query(query, device), window(served, query), device_suffix(device, devices)
    names = [(str(i), device_name(d)) for i, d in enumerate(devices)]
    return html.Div(
        [
            *ranks_section(devices),
            choice("device", names, str(position), own_window(query), "a rank and device"),
            html.H2(device_name(device).capitalize()),
            choice("colour", [(name, f"colour by {name}") for name in COLOURS], at.colour, query, "the colours"),
            drawn(
                "timeline",
                chart(served, device, at, shown.span),
                f"Allocated memory over time by {at.colour}",
                zooms=True,
            ),
            html.P(HINT, className="hint"),
            dcc.Store(id="device", data=position),
            *steps_section(served, device, shown),
            *instant_controls(device, at, query),
            *changes_since(served, device, at, query),
            *live_memory(served, device, at, query),
            *segment_section(served, device, at, query),
            *allocator_section(served, device, at, query, shown.span),
            *map(table, category_tables(device, suffix)),
            table(largest_stacks(device, suffix)),
        ]
    )


def device_position(devices: Sequence[Device], query: Query) -> int:
    """Return the index in `devices` of the device in the address, else 0."""
    return number(query, "device", len(devices), 0)


def window(served: ServedRun, query: Query) -> Window:
    """Return the range of trace entries in the timeline, and the corresponding steps."""
    devices = worst_first(served.rooms.memory.devices) if served.rooms.memory else []
    device = devices[device_position(devices, query)]
    return window_of(query, window_in(query, device.entries), memory_marks(served, device))


def ranks_section(devices: Sequence[Device]) -> Elements:
    """Return a chart of the peaks of all ranks; empty if there is only one rank."""
    frame = matrix(devices)
    if len(frame) == 1:
        return []
    return [html.H2("Peak memory of each rank"), drawn("ranks", rank_matrix(frame), "Bytes by rank and category")]


def steps_section(served: ServedRun, device: Device, shown: Window) -> Iterator[Component]:
    """Yield a table of the peak of each step in the timeline's range."""
    frame = views.steps(served.snapshot(device.path), served.options, device.device)
    first, last = shown.span or (0, device.entries)
    if len(frame := frame[(frame["first_entry"] < last) & (frame["last_entry"] >= first)]):
        yield table(step_peaks(frame))


def install(app: Dash, served: ServedRun) -> None:
    """Register the callbacks of the page.

    A zoom computes the timeline of the new range, so that every peak in it is drawn. A click or a typed text changes
    the address.
    """
    if served.rooms.memory is None:
        return
    devices = worst_first(served.rooms.memory.devices)

    @app.callback(
        Output("timeline", "figure"),
        Output("window", "data", allow_duplicate=True),
        Input("timeline", "relayoutData"),
        State("device", "data"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def zoom(relayout: object, position: object, search: object) -> object:
        if (wanted := zoomed_range(relayout)) is None:
            return no_update, no_update
        device = devices[whole_number(position) or 0]
        shown = zoomed_window(served, device, wanted)
        return chart(served, device, memory_query(parse_query(search), device), shown.span), shown.state()

    @app.callback(
        Output("address", "search"),
        *(Input(part, value) for part, value in GESTURES.items()),
        State("address", "search"),
        State("window", "data"),
        prevent_initial_call=True,
    )
    def follow_gesture(*given: object) -> object:
        *values, search, shown = given
        change = address_change(str(ctx.triggered_id), dict(zip(GESTURES, values, strict=True)))
        return new_address(parse_query(search), shown, change)


def new_address(query: Query, shown: object, change: Query) -> object:
    """Return the new query text for the page's address, or Dash's `no_update` if the address stays the same.

    It has the parameters in `query`, those of the range `shown` that the browser stores, and those in `change`. Later
    ones replace earlier ones of the same name.
    """
    changed = with_window(query, window_state(shown)) | change
    wanted = {name: value for name, value in changed.items() if value not in ("", str(NO_NODE))}
    return no_update if wanted == query or not change else address(wanted)


def zoomed_window(served: ServedRun, device: Device, wanted: Span) -> Window:
    """Return the entries and steps after a zoom to the range `wanted`, limited to existing entries."""
    # A drag may reach beyond either end of the axis, and a reset is infinite.
    low, high = max(0, int(max(wanted[0], 0))), int(min(wanted[1] + 1, device.entries))
    if low >= high or (low, high) == (0, device.entries):
        return Window()
    return Window((low, high), memory_marks(served, device).steps_within((low, high)))


def address_change(part: str, values: Mapping[str, object]) -> Query:
    """Return the query parameters to change after a click or input in `part` of the page; `values` has each part's new
    value.

    Selecting another instant also resets the selected node of the tree.
    """
    value = values.get(part)
    if part == "find":
        return {"find": typed_text(value)}
    if part == "entry":
        entry = whole_number(value)
        return {} if entry is None else {"entry": str(entry), "under": str(NO_NODE)}
    point = clicked_point(value)
    if point is None:
        return {}
    if part == "blocks":
        return {"block": point_data(point)}
    if part == "tree":
        return {"under": point_data(point, 0)}
    return {"entry": str(max(0, whole_number(point.get("x")) or 0)), "under": str(NO_NODE)}
