"""Charts over the training steps: duration by rank, phases of a rank, and the loss."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go
from dash import html

from analyzers.report import Report, Severity
from analyzers.steps.views import NOT_TRAINING
from analyzers.words import duration
from workbench.axes import Span
from workbench.colours import HUE_OF_PHASE, hue_of_phase
from workbench.present.table import phase_title
from workbench.web.components.figure import (
    ABOVE,
    LOW,
    MOST_TICKS,
    DurationTicks,
    FigurePart,
    duration_ticks,
    figure_of,
    plain,
    plain_layout,
    theme,
)
from workbench.web.components.links import part_list

MOST_RANKS = 12
_MOST_STEPS = 1000
FEW, MARKED = 12, 60
"""The most steps of which each has a number on the axis, and the most of which each has a mark or a gap.

The mark is on a line, and the gap between two bars.
"""
SMALLEST_SHARE, _FEWEST_GATHERED = 0.005, 2
_OTHER_PHASES = "other phases"
_NOT_TRAINING_SHAPES = (".", "/", "x")
"""The patterns of the hatching of the phases in `NOT_TRAINING`, which are all grey."""
_STEP_TITLE = {"text": "step %{x}"}
"""The title of the hover texts."""
_LOW_TICKS = 4
"""The most ticks on the vertical axis of a low chart; the labels of more ticks would overlap."""
_SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down")


def step_durations(series: pd.DataFrame, named: Sequence[int]) -> go.Figure:
    """Return a chart of the duration of each step, with a line per rank.

    If there are many ranks, the chart shows only the median, the slowest rank, and the ranks in `named`.
    """
    wide = thinned(series.pivot_table(index="step", columns="rank", values="dur_s")).add_prefix("rank ")
    lines = wide if wide.shape[1] <= MOST_RANKS else _summarised(wide, named)
    axis = duration_axis(float(lines.max().max()) if lines.size else 0.0, most=_LOW_TICKS)
    return line_chart(lines, duration).update_layout(yaxis=axis, hovermode="x unified")


def _summarised(wide: pd.DataFrame, named: Sequence[int]) -> pd.DataFrame:
    apart = [f"rank {rank}" for rank in named][:MOST_RANKS]
    return wide[apart].assign(**{"median rank": wide.median(axis=1), "slowest rank": wide.max(axis=1)})


def thinned(table: pd.DataFrame) -> pd.DataFrame:
    """Return at most `_MOST_STEPS` rows of a table, keeping every spike.

    Consecutive rows are grouped; of each group, only the row with the largest value in any column is kept.
    """
    width = -(-len(table) // _MOST_STEPS)
    if width <= 1:
        return table
    keys = [position // width for position in range(len(table))]
    # The largest over all columns, so that all lines of a step stay together.
    highest = table.max(axis=1).reset_index(drop=True)
    return table.iloc[highest.groupby(keys).idxmax().to_numpy()]


def _hover_texts(values: "pd.Series[float]", written: Callable[[float], str]) -> FigurePart:
    texts = ["" if pd.isna(value) else written(value) for value in values.tolist()]
    return {"customdata": texts, "hovertemplate": "%{customdata}"}


def line_chart(table: pd.DataFrame, written: Callable[[float], str]) -> go.Figure:
    """Return a line chart of a table whose index is the step, with a line per column; `written` formats a value."""
    figure = go.Figure(layout=plain_layout())
    for i, column in enumerate(table.columns):
        figure.add_trace(
            go.Scatter(
                x=table.index,
                y=table[column],
                name=column,
                mode="lines+markers" if len(table) <= MARKED else "lines",
                line={"color": theme().nth(i), "width": 1.5},
                marker={"symbol": _SYMBOLS[i % len(_SYMBOLS)]},
                **_hover_texts(table[column], written),
            )
        )
    figure.update_xaxes(**step_ticks(table.index), unifiedhovertitle=_STEP_TITLE)
    return figure.update_layout(height=125, legend=ABOVE, margin=LOW)


def step_ticks(steps: Collection[int]) -> FigurePart:
    """Return the Plotly option for a tick at every step if the range of steps is short; else leave the ticks to Plotly.

    Without this option, Plotly would label steps such as 1.5. The range counts, not the number of values: a loss that
    is logged every tenth step has few values over many steps.
    """
    return {"dtick": 1} if len(steps) and max(steps) - min(steps) < FEW else {}


def duration_axis(longest_s: float, most: int = MOST_TICKS) -> FigurePart:
    ticks = duration_ticks(0, longest_s * 1e9, most) if longest_s > 0 else DurationTicks(tickvals=[], ticktext=[])
    return {"rangemode": "tozero", "tickvals": [ns / 1e9 for ns in ticks["tickvals"]], "ticktext": ticks["ticktext"]}


def phase_stack(phases: pd.DataFrame) -> go.Figure:
    """Return a stacked chart of the phases of one rank's steps, with the largest phase at the bottom.

    `phases` has a row per step and a column per phase, in seconds. Phases that are too short to be seen are added up to
    one layer. Time outside the training, such as the time of the profiler, is the top layer, so that it shifts no other
    layer.
    """
    thin = _small_gathered(thinned(phases))
    figure = go.Figure(layout=plain_layout())
    for name in sorted(thin.columns, key=lambda column: (column in NOT_TRAINING, -thin[column].sum())):
        if thin[name].any():
            figure.add_trace(
                go.Bar(
                    x=thin.index,
                    y=thin[name],
                    name=plain(phase_title(name)),
                    marker=_phase_marker(name),
                    **_hover_texts(thin[name], duration),
                )
            )
    figure.update_xaxes(**step_ticks(thin.index), unifiedhovertitle=_STEP_TITLE)
    layout = {"barmode": "stack", "bargap": gap_between(len(thin)), "hovermode": "x unified"}
    figure.update_layout(**layout, height=220, legend=ABOVE, margin=LOW)
    return figure.update_layout(yaxis=duration_axis(float(thin.sum(axis=1).max()) if len(thin) else 0.0))


def gap_between(bars: int) -> float:
    """Return the gap between neighbouring bars as a fraction of a bar's width; 0 if there are many bars.

    With many bars, rounding to pixels would make some gaps visibly wider than others.
    """
    return 0.05 if bars <= MARKED else 0.0


def _small_gathered(phases: pd.DataFrame) -> pd.DataFrame:
    """Return `phases` with the short phases added up to one column.

    A phase is short if it takes less than `SMALLEST_SHARE` of the longest step in every step. It would be less than a
    pixel high, and would only lengthen the legend. A single short phase keeps its own column.
    """
    least = float(phases.sum(axis=1).max()) * SMALLEST_SHARE
    small = phases.columns[(phases.fillna(0) < least).all() & phases.any()]
    if len(small) < _FEWEST_GATHERED:
        return phases
    return phases.drop(columns=small).assign(**{_OTHER_PHASES: phases[small].sum(axis=1)})


def phase_bars(phases: pd.DataFrame) -> list[html.Ul]:
    """Return the mean time of each phase as an HTML list, longest first: name, bar, time and share.

    Time outside the training, such as the time of the profiler, comes last.
    """
    means = {str(name): float(mean) for name, mean in phases.mean().sort_values(ascending=False).items()}
    ranked = sorted(means, key=lambda name: name in NOT_TRAINING)
    shown = {phase_title(name): means[name] for name in ranked}
    return part_list(shown, {phase_title(name): phase_colour(name) for name in ranked}, duration)


def phase_colour(phase: str) -> str:
    return theme().hues[hue_of_phase("other" if phase == _OTHER_PHASES else phase)]


def _phase_marker(phase: str) -> FigurePart:
    if phase in NOT_TRAINING:
        return {"color": phase_colour(phase), "pattern": {"shape": _NOT_TRAINING_SHAPES[NOT_TRAINING.index(phase)]}}
    hatched = {} if phase in {*HUE_OF_PHASE, _OTHER_PHASES} else {"pattern": {"shape": "\\"}}
    return {"color": phase_colour(phase), **hatched}


def mark_failure(figure: go.Figure, step: int) -> None:
    """Mark the failed step by a vertical line with its number, because this step has no bar and no point."""
    # To the left of the line, which is at the right end of the chart.
    at = {"annotation_text": f"✗ step {step}", "annotation_position": "top left"}
    figure.add_vline(x=step, line={"color": theme().hues["error"]}, annotation_font_color=theme().hues["error"], **at)


def loss_chart(series: pd.DataFrame, nonfinite: int | None) -> go.Figure:
    """Return a chart of the loss by step.

    A vertical line marks `nonfinite`, the first step whose loss is NaN or infinite, if there is one.
    """
    known = series.dropna(subset="loss").groupby("step")["loss"].max().to_frame("loss")
    figure = line_chart(thinned(known), "{:.5g}".format).update_layout(yaxis={"title": "loss"}, hovermode="x unified")
    if nonfinite is not None:
        # To the left of the line, which is often at the right end of the chart.
        at = {"annotation_text": "not finite", "annotation_position": "top left"}
        figure.add_vline(x=nonfinite, line={"color": theme().hues["error"]}, **at)
    return figure


HEIGHT, _TITLE_HEIGHT, _BELOW = 60, 20, 26
"""The heights in pixels of one chart, of the name above it, and of the numbers of the steps below all charts."""


class SmallChart(NamedTuple):
    """One of the small charts: `by_step` holds the values, indexed by step, and `axis` is Plotly's y axis."""

    title: str
    by_step: "pd.Series[float]"
    axis: FigurePart


def small_charts(charts: list[SmallChart], failed: int | None, zoomed: Span | None = None) -> FigurePart:
    """Return a figure with the charts one above the other over the same steps, and a line at the step `failed`.

    All charts show the range `zoomed` of steps; None shows all steps.
    """
    marked = [failed] if failed is not None else []
    numbers = [*(int(step) for chart in charts for step in chart.by_step.index), *marked]
    ends = zoomed or (min(numbers) - 0.5, max(numbers) + 0.5)
    steps_across = {"range": [*ends], "tickprefix": "step ", "showtickprefix": "first"}
    # Plotly places charts and their names by shares of the height, without the margins.
    height = (HEIGHT + _TITLE_HEIGHT) * len(charts) - _TITLE_HEIGHT
    # The failed step is named above the title of the first chart, which may reach as far as its line.
    above = _TITLE_HEIGHT * (1 + len(marked))
    tops = [1 - i * (HEIGHT + _TITLE_HEIGHT) / height for i in range(len(charts))]
    axes = {
        _axis_name("yaxis", i): {"domain": [max(0.0, top - HEIGHT / height), top], "nticks": 3, **_few_ticks(chart)}
        for i, (chart, top) in enumerate(zip(charts, tops, strict=True))
    }
    layout: FigurePart = {
        "height": height + above + _BELOW,
        "margin": {"l": 70, "r": 10, "t": above, "b": _BELOW},
        "showlegend": False,
        "hovermode": "x unified",
        "xaxis": {"anchor": _axis_name("y", len(charts) - 1), **steps_across},
        "shapes": [_failure_line(step) for step in marked],
        "annotations": [*map(_small_title, charts, tops), *map(_failure_name, marked)],
    }
    return figure_of([line_of(chart, i) for i, chart in enumerate(charts)], layout | axes)


def failed_step(report: Report[object]) -> int | None:
    lead = report.lead()
    return lead.step if lead and lead.severity is Severity.ERROR else None


def _axis_name(stem: str, index: int) -> str:
    return stem if index == 0 else f"{stem}{index + 1}"


def _few_ticks(chart: SmallChart) -> FigurePart:
    """Return the y axis of a chart with only two ticks: the lowest, and the highest that is below the largest value."""
    values, texts = chart.axis.get("tickvals"), chart.axis.get("ticktext")
    if not isinstance(values, list) or not isinstance(texts, list):
        return chart.axis
    below = [(value, text) for value, text in zip(values, texts, strict=True) if value <= chart.by_step.max()]
    kept = below[:1] + below[1:][-1:]
    return chart.axis | {"tickvals": [value for value, _ in kept], "ticktext": [text for _, text in kept]}


def line_of(chart: SmallChart, index: int) -> FigurePart:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(chart.by_step) <= 60 else "lines",
        "x": [int(step) for step in chart.by_step.index],
        "y": chart.by_step.tolist(),
        "yaxis": _axis_name("y", index),
        "name": chart.title,
        "line": {"color": theme().hues["soft"], "width": 1.5},
        "marker": {"size": 4},
    }


def _small_title(chart: SmallChart, top: float) -> FigurePart:
    place: FigurePart = {"x": 0, "y": top, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    return place | {"text": chart.title, "showarrow": False, "font": {"size": 11}}


def _failure_line(step: int) -> FigurePart:
    line = {"color": theme().hues["error"], "width": 2}
    return {"type": "line", "x0": step, "x1": step, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def _failure_name(step: int) -> FigurePart:
    """Return the annotation that names the failed step, above the vertical line and the title of the first chart."""
    place: FigurePart = {
        "x": step, "y": 1, "yref": "paper", "yshift": _TITLE_HEIGHT - 4, "xanchor": "auto", "yanchor": "bottom",
    }  # fmt: skip
    return place | {"text": f"✗ step {step}", "showarrow": False, "font": {"size": 11, "color": theme().hues["error"]}}
