"""Memory: over time, as a tree, and by rank."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from analyzers.words import size
from workbench.colours import CATEGORIES, STATUSES, nth_colour, text_colour
from workbench.web.components.figure import ABOVE, PLAIN, byte_ticks, figure_of, plain

UNSAID, DIMMED = "#c9ced6", "#eceef1"
ROOM = 0.06
"""Of the width of a timeline, for the name of a step."""
DASHES = ("solid", "dash", "dot", "dashdot")
STACK, LINE = 16, 110
"""Lines and columns of a stack that a hover shows."""


Begins = Sequence[tuple[int, float]]
"""Steps, and the entries with which they begin."""


def timeline(frame: pd.DataFrame, parts: Mapping[str, str], begins: Begins, cursor: int) -> dict[str, Any]:
    """Stacked memory over trace entries, marked as `over_entries` does.

    `parts` are the columns to stack, each with its colour.
    """
    layers = [layer(name, frame, colour) for name, colour in parts.items() if frame[name].any()]
    return figure_of(layers, over_entries(frame, begins, cursor))


def rank_lines(frame: pd.DataFrame, others: Mapping[str, pd.DataFrame], begins: Begins, cursor: int) -> dict[str, Any]:
    """What each rank had allocated, a line a rank: the one that is looked at in front and filled."""
    lines = [
        {
            "type": "scatter",
            "x": other["entry"].tolist(),
            "y": other["allocated"].tolist(),
            "name": name,
            "mode": "lines",
            "line": {"shape": "hv", "width": 1.5, "color": nth_colour(i + 1), "dash": DASHES[i % len(DASHES)]},
        }
        for i, (name, other) in enumerate(others.items())
    ]
    mine = layer("this rank", frame.assign(**{"this rank": frame["allocated"]}), nth_colour(0))
    return figure_of([*lines, mine], over_entries(frame, begins, cursor))


def over_entries(frame: pd.DataFrame, begins: Begins, cursor: int) -> dict[str, Any]:
    """The layout of a timeline; the peak, each failed allocation, the cursor and the begin of each step are marked."""
    begins = apart(begins, float(frame["entry"].max() - frame["entry"].min()) if len(frame) else 0.0)
    return {
        "xaxis": {"title": {"text": "trace entry"}},
        "yaxis": {"rangemode": "tozero", **byte_ticks(int(frame["allocated"].max()) if len(frame) else 0)},
        "legend": {**ABOVE, "y": 1.07},  # above the names of the steps
        "showlegend": True,
        "hovermode": "x unified",
        "uirevision": "timeline",
        "shapes": [
            *(mark(entry, STATUSES["error"]) for entry in frame["entry"][frame["oom"] > 0]),
            mark(cursor, "#7a7a7a") | {"line": {"color": "#7a7a7a", "dash": "dot"}},
            *(mark(entry, "rgba(128,128,128,0.4)") for _, entry in begins),
        ],
        "annotations": [*([peak(frame)] if len(frame) else []), *(begin(*step) for step in begins)],
    }


def layer(name: str, frame: pd.DataFrame, colour: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "x": frame["entry"].tolist(),
        "y": frame[name].tolist(),
        "name": plain(name).replace("_", " "),
        "stackgroup": "memory",
        "line": {"shape": "hv", "width": 0.5, "color": colour},
        "fillcolor": colour,
    }


def begin(step: int, entry: float) -> dict[str, Any]:
    """Above the picture, where nothing else is written."""
    text = {"text": f"step {step}", "showarrow": False, "xanchor": "left", "font": {"size": 10}}
    return {"x": entry, "y": 1, "yref": "paper", "yanchor": "bottom"} | text


def apart(begins: Begins, span: float) -> Begins:
    """Those that there is room to name: a step that begins close behind another is left out."""
    kept: list[tuple[int, float]] = []
    for step, entry in begins:
        if not kept or entry - kept[-1][1] > ROOM * span:
            kept.append((step, entry))
    return kept


def mark(entry: float, colour: str) -> dict[str, Any]:
    return {"type": "line", "x0": entry, "x1": entry, "y0": 0, "y1": 1, "yref": "paper", "line": {"color": colour}}


def peak(frame: pd.DataFrame) -> dict[str, Any]:
    top = frame.iloc[int(frame["allocated"].to_numpy().argmax())]
    return {"x": int(top["entry"]), "y": int(top["allocated"]), "text": "▼ peak", "showarrow": False, "yshift": 10}


def icicle(frame: pd.DataFrame, up: int = -1, find: str = "") -> go.Figure:
    """A tree of `memory.views.tree`; a last level names a category by its colour.

    A click on a node leads to the node in the first of its custom data: to itself, and to `up` from the widest. What
    has not `find` in it is grey.
    """
    total = int(frame["bytes"][frame["parent"] < 0].sum())
    paths = [[plain(name) for name in path] for path in frame["path"]]
    colours = [UNSAID, *(shade(name, path, find) for name, path in zip(frame["name"], paths, strict=True))]
    figure = go.Figure(
        go.Icicle(
            ids=["all", *map(str, frame["node"])],
            labels=[f"{size(total)} alive", *(path[-1] for path in paths)],
            parents=["", *("all" if parent < 0 else str(parent) for parent in frame["parent"])],
            values=[total, *frame["bytes"]],
            customdata=[
                [up, "", ""],
                *zip(frame["node"], map(held, frame["bytes"], frame["blocks"]), map(told, paths), strict=True),
            ],
            marker={"colors": colours, "line": {"width": 1, "color": "rgba(0,0,0,0.3)"}},
            leaf={"opacity": 1},
            branchvalues="total",
            tiling={"orientation": "v"},
            textfont={"color": [text_colour(colour) for colour in colours]},
            hovertemplate="%{customdata[2]}<br>%{customdata[1]}, %{percentRoot} of all<extra></extra>",
            maxdepth=5,
        ),
        layout=PLAIN,
    )
    figure.update_layout(uniformtext={"minsize": 9, "mode": "hide"})
    return figure.update_layout(height=340, margin={"l": 0, "r": 0, "t": 10, "b": 10})


def category_bars(frame: pd.DataFrame) -> dict[str, Any]:
    """A bar a category, from `memory.views.categories`, with its bytes beside it."""
    some = frame[frame["bytes"] > 0].sort_values("bytes", ascending=False)
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": some["bytes"].tolist(),
        "y": [name.replace("_", " ") for name in some["category"]],
        "text": [size(count) for count in some["bytes"].tolist()],
        "textposition": "outside",
        "customdata": some["blocks"].tolist(),
        "hovertemplate": "%{y}: %{text} in %{customdata} blocks<extra></extra>",
        "marker": {"color": [CATEGORIES[name] for name in some["category"]]},
        "cliponaxis": False,
    }
    layout = {
        "height": 70 + 24 * len(some),
        "margin": {**PLAIN["margin"], "l": 120, "r": 70},  # what is told beside the longest bar
        "xaxis": {"rangemode": "tozero", **byte_ticks(int(some["bytes"].max()) if len(some) else 0)},
        "yaxis": {"autorange": "reversed"},
    }
    return figure_of([bars], layout)


def held(count: int, blocks: int) -> str:
    return f"{size(count)} in {blocks} blocks"


def told(path: Sequence[str]) -> str:
    """The last lines of a path, outermost first, as a hover shows them."""
    return "<br>".join(name[:LINE] for name in path[-STACK:])


def shade(name: str, path: Sequence[str], find: str) -> str:
    if find and not any(find.casefold() in part.casefold() for part in path):
        return DIMMED
    return CATEGORIES.get(name, UNSAID)


def ranks(frame: pd.DataFrame) -> go.Figure:
    """`memory.ranks.matrix` as a heat map: ranks down, categories across, each cell in its bytes."""
    held = frame[list(CATEGORIES)]
    figure = go.Figure(
        go.Heatmap(
            z=held.to_numpy(),
            x=[name.replace("_", " ") for name in held.columns],
            y=[f"rank {rank}, device {device}" for rank, device in zip(frame["rank"], frame["device"], strict=True)],
            text=[[size(int(count)) for count in row] for row in held.to_numpy()],
            texttemplate="%{text}",
            hovertemplate="%{y}, %{x}: %{text}<extra></extra>",
            colorscale=[(0, "#f2f2f2"), (1, CATEGORIES["parameters"])],
            showscale=False,
            xgap=1,
            ygap=1,
        ),
        layout=PLAIN,
    )
    return figure.update_layout(
        yaxis={"autorange": "reversed"}, margin={"l": 130}, height=110 + 26 * min(len(frame), 40)
    )
