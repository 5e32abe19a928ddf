"""Two runs: what a step's time and a peak's memory gained and lost, and series of both on one axis."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from analyzers.words import duration, size
from workbench.colours import CATEGORIES
from workbench.present.tables.comparison import signed
from workbench.web.components.figure import ABOVE, PLAIN, byte_ticks, plain

MORE, LESS, WHOLE = CATEGORIES["communication"], CATEGORIES["parameters"], CATEGORIES["workspace"]
"""More is worse in all that is compared here; the sign of the number tells the same as the colour."""
SIDES = {"a": CATEGORIES["parameters"], "b": CATEGORIES["gradients"]}
DASHES = {"a": "dot", "b": "solid"}
BARS, NAME = 20, 34
ROW_PX = 26

Told = Callable[[Any], str]


def of_bytes(parts: Sequence[tuple[str, float]], ends: tuple[int, int]) -> go.Figure:
    """A waterfall of bytes, with ticks in their units."""
    return waterfall(parts, ends, size).update_xaxes(**byte_ticks(max(ends)))


def of_time(parts: Sequence[tuple[str, float]], ends: tuple[float, float]) -> go.Figure:
    """A waterfall of seconds."""
    return waterfall(parts, ends, duration).update_xaxes(title="seconds")


def waterfall(parts: Sequence[tuple[str, float]], ends: tuple[float, float], told: Told) -> go.Figure:
    """From the whole of the first run to that of the second, a bar a part: each begins where the one above ends."""
    shown, rest = parts[:BARS], sum(change for _, change in parts[BARS:])
    bars = [*shown, *([("all others", rest)] if rest else [])]
    figure = go.Figure(
        go.Waterfall(
            orientation="h",
            measure=["absolute", *("relative" for _ in bars), "total"],
            y=["a", *(short(name) for name, _ in bars), "b"],
            x=[ends[0], *(change for _, change in bars), 0],
            text=[told(ends[0]), *(signed(change, told) for _, change in bars), told(ends[1])],
            textposition="auto",
            increasing={"marker": {"color": MORE}},
            decreasing={"marker": {"color": LESS}},
            totals={"marker": {"color": WHOLE}},
            hovertemplate="%{y}: %{text}<extra></extra>",
            cliponaxis=False,
            showlegend=False,
        ),
        layout=PLAIN,
    )
    return rows_of(figure, len(bars) + 2)


def changes(rows: Sequence[tuple[str, float]], told: Told) -> go.Figure:
    """The largest changes as bars to the left and to the right of nothing."""
    shown = rows[:BARS]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=[f"{i + 1}. {short(name)}" for i, (name, _) in enumerate(shown)],
            x=[change for _, change in shown],
            text=[signed(change, told) for _, change in shown],
            textposition="auto",
            customdata=[plain(name) for name, _ in shown],
            marker={"color": [MORE if change > 0 else LESS for _, change in shown]},
            hovertemplate="%{customdata}: %{text}<extra></extra>",
            cliponaxis=False,
        ),
        layout=PLAIN,
    )
    return rows_of(figure, len(shown))


def short(name: str) -> str:
    """Names of kernels are long, and what tells them apart stands at either end."""
    text = name if len(name) <= NAME else f"{name[: NAME // 2]} … {name[3 - NAME // 2 :]}"
    return plain(text)


def rows_of(figure: go.Figure, rows: int) -> go.Figure:
    return figure.update_layout(
        yaxis={"autorange": "reversed", "automargin": True},
        margin={"l": 10, "r": 70},  # what is told beside a bar that ends at the edge
        height=80 + ROW_PX * rows,
        uniformtext={"minsize": 10, "mode": "show"},
    )


def side_by_side(series: Mapping[str, "pd.Series[float]"], unit: str) -> go.Figure:
    """A line for each run by step; line style tells them apart as colour does."""
    figure = go.Figure(layout=PLAIN)
    for name, values in series.items():
        line = {"color": SIDES[name], "dash": DASHES[name]}
        figure.add_trace(go.Scatter(x=values.index, y=values, name=f"run {name}", line=line))
    layout = {"xaxis": {"title": "step"}, "yaxis": {"title": unit}, "height": 300, "hovermode": "x unified"}
    return figure.update_layout(showlegend=True, legend=ABOVE, **layout)
