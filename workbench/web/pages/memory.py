"""The page on memory: memory over time of a rank's device, and the live memory at an instant.

`?device=N` selects the device, `entry=N` the instant, `by=` the grouping of the tree, `under=N` the node of the tree,
`library=1` shows the frames of libraries in the tree by stack,
`find=` the text to highlight, `tab=` the tab below, `block=0x..` the address to describe, `from=` and `to=` the range
of entries, `steps=` the same range in steps, `colour=` the meaning of the timeline's colours, `axis=` its axis.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd
from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from analyzers.memory import Device, MemoryData, latest, matrix, views
from analyzers.run import Artefact
from analyzers.store import Options
from workbench.axes import Span
from workbench.present.tables.memory import (
    category_tables,
    device_name,
    device_suffix,
    largest_stacks,
    step_peaks,
    worst_first,
)
from workbench.rooms import EvidenceLink
from workbench.web.components.figure import Drawing, FigurePart, drawn, figure_of_tree, theme, zoom_of
from workbench.web.components.links import Elements, Tab, choice, not_recorded, picker, table, workspace
from workbench.web.components.memory import TimelineAxis, rank_lines, rank_matrix, timeline
from workbench.web.page import Page, clicked_point, point_data, typed_text, whole_number, zoomed_range
from workbench.web.pages.memory_instant import (
    changes_since,
    entry_section,
    inspector,
    live_memory,
    matches,
    range_section,
    segment_section,
)
from workbench.web.query import COLOURS, NO_NODE, MemoryQuery, Query, address, memory_query, number, parse_query
from workbench.web.query import window as window_in
from workbench.web.served_run import ServedRun
from workbench.web.step_window import ALL_STEPS, Window, memory_marks, own_window, window_of, window_state, with_window

BUCKETS = 600
"""The most points of the timeline: half of a screen's columns, because browsers draw slowly; no peak is lost."""
_RANK_BUCKETS, _RANKS = 400, 16
_NUMBERS = ("entry", "time_us", "allocated", "reserved", "pending", "oom")
"""The columns of a timeline that are not parts of the allocated bytes."""

_NOWHERE = -9.0
"""A position far left of the axis, where no cursor is drawn."""
_NO_HISTORY = "the moment of the snapshot, which has no history (torch.cuda.memory._record_memory_history records one)"

Entries = tuple[int, int]


def chart(served: ServedRun, device: Device, at: MemoryQuery, span: Entries | None) -> FigurePart:
    """Return the memory timeline of the trace entries in `span`, or of all entries if `span` is None."""
    if not device.entries:
        return moment(served, device)
    axis = _timeline_axis(served, device, at)
    frame = views.timeline(served.snapshot(device.path), served.options, device.device, BUCKETS, span)
    frame = frame.assign(x=axis.positions(frame["entry"]))
    first, last = span or (0, device.entries)
    started = {step: entry for step, entry in memory_marks(served, device).starts() if first <= entry < last}
    starts = [*zip(started, axis.positions(started.values()), strict=True)]
    [cursor] = axis.positions([at.entry])
    if at.colour == "rank":
        others = other_ranks(served, device, (first, last))
        placed = {name: other.assign(x=axis.positions(other["entry"])) for name, other in others.items()}
        return rank_lines(frame, placed, starts, cursor, axis)
    if at.colour == "category":
        return timeline(frame, theme().categories, starts, cursor, axis)
    parts = _bytes_by(served, device, at.colour, span)
    layers = frame[["entry", "x", "allocated", "oom"]].assign(**parts)
    return timeline(layers, {title: theme().nth(i) for i, title in enumerate(parts)}, starts, cursor, axis)


def moment(served: ServedRun, device: Device) -> FigurePart:
    """Return a chart of a snapshot without trace entries: the memory at one instant, as horizontal layers."""
    frame = views.timeline(served.snapshot(device.path), served.options, device.device).iloc[[0, 0]]
    figure = timeline(frame.assign(x=[0.0, 1.0]), theme().categories, [], _NOWHERE, TimelineAxis(np.zeros(0, int)))
    layout = figure["layout"]
    assert isinstance(layout, dict)
    axis = {"title": {"text": _NO_HISTORY, "standoff": 8}, "showticklabels": False, "ticks": "", "fixedrange": True}
    return {**figure, "layout": {**layout, "xaxis": axis, "annotations": []}}


def _timeline_axis(served: ServedRun, device: Device, at: MemoryQuery) -> TimelineAxis:
    """Return the axis that the page's address selects: time (if the trace has times) or trace entries."""
    artefact = served.snapshot(device.path)
    return _time_axis(artefact, served.options, device.device) if at.axis == "time" else TimelineAxis(np.zeros(0, int))


# Eight bytes for each entry of the trace.
@lru_cache(4)
def _time_axis(artefact: Artefact, options: Options, device: int) -> TimelineAxis:
    return TimelineAxis(views.times(artefact, options, device))


def last_steps(served: ServedRun, device: Device, steps: int) -> Entries | None:
    """Return the trace entries from the start of the last `steps` steps to the end of the trace.

    The last of these steps is the one in which an allocation failed. Return None if no allocation failed, or if the
    trace has not more than `steps` steps up to the failure.
    """
    if device.oom is None:
        return None
    starts = [int(entry) for _, entry in memory_marks(served, device).starts() if entry <= device.oom.index]
    return (starts[-steps], device.entries) if len(starts) > steps else None


def _bytes_by(served: ServedRun, device: Device, colour: str, span: Entries | None) -> "Mapping[str, pd.Series[int]]":
    frame = views.timeline_by(served.snapshot(device.path), served.options, device.device, colour, BUCKETS, span)
    names = [str(name) for name in frame if name not in _NUMBERS]
    return {f"{colour} {name}" if name[:1].isdigit() else name: frame[name] for name in names}


def other_ranks(served: ServedRun, device: Device, span: Entries) -> dict[str, pd.DataFrame]:
    """Return {name of another rank: its memory timeline} for the training steps in `span`.

    `span` is a range of trace entries of this device. The timelines of other ranks are shifted so that their steps
    start at the same positions of the axis as the steps of this device.
    """
    mine, found = memory_marks(served, device), dict[str, pd.DataFrame]()
    steps = mine.steps_within(span)
    for other in latest(data.devices)[: _RANKS + 1] if (data := served.data(MemoryData)) else ():
        theirs = memory_marks(served, other)
        window = theirs.span_of(steps) if steps else None
        # This device is drawn in front already; a rank without these steps has nothing to compare.
        if (other.rank, other.device) == (device.rank, device.device) or window is None:
            continue
        frame = views.timeline(served.snapshot(other.path), served.options, other.device, _RANK_BUCKETS, window)
        found[f"rank {other.rank}"] = frame.assign(entry=mine.to_positions(theirs.to_steps(frame["entry"])))
    return found


_GESTURES = {"timeline": "clickData", "find": "value", "entry": "value"}
"""{part of the page that a reader clicks or types into: the property that then changes}; see `_IN_TABS`, too."""
_IN_TABS = ("tree", "blocks")
"""The charts in tabs that can be clicked; a chart is on the page only while its tab is shown."""
_KEPT_ON_ANOTHER_DEVICE = ("colour", "axis", "tab", "by", "library", "find")
_COMPARED_STEPS = 2
"""The number of steps in the chart of a failed allocation: the failing step, and one to compare it with."""
_HINT = "Drag: zoom. Click: select an instant. Double-click: everything."


def layout(served: ServedRun, query: Query) -> html.Div:
    data = served.data(MemoryData)
    if data is None:
        return not_recorded(
            "memory snapshots",
            "One is written if CUDA runs out of memory in a job started with",
            "workbench launch -- COMMAND",
        )
    devices = worst_first(data.devices)
    position = _device_position(devices, query)
    device = devices[position]
    at, shown = memory_query(query, device), window(served, query)
    label = f"Allocated memory over time by {at.colour}"
    figure = chart(served, device, at, shown.span)
    return workspace(
        toolbar(devices, position, at, query),
        [drawn("timeline", figure, label, zooms=True, fills=True), dcc.Store(id="device", data=position)],
        inspector(served, device, at, query),
        tabs(served, device, at, query, shown),
        query,
    )


def toolbar(devices: Sequence[Device], position: int, at: MemoryQuery, query: Query) -> Elements:
    """Return the controls above the timeline, which select the device and what colours stand for."""
    names = [(str(i), device_name(device).capitalize()) for i, device in enumerate(devices)]
    kept = own_window(query) | {name: value for name, value in query.items() if name in _KEPT_ON_ANOTHER_DEVICE}
    chosen: Elements = [
        html.H2(device_name(devices[position]).capitalize(), className="spoken" if len(names) > 1 else ""),
        picker("device", names, str(position), kept, "a rank and device") if len(names) > 1 else None,
    ]
    # There is one moment, and nothing to zoom into.
    if not devices[position].entries:
        return chosen
    return [
        *chosen,
        choice("colour", [(name, name) for name in COLOURS], at.colour, query, "the colours"),
        choice("axis", [("time", "seconds"), ("entry", "trace entries")], at.axis, query, "the axis"),
        html.P(_HINT, className="hint"),
    ]


def tabs(served: ServedRun, device: Device, at: MemoryQuery, query: Query, shown: Window) -> Sequence[Tab]:
    """Return the tabs below the timeline; a search or comparison that the address asks for comes first."""
    devices = served.devices
    asked = [
        *([Tab("found", "Matching blocks", lambda: matches(served, device, at, query))] if at.find else []),
        *(
            [Tab("changes", "Changes", lambda: changes_since(served, device, at, query))]
            if at.since is not None
            else []
        ),
    ]
    suffix = device_suffix(device, devices)
    reported = [*category_tables(device, suffix), largest_stacks(device, suffix)]
    return [
        *asked,
        Tab("tree", "Live memory", lambda: live_memory(served, device, at, query)),
        Tab("steps", "Peak of each step", lambda: _steps_section(served, device, shown)),
        Tab("segments", "Segments", lambda: segment_section(served, device, at, query)),
        Tab("ranges", "Reserved ranges", lambda: range_section(served, device, query, shown.span)),
        Tab("entries", "Trace entries", lambda: entry_section(served, device, at, query)),
        *([Tab("ranks", "All ranks", lambda: _ranks_section(devices))] if len(matrix(devices)) > 1 else []),
        Tab("peak", "At the peak", lambda: [table(section) for section in reported if section.rows]),
    ]


def _device_position(devices: Sequence[Device], query: Query) -> int:
    return number(query, "device", len(devices), 0)


def window(served: ServedRun, query: Query) -> Window:
    """Return the range of trace entries that the timeline shows, and the corresponding steps.

    Without a range in the address, return the step in which an allocation failed, else everything.
    """
    devices = served.devices
    device = devices[_device_position(devices, query)]
    if query.get("steps") == ALL_STEPS and "from" not in query:
        return Window(everything=True)
    if not own_window(query) and (failed := last_steps(served, device, 1)):
        return Window(failed, memory_marks(served, device).steps_within(failed))
    return window_of(query, window_in(query, device.entries), memory_marks(served, device))


def _ranks_section(devices: Sequence[Device]) -> Elements:
    label = "Peak memory of each rank by category"
    return [html.H2(label), drawn("ranks", rank_matrix(matrix(devices)), label)]


def _steps_section(served: ServedRun, device: Device, shown: Window) -> Iterator[Component]:
    frame = views.steps(served.snapshot(device.path), served.options, device.device)
    first, last = shown.span or (0, device.entries)
    if len(frame := frame[(frame["first_entry"] < last) & (frame["last_entry"] >= first)]):
        yield table(step_peaks(frame))


def install(app: Dash, served: ServedRun) -> None:
    """Register the callbacks of the page.

    A zoom reads the timeline of the new range, so that every peak in it is drawn. A click or a typed text changes the
    address.
    """
    data = served.data(MemoryData)
    if data is None:
        return
    devices = worst_first(data.devices)

    @app.callback(
        Output("timeline", "figure"),
        Output("window", "data", allow_duplicate=True),
        Input(zoom_of("timeline"), "data"),
        State("device", "data"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def zoom(relayout: object, position: object, search: object) -> object:
        if (wanted := zoomed_range(relayout)) is None:
            return no_update, no_update
        device = devices[whole_number(position) or 0]
        at = memory_query(parse_query(search), device)
        shown = _zoomed_window(served, device, _timeline_axis(served, device, at).entries(wanted))
        return chart(served, device, at, shown.span), shown.state()

    @app.callback(
        Output("asked", "data"),
        *(Input(part, value) for part, value in _GESTURES.items()),
        State("address", "search"),
        State("window", "data"),
        prevent_initial_call=True,
    )
    def follow_gesture(*given: object) -> object:
        *values, search, shown = given
        change = _address_change(str(ctx.triggered_id), dict(zip(_GESTURES, values, strict=True)))
        return _new_address(parse_query(search), shown, change)

    fit, stored = ClientsideFunction("tree", "fit"), Input(figure_of_tree("tree"), "data")
    app.clientside_callback(fit, Output("tree", "figure"), stored)  # type: ignore[no-untyped-call]
    # A chart in a tab is not always on the page, and Dash requires all inputs of a callback to exist.
    for chart_in_tab in _IN_TABS:
        _install_click(app, chart_in_tab)


def _install_click(app: Dash, part: str) -> None:
    """Register the callback of clicks on the chart with the id `part`, which is in a tab."""

    @app.callback(
        Output("asked", "data", allow_duplicate=True),
        Input(part, "clickData"),
        State("address", "search"),
        State("window", "data"),
        prevent_initial_call=True,
    )
    def follow_click(click: object, search: object, shown: object) -> object:
        return _new_address(parse_query(search), shown, _address_change(part, {part: click}))


def _new_address(query: Query, shown: object, change: Query) -> object:
    """Return the new query for the page's address as text, or Dash's `no_update` if the address stays the same.

    It has the parameters in `query`, those of the range `shown` that the browser stores, and those in `change`. Later
    ones replace earlier ones of the same name.
    """
    changed = with_window(query, window_state(shown)) | change
    wanted = {name: value for name, value in changed.items() if value not in ("", str(NO_NODE))}
    return no_update if wanted == query or not change else address(wanted)


def _zoomed_window(served: ServedRun, device: Device, wanted: Span) -> Window:
    """Return the entries and steps after a zoom to the range `wanted` of entries, limited to existing entries."""
    # A drag may reach beyond either end of the axis, and a reset is infinite.
    low, high = max(0, int(max(wanted[0], 0))), int(min(wanted[1] + 1, device.entries))
    if low >= high or (low, high) == (0, device.entries):
        return Window(everything=device.oom is not None)
    return Window((low, high), memory_marks(served, device).steps_within((low, high)))


def _address_change(part: str, values: Mapping[str, object]) -> Query:
    """Return the query parameters to change after a click on or an input in `part`, an element of the page.

    `values` has the new value of each element. Selecting another instant also resets the selected node of the tree.
    """
    value = values.get(part)
    if part == "find":
        return {"find": typed_text(value), "tab": "found" if value else ""}
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
    return {"entry": str(max(0, whole_number(point.get("customdata")) or 0)), "under": str(NO_NODE)}


def _evidence_query(served: ServedRun, at: EvidenceLink) -> Query:
    """Return the query of the memory page for a finding, which selects the snapshot of the finding's rank and step.

    For a leak, the query also selects two instants to compare: the end of the first step in the snapshot and the end of
    the last step.
    """
    devices = served.devices
    same_rank = [i for i, device in enumerate(devices) if at.rank in (None, device.rank)] or [0]
    # A rank has a snapshot for each recorded step: the one of the finding shows what it is about.
    number = next((i for i in same_rank if devices[i].step == at.step), same_rank[0])
    query = {"device": str(number)}
    if at.part != "changes" or not (steps := devices[number].steps):
        return query
    return query | {"entry": str(steps[-1].last_entry), "since": str(steps[0].last_entry)}


def _evidence_drawing(served: ServedRun, at: EvidenceLink) -> Drawing | None:
    devices = served.devices
    if not devices:
        return None
    query = _evidence_query(served, at)
    device = devices[int(query["device"])]
    figure = chart(served, device, memory_query(query, device), last_steps(served, device, _COMPARED_STEPS))
    return f"Allocated memory by category, {device_name(device)}", figure


PAGE = Page(
    "Memory",
    layout,
    window,
    install,
    _evidence_query,
    _evidence_drawing,
    {"blocks": "segments", "ranks": "ranks"},
)
