"""Figures. They carry reduced data only: a few thousand points, each a real instant."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.console import clean
from workbench.palette import CATEGORIES, STATE_SIGNS, STATES, STATUSES
from workbench.present.units import size

PLAIN = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"color": "#7a7a7a"},
    "margin": {"l": 70, "r": 10, "t": 30, "b": 40},
}


def timeline(frame: pd.DataFrame, cursor: int | None = None) -> go.Figure:
    """Stacked memory by category over trace entries; the peak, each failed allocation and the cursor are marked."""
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
        shapes=[
            *(mark(entry, STATUSES["error"]) for entry in frame["entry"][frame["oom"]]),
            *([] if cursor is None else [mark(cursor, "#7a7a7a") | {"line": {"color": "#7a7a7a", "dash": "dot"}}]),
        ],
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


def icicle(frame: pd.DataFrame) -> go.Figure:
    """A tree of `memory.views.tree`; what is clicked fills the width. A last level names a category by its colour."""
    total = int(frame["bytes"][frame["parent"] < 0].sum())
    figure = go.Figure(
        go.Icicle(
            ids=["all", *map(str, frame["node"])],
            labels=[f"{size(total)} alive", *map(clean, frame["name"])],
            parents=["", *("all" if parent < 0 else str(parent) for parent in frame["parent"])],
            values=[total, *frame["bytes"]],
            text=[
                "",
                *(
                    f"{size(held)} in {blocks} blocks"
                    for held, blocks in zip(frame["bytes"], frame["blocks"], strict=True)
                ),
            ],
            marker={"colors": ["#c9ced6", *(CATEGORIES.get(name, "#c9ced6") for name in frame["name"])]},
            branchvalues="total",
            tiling={"orientation": "v"},
            textfont={"color": "#111111"},
            hovertemplate="%{label}<br>%{text}<br>%{percentRoot} of all<extra></extra>",
            maxdepth=5,
        ),
        layout=PLAIN,
    )
    return figure.update_layout(height=340, margin={"l": 0, "r": 0, "t": 10, "b": 10})


def block_chart(frame: pd.DataFrame) -> go.Figure:
    """Segments down, each cell in the colour of what fills it most, with its letter; free memory stays empty."""
    names = ["", *CATEGORIES]
    colours = ["rgba(128,128,128,0.15)", *CATEGORIES.values()]
    owners = frame["owners"].tolist()
    figure = go.Figure(
        go.Heatmap(
            z=[[names.index(name) for name in row] for row in owners],
            y=[f"{i}: {size(total)}" for i, total in enumerate(frame["bytes"])],
            customdata=[[name.replace("_", " ") or "free" for name in row] for row in owners],
            hovertemplate="segment %{y}: %{customdata}<extra></extra>",
            zmin=0,
            zmax=len(names),
            colorscale=[(edge / len(names), c) for i, c in enumerate(colours) for edge in (i, i + 1)],
            showscale=False,
            ygap=2,
        ),
        layout=PLAIN,
    )
    figure.update_layout(title="Segments and what fills them", margin={"l": 110, "t": 40}, height=120 + 22 * len(frame))
    return figure.update_layout(xaxis={"visible": False}, yaxis={"autorange": "reversed"})


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
