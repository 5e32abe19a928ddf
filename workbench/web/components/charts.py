"""Figures. They carry reduced data only: a few thousand points, each a real instant."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.palette import CATEGORIES, STATE_SIGNS, STATES, STATUSES

PLAIN = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"color": "#7a7a7a"},
    "margin": {"l": 70, "r": 10, "t": 30, "b": 40},
}


def timeline(frame: pd.DataFrame) -> go.Figure:
    """Stacked memory by category over trace entries, the peak and each failed allocation marked."""
    figure = go.Figure(layout=PLAIN)
    for name in CATEGORIES:
        if name in frame and frame[name].any():
            figure.add_trace(layer(name, frame))
    figure.update_layout(
        xaxis={"title": "trace entry"},
        yaxis={"title": "bytes", "tickformat": ".3s", "rangemode": "tozero"},
        legend={"orientation": "h", "y": 1.12},
        hovermode="x unified",
        uirevision="timeline",
        shapes=[mark(entry, STATUSES["error"]) for entry in frame["entry"][frame["oom"]]],
        annotations=[peak(frame)] if len(frame) else [],
    )
    return figure


def layer(name: str, frame: pd.DataFrame) -> go.Scatter:
    return go.Scatter(
        x=frame["entry"].to_numpy(),
        y=frame[name].to_numpy(),
        name=name.replace("_", " "),
        stackgroup="memory",
        line={"shape": "hv", "width": 0.5, "color": CATEGORIES[name]},
        fillcolor=CATEGORIES[name],
    )


def mark(entry: int, colour: str) -> dict[str, Any]:
    return {"type": "line", "x0": entry, "x1": entry, "y0": 0, "y1": 1, "yref": "paper", "line": {"color": colour}}


def peak(frame: pd.DataFrame) -> dict[str, Any]:
    top = frame.iloc[int(frame["allocated"].to_numpy().argmax())]
    return {"x": int(top["entry"]), "y": int(top["allocated"]), "text": "▼ peak", "showarrow": False, "yshift": 10}


def matrix(frame: pd.DataFrame) -> go.Figure:
    """Ranks down, collectives across; colour and sign tell the state."""
    states = list(STATES)
    codes = frame.map(lambda state: states.index(state) if state in states else len(states) - 1)
    scale = [(edge / len(states), STATES[s]) for i, s in enumerate(states) for edge in (i, i + 1)]
    figure = go.Figure(
        go.Heatmap(
            z=codes.to_numpy(),
            x=[f"#{column}" for column in frame.columns],
            y=[f"rank {rank}" for rank in frame.index],
            text=frame.map(lambda state: STATE_SIGNS.get(state, "?")).to_numpy(),
            texttemplate="%{text}",
            customdata=frame.to_numpy(),
            hovertemplate="%{y} %{x}: %{customdata}<extra></extra>",
            zmin=0,
            zmax=len(states),
            colorscale=scale,
            showscale=False,
            xgap=1,
            ygap=1,
        ),
        layout=PLAIN,
    )
    return figure.update_layout(yaxis={"autorange": "reversed"}, height=120 + 26 * len(frame))
