"""What all figures share. They carry reduced data only: a few thousand points, each a real instant."""

from html import escape
from typing import Any

import plotly.graph_objects as go
from dash import dcc, html

from workbench.console import clean

GRID = {"gridcolor": "rgba(128,128,128,0.25)", "zerolinecolor": "rgba(128,128,128,0.5)"}
PLAIN = {
    "template": {"layout": {"xaxis": GRID, "yaxis": GRID}},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"color": "#7a7a7a"},
    "margin": {"l": 70, "r": 10, "t": 30, "b": 40},
}

BAR: dcc.Graph.Config = {"displaylogo": False}


def plain(text: object) -> str:
    """Text of an artefact as text: Plotly would take tags in it for markup."""
    return escape(clean(text), quote=False)


def drawn(name: str, figure: go.Figure, label: str) -> html.Figure:
    """A figure under `id=name`. A screen reader tells the label; the numbers stand in a table beside it."""
    spoken: dict[str, Any] = {"role": "group", "aria-label": label}
    return html.Figure(dcc.Graph(id=name, figure=figure, config=BAR), **spoken)


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
