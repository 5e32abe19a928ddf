"""Charts that compare two runs: changes of step time and peak memory, and curves of both runs on one axis."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import pandas as pd
import plotly.graph_objects as go

from analyzers.words import duration_ns, size
from workbench.present.tables.comparison import Formatter, signed
from workbench.web.components.figure import (
    ABOVE,
    MOST_BESIDE_TICKS,
    FigurePart,
    byte_ticks,
    plain,
    plain_layout,
    ticks_across,
)
from workbench.web.components.step_charts import step_ticks
from workbench.web.theme import narrow, theme

_MORE, _LESS, _WHOLE = "violet", "teal", "grey"
"""The names of the colours of bars; the sign of each number says the same as its colour."""
_SIDES = {"a": "grey", "b": "blue"}
_DASHES = {"a": "dot", "b": "solid"}
BARS, NAME, _NARROW_NAME = 20, 34, 18
_LEAST_SHARE = 0.002
"""The share of the larger run's total below which a change has no bar of its own, because nobody would see it."""
ROW_PX = 26


def bytes_waterfall(parts: Sequence[tuple[str, float]], ends: tuple[int, int]) -> go.Figure:
    """Return a waterfall chart of bytes from run A to run B.

    `parts` are the changes (name, bytes) and `ends` the totals of both runs.
    """
    return waterfall(parts, ends, size).update_xaxes(**byte_ticks(max(ends), MOST_BESIDE_TICKS))


def seconds_waterfall(parts: Sequence[tuple[str, float]], ends: tuple[float, float]) -> go.Figure:
    """Return a waterfall chart of seconds from run A to run B.

    `parts` are the changes (name, seconds) and `ends` the totals of both runs.
    """
    scaled = [(name, change * 1e9) for name, change in parts]
    return nanoseconds_waterfall(scaled, (ends[0] * 1e9, ends[1] * 1e9))


def nanoseconds_waterfall(parts: Sequence[tuple[str, float]], ends: tuple[float, float]) -> go.Figure:
    """Return a waterfall chart of nanoseconds from run A to run B.

    `parts` are the changes (name, ns) and `ends` the totals of both runs.
    """
    return waterfall(parts, ends, duration_ns).update_xaxes(**ticks_across(0, max(ends), MOST_BESIDE_TICKS))


def waterfall(parts: Sequence[tuple[str, float]], ends: tuple[float, float], text: Formatter) -> go.Figure:
    """Return a waterfall chart of how the total of run A becomes the total of run B.

    `ends` are the two totals. `parts` are the changes (name, amount); the bar of a change starts where the bar above it
    ends. `text` formats a number.
    """
    # The rest is one bar, so that the bars still add up to the total of run B.
    shown = [part for part in parts[:BARS] if abs(part[1]) >= _LEAST_SHARE * max(ends)]
    rest = sum(change for name, change in parts if (name, change) not in shown)
    bars = [*shown, *([("everything else", rest)] if rest else [])]
    names = ["run A", *(short(name) for name, _ in bars), "run B"]
    texts = [text(ends[0]), *(signed(change, text) for _, change in bars), text(ends[1])]
    figure = go.Figure(
        go.Waterfall(
            orientation="h",
            measure=["absolute", *("relative" for _ in bars), "total"],
            y=names,
            x=[ends[0], *(change for _, change in bars), 0],
            text=texts,
            textposition="none",
            increasing={"marker": {"color": theme().hues[_MORE]}},
            decreasing={"marker": {"color": theme().hues[_LESS]}},
            totals={"marker": {"color": theme().hues[_WHOLE]}},
            hovertemplate="%{y}: %{text}<extra></extra>",
            showlegend=False,
        ),
        layout=plain_layout(),
    )
    levels = [ends[0], *accumulate((change for _, change in bars), initial=ends[0])]
    right = [max(pair) for pair in pairwise(levels)]
    return with_rows(figure, names, [*right, ends[1]], texts)


def changes(rows: Sequence[tuple[str, float]], text: Formatter) -> go.Figure:
    """Return a bar chart of (name, change in ns) rows; the function `text` formats a change.

    Bars to the left are decreases, bars to the right increases.
    """
    shown = rows[:BARS]
    names, texts = [f"{i + 1}. {short(name)}" for i, (name, _) in enumerate(shown)], [signed(c, text) for _, c in shown]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=names,
            x=[change for _, change in shown],
            text=texts,
            textposition="none",
            customdata=[plain(name) for name, _ in shown],
            marker={"color": [theme().hues[_MORE if change > 0 else _LESS] for _, change in shown]},
            hovertemplate="%{customdata}: %{text}<extra></extra>",
            showlegend=False,
        ),
        layout=plain_layout(),
    )
    amounts = [change for _, change in shown]
    figure.update_xaxes(**ticks_across(min(0, *amounts), max(0, *amounts), MOST_BESIDE_TICKS))
    return with_rows(figure, names, [max(change, 0) for _, change in shown], texts)


def short(name: str) -> str:
    most = _NARROW_NAME if narrow() else NAME
    return plain(name if len(name) <= most else f"{name[: most // 2]} … {name[3 - most // 2 :]}")


def with_rows(figure: go.Figure, names: Sequence[str], ends: Sequence[float], texts: Sequence[str]) -> go.Figure:
    """Return the figure with a height that suits its rows, and with each row's number at the right end of its bar.

    The rows are given as `names`, `ends` (where each bar ends) and `texts` (the numbers). Plotly itself would write
    numbers onto the bars or over the names.
    """
    numbers = go.Scatter(
        x=ends,
        y=names,
        text=[f"\N{NO-BREAK SPACE}{text}" for text in texts],
        mode="text",
        textposition="middle right",
        textfont={"color": theme().hues["ink"]},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
    )
    return figure.add_trace(numbers).update_layout(
        yaxis={"autorange": "reversed", "automargin": True},
        margin={"l": 10, "r": 70, "t": 10},
        height=50 + ROW_PX * len(names),
    )


def both_runs(series: Mapping[str, "pd.Series[float]"], axis: FigurePart) -> go.Figure:
    """Return a line chart over the training steps, with a line for each run in `series`; `axis` is the y axis.

    The runs differ in line style as well as in colour.
    """
    figure = go.Figure(layout=plain_layout())
    for name, values in series.items():
        line = {"color": theme().hues[_SIDES[name]], "dash": _DASHES[name]}
        figure.add_trace(go.Scatter(x=values.index, y=values, name=f"run {name.upper()}", line=line))
    steps = [step for values in series.values() for step in values.index]
    layout = {"xaxis": {"title": "step", **step_ticks(steps)}, "yaxis": axis, "height": 300, "hovermode": "x unified"}
    return figure.update_layout(showlegend=True, legend=ABOVE, **layout)
