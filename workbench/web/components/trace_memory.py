"""A chart of the memory of traced devices over time."""

import pandas as pd

from analyzers.words import size
from workbench.web.components.figure import ABOVE, MARGIN, FigurePart, byte_ticks, figure_of, plain, ticks_across
from workbench.web.theme import theme

_LANES_PX = 152
"""The width in pixels that the names of tracks take beside the timeline above this chart."""


def memory_chart(frame: pd.DataFrame, window: tuple[int, int]) -> FigurePart:
    """Return a chart of each device's memory over time: allocated (filled) and reserved (dashed).

    `frame` is the result of `traces.views.memory`, and `window` the time range in ns that is shown.
    """
    lines: list[FigurePart] = []
    for number, (name, device) in enumerate(frame.groupby("where", sort=False)):
        colour = theme().nth(number)
        lines.append(line(f"{name}, allocated", device, "allocated", colour) | {"fill": "tozeroy"})
        if device["reserved"].any():
            lines.append(line(f"{name}, reserved", device, "reserved", colour, dash="dash"))
    layout = {
        "height": 300,
        "showlegend": True,
        "legend": ABOVE,
        "hovermode": "x unified",
        # As wide as the chart of the events, so that an instant has the same x in both.
        "margin": {**MARGIN, "l": _LANES_PX},
        "xaxis": {"range": list(window), "title": {"text": "time from the first event"}, **ticks_across(*window)},
        "yaxis": {"rangemode": "tozero", **byte_ticks(int(frame[["allocated", "reserved"]].to_numpy().max()))},
    }
    return figure_of(lines, layout)


def line(name: str, frame: pd.DataFrame, what: str, colour: str, dash: str = "solid") -> FigurePart:
    """Return the Plotly trace of column `what` of a table over time: a line in steps, with the label `name`."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": frame["at_ns"].tolist(),
        "y": frame[what].tolist(),
        "name": plain(name),
        "line": {"shape": "hv", "width": 1.5, "color": colour, "dash": dash},
        "customdata": [size(count) for count in frame[what].tolist()],
        "hovertemplate": "%{customdata}",
    }
