"""Memory of a trace's devices over time."""

from typing import Any

import pandas as pd

from analyzers.words import size
from workbench.colours import nth_colour
from workbench.web.components.figure import ABOVE, PLAIN, byte_ticks, figure_of, plain
from workbench.web.components.timing import LANES_PX, time_ticks


def held(frame: pd.DataFrame, window: tuple[int, int]) -> dict[str, Any]:
    """What each device of `traces.views.memory` had allocated, filled, and what it had reserved, dashed."""
    lines = []
    for number, (name, mine) in enumerate(frame.groupby("where", sort=False)):
        colour = nth_colour(number)
        lines.append(line(f"{name}, allocated", mine, "allocated", colour) | {"fill": "tozeroy"})
        if mine["reserved"].any():
            reserved = line(f"{name}, reserved", mine, "reserved", colour)
            lines.append(reserved | {"line": {**reserved["line"], "dash": "dash"}})
    layout = {
        "height": 300,
        "showlegend": True,
        "legend": ABOVE,
        "hovermode": "x unified",
        "margin": {**PLAIN["margin"], "l": LANES_PX},  # a moment is below itself in the picture of the events
        "xaxis": {"range": list(window), **time_ticks(*window)},
        "yaxis": {"rangemode": "tozero", **byte_ticks(int(frame[["allocated", "reserved"]].to_numpy().max()))},
    }
    return figure_of(lines, layout)


def line(name: str, frame: pd.DataFrame, what: str, colour: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": frame["at_ns"].tolist(),
        "y": frame[what].tolist(),
        "name": plain(name),
        "line": {"shape": "hv", "width": 1.5, "color": colour},
        "customdata": [size(count) for count in frame[what].tolist()],
        "hovertemplate": "%{customdata}",
    }
