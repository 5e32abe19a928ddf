"""Small charts one above the other over the same training steps, such as peak memory, step time and loss."""

from typing import NamedTuple

import pandas as pd

from analyzers.report import Report, Severity
from workbench.step_axis import Span
from workbench.web.components.figure import FigurePart, figure_of
from workbench.web.theme import theme

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
    """Return the step that failed: the step of the finding behind the verdict, if it is an error with a known step."""
    lead = report.lead()
    return lead.step if lead and lead.severity is Severity.ERROR else None


def _axis_name(stem: str, index: int) -> str:
    """Return Plotly's name of an axis: `yaxis`, `yaxis2`, `yaxis3` for the stem `yaxis`."""
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
    """Return the Plotly line of a chart, on the y axis with this index."""
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
    """Return the title of a chart as an annotation above its left end; `top` is the upper edge of the chart."""
    place: FigurePart = {"x": 0, "y": top, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    return place | {"text": chart.title, "showarrow": False, "font": {"size": 11}}


def _failure_line(step: int) -> FigurePart:
    """Return a vertical line at the failed step, through all charts."""
    line = {"color": theme().hues["error"], "width": 2}
    return {"type": "line", "x0": step, "x1": step, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def _failure_name(step: int) -> FigurePart:
    """Return the annotation that names the failed step, above the vertical line and the title of the first chart."""
    place: FigurePart = {
        "x": step, "y": 1, "yref": "paper", "yshift": _TITLE_HEIGHT - 4, "xanchor": "auto", "yanchor": "bottom",
    }  # fmt: skip
    return place | {"text": f"✗ step {step}", "showarrow": False, "font": {"size": 11, "color": theme().hues["error"]}}
