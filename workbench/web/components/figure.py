"""Functions that all figures of the dashboard use.

A figure holds at most a few thousand points, each of which was really recorded.
"""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, isfinite
from typing import Any, TypeAlias, TypedDict

import plotly.graph_objects as go
from dash import dcc, html
from flask import has_request_context, request

from analyzers.words import size, tick_durations
from workbench.axes import byte_tick_values, tick_distance
from workbench.colours import LIGHT, THEMES, Theme
from workbench.console import clean

COOKIE, _NARROW_COOKIE = "workbench-theme", "workbench-narrow"


def theme() -> Theme:
    named = request.cookies.get(COOKIE, "") if has_request_context() else ""
    return THEMES.get(named, LIGHT)


def narrow() -> bool:
    return has_request_context() and request.cookies.get(_NARROW_COOKIE) == "yes"


FigurePart = dict[str, object]
"""A Plotly trace, axis or layout as a dict, from which Plotly's script in the browser draws it."""
Figure: TypeAlias = go.Figure | FigurePart
"""A figure as Plotly's class, or as a dict, which is faster to create, for charts that are drawn at each zoom."""


Drawing = tuple[str, Figure]
"""A caption and a figure."""


class DurationTicks(TypedDict):
    """Ticks of an axis: their positions and labels."""

    tickvals: list[float]
    ticktext: list[str]


MARGIN = {"l": 70, "r": 10, "t": 30, "b": 40}
LOW = {**MARGIN, "t": 24, "b": 24}
"""The margins of charts that are drawn one above the other and have the same x axis."""
ABOVE: FigurePart = {
    "orientation": "h",
    "y": 1.02,
    "yanchor": "bottom",
    "itemclick": "toggleothers",
    "itemdoubleclick": "toggle",
}
"""The layout of a legend above the chart, where it takes none of the chart's width.

A click shows one series alone, and a second click all of them again; with Ctrl or Shift it hides or shows one series.
"""
NAMES_ABOVE: FigurePart = {**ABOVE, "itemclick": False, "itemdoubleclick": False}
"""The layout of a legend that only names colours, where a click has no series to hide."""
COLLECTIVES_ACROSS: FigurePart = {
    "type": "category",
    "title": {"text": "collective", "standoff": 12},
    "automargin": True,
}
"""The x axis of a chart with a column for each collective.

Its labels are declared to be categories, because Plotly would take a label such as #3 for a number.
"""
_NO_AXES: FigurePart = {"xaxis": {"visible": False}, "yaxis": {"visible": False}}
"""The layout of a chart that is not drawn yet; Plotly would draw axes into it."""
LONGEST = 400
KEYS = "Arrow keys move it, plus and minus zoom, 0 shows everything."
_TREE_KEYS = "Arrow keys go to the next part, Enter zooms into it, Backspace zooms out."
_BAR: dcc.Graph.Config = {
    "displaylogo": False,
    "modeBarButtonsToRemove": ["sendChartToCloud", "lasso2d", "select2d", "autoScale2d"],
}
"""The options of a chart's buttons; those for uploading, for selecting points and for a second reset are removed."""
MOST_TICKS, MOST_BESIDE_TICKS, _MOST_NARROW_TICKS = 8, 5, 4
"""The most ticks of an axis, of an axis beside a table, and of an axis in a window as narrow as a phone's.

More labels would overlap or be turned.
"""


def plain_layout() -> FigurePart:
    """Return the Plotly layout that all charts share, in the colours of the page's theme."""
    hues = theme().hues
    line = {"gridcolor": hues["edge"], "linecolor": hues["rule"], "zerolinecolor": hues["rule"]}
    axis = {**line, "tickcolor": hues["rule"], "title": {"font": {"size": 11}}}
    hover = {"bgcolor": hues["panel"], "bordercolor": hues["rule"], "font": {"color": hues["ink"], "size": 12}}
    return {
        "template": {"layout": {"xaxis": axis | {"showgrid": False, "ticks": "outside"}, "yaxis": axis}},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": hues["soft"], "size": 11, "family": "system-ui, sans-serif"},
        "hoverlabel": hover,
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": hues["rule"], "activecolor": hues["ink"]},
        "margin": MARGIN,
    }


def heat_scale() -> list[tuple[float, str]]:
    heat = theme().heat
    return [(i / (len(heat) - 1), shade) for i, shade in enumerate(heat)]


def plain(text: object) -> str:
    """Return `text` shortened and escaped; it may come from a hostile file, and Plotly would interpret tags in it."""
    return escape(clean(text)[:LONGEST], quote=False)


def byte_ticks(top: int, most: int = MOST_TICKS + 1) -> FigurePart:
    """Return at most `most` ticks of an axis from 0 to `top` bytes, at round values of binary units such as MiB."""
    at = byte_tick_values(top)
    at = at[:: 1 if len(at) <= most else 2]
    return {"tickvals": [*at], "ticktext": [size(count) for count in at]}


def byte_axis(top: float) -> FigurePart:
    return {"rangemode": "tozero", **(byte_ticks(int(top)) if isfinite(top) else {})}


def duration_ticks(low_ns: float, high_ns: float, most: int = MOST_TICKS) -> DurationTicks:
    """Return at most `most` ticks of an axis in nanoseconds, labelled in ns, µs, ms or s, in this range.

    Plotly itself would write "100M" for 100 ms.
    """
    every = tick_distance(high_ns - low_ns, most)
    at = [number * every for number in range(ceil(low_ns / every), floor(high_ns / every) + 1)]
    return {"tickvals": at, "ticktext": tick_durations(at, every, high_ns - low_ns)}


def ticks_across(low_ns: float, high_ns: float, most: int = MOST_TICKS) -> DurationTicks:
    """Return at most `most` ticks of a horizontal axis in nanoseconds, fewer in a window as narrow as a phone's."""
    return duration_ticks(low_ns, high_ns, min(most, _MOST_NARROW_TICKS) if narrow() else most)


def figure_of(traces: Sequence[Mapping[str, object]], layout: Mapping[str, object]) -> FigurePart:
    return {"data": [*traces], "layout": {**plain_layout(), **layout}}


def legend_entry(name: str, colour: str) -> go.Scatter:
    return go.Scatter(
        x=[None], y=[None], mode="markers", name=name, marker={"color": colour, "symbol": "square", "size": 11}
    )


def drawn(
    name: str,
    figure: Figure,
    label: str,
    *,
    zooms: bool = False,
    fills: bool = False,
    bar: bool = True,
    tree: bool = False,
    crosshair: bool = False,
) -> html.Figure:
    """Return a figure as HTML with the id `name`; `label` is read by screen readers.

    With `zooms`, the figure can be zoomed by mouse, and by keys while it has the focus; the browser stores each zoom
    under the id `zoom_of(name)`. With `fills`, it is as high as the space that the page has for it. With `bar`,
    Plotly's buttons appear in its upper right corner while the mouse is over it, and cover what is there. With `tree`,
    keys move from part to part of the tree while it has the focus, and the browser draws it once it has shortened the
    names in it to their room: the figure is stored under the id `figure_of_tree(name)`. All figures of a page
    with a `crosshair` show the place on the x axis that the mouse points at in one of them.
    """
    spoken: dict[str, Any] = {"role": "group", "aria-label": label}
    if zooms:
        spoken |= {"aria-label": f"{label}. {KEYS}", "data-zooms": "", "tabIndex": 0}
    if tree:
        spoken |= {"aria-label": f"{label}. {_TREE_KEYS}", "data-tree": "", "tabIndex": 0}
    if crosshair:
        spoken |= {"data-crosshair": ""}
    size: dict[str, Any] = {"responsive": True, "className": "fills"} if fills else {}
    shown = {"layout": {**_NO_AXES, **_height_of(figure)}} if tree else figure
    graph = dcc.Graph(id=name, figure=shown, config=_BAR if bar else {"displayModeBar": False}, **size)
    stores = [dcc.Store(id=zoom_of(name))] if zooms else []
    stores += [dcc.Store(id=figure_of_tree(name), data=figure)] if tree else []
    return html.Figure([graph, *stores] if stores else graph, **spoken)


def _height_of(figure: Figure) -> FigurePart:
    layout: Any = figure["layout"]
    return {name: layout[name] for name in ("height", "paper_bgcolor", "plot_bgcolor")}


def figure_of_tree(chart: str) -> str:
    return f"{chart}-figure"


def zoom_of(chart: str) -> str:
    """Return the id of the store in which the browser puts the last zoom of a chart, in Plotly's format.

    Dash's own property for it, `relayoutData`, also takes changes of the size: one that comes right after a zoom would
    replace it before the server is asked.
    """
    return f"{chart}-zoom"
