"""What all figures share. They carry reduced data only: a few thousand points, each a real instant."""

from collections.abc import Mapping, Sequence
from html import escape
from math import inf
from typing import Any, TypeAlias

import plotly.graph_objects as go
from dash import dcc, html

from analyzers.words import size
from workbench.console import clean

GRID = {"gridcolor": "rgba(128,128,128,0.25)", "zerolinecolor": "rgba(128,128,128,0.5)"}
PLAIN: dict[str, Any] = {
    "template": {"layout": {"xaxis": GRID, "yaxis": GRID}},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"color": "#7a7a7a"},
    "margin": {"l": 70, "r": 10, "t": 30, "b": 40},
}

Figure: TypeAlias = go.Figure | dict[str, Any]
"""As a dictionary where it is drawn at each zoom: Plotly's own classes check every number, which takes longer."""
ABOVE = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
"""A legend where it takes nothing of the width."""
LONGEST = 400
KEYS = "left and right move it, plus and minus zoom, 0 shows all"
BAR: dcc.Graph.Config = {
    "displaylogo": False,
    "modeBarButtonsToRemove": ["sendChartToCloud", "lasso2d", "select2d", "autoScale2d"],
}
"""Plotly offers to upload a chart, to select points, which leads nowhere here, and to reset the axes twice."""


def plain(text: object) -> str:
    """Text of an artefact as text, and not too much of it: Plotly would take tags in it for markup."""
    return escape(clean(text)[:LONGEST], quote=False)


def byte_ticks(top: int) -> dict[str, Any]:
    """Ticks of an axis from 0 to `top` bytes, in the binary units of all other numbers."""
    every = 1 << max(0, (max(top, 1) - 1).bit_length() - 3)  # a power of two of which four to eight fit
    at = range(0, top + every, every)
    return {"tickvals": [*at], "ticktext": [size(count) for count in at]}


def figure_of(traces: Sequence[Any], layout: Mapping[str, Any]) -> dict[str, Any]:
    """A figure as Plotly's script takes it."""
    return {"data": [*traces], "layout": {**PLAIN, **layout}}


def key(name: str, colour: str) -> go.Scatter:
    """An entry of the legend for what is told by colour in a heat map, which has no legend of its own."""
    return go.Scatter(
        x=[None], y=[None], mode="markers", name=name, marker={"color": colour, "symbol": "square", "size": 11}
    )


def drawn(name: str, figure: Figure, label: str, *, zooms: bool = False) -> html.Figure:
    """A figure under `id=name`. A screen reader tells the label; the numbers stand in a table beside it.

    One that `zooms` also does so by keys, once it has the focus.
    """
    spoken: dict[str, Any] = {"role": "group", "aria-label": label}
    if zooms:
        spoken |= {"aria-label": f"{label}; {KEYS}", "data-zooms": "", "tabIndex": 0}
    return html.Figure(dcc.Graph(id=name, figure=figure, config=BAR), **spoken)


Span = tuple[float, float]
ALL = (-inf, inf)


def zoomed(relayout: dict[str, Any] | None) -> Span | None:
    """The stretch of the axis that a zoom shows. Plotly spells one dragged, set by code and reset in three ways."""
    change = relayout or {}
    if "xaxis.range[0]" in change:
        return float(change["xaxis.range[0]"]), float(change["xaxis.range[1]"])
    if "xaxis.range" in change:
        low, high = map(float, change["xaxis.range"])
        return low, high
    return ALL if "xaxis.autorange" in change else None
