"""A chart of the events in a trace over time: a row for each stream or thread and each level of nesting."""

from collections.abc import Mapping

import pandas as pd

from analyzers.words import duration_ns
from workbench.web.components.figure import ABOVE, MARGIN, FigurePart, duration_ticks, figure_of, plain

ROW_PX = 18
LANE, LANES_PX = 32, 190
"""How many characters of the name of a lane (stream or thread) are shown, and the width in pixels that they take."""
ROOM = 1 / 60
"""An event shows its name if it takes this part of the chart's width: laying out names takes most of the time."""


def event_chart(blocks: pd.DataFrame, window: tuple[int, int], colours: Mapping[str, str]) -> FigurePart:
    """Return a chart of events, with a row for each lane (stream or thread) and nesting depth.

    `blocks` is the result of `traces.views.timeline` with an additional column `colour`, whose values are keys of
    `colours`. `window` is the time range that is shown, in ns from the first event.
    """
    rows = lane_rows(blocks)
    # A name that does not fit is not sent at all: it would only be measured and dropped by the browser.
    room = (window[1] - window[0]) * ROOM
    names = blocks["name"].map(plain).where(blocks["dur_ns"] >= room, "")
    placed = blocks.assign(event=blocks["row"], row=[rows[key] for key in lane_keys(blocks)], text=names)
    parts = placed.groupby("colour", sort=False)
    firsts = {lane: row for (lane, depth), row in reversed(rows.items()) if depth == 0}
    layout = {
        "barmode": "overlay",
        "bargap": 0.1,
        "height": 110 + ROW_PX * len(rows),
        "showlegend": True,
        "legend": ABOVE,
        "xaxis": {"range": list(window), "title": {"text": "time from the first event"}, **duration_ticks(*window)},
        "yaxis": {
            "autorange": "reversed",
            "tickvals": list(firsts.values()),
            "ticktext": [plain(lane[:LANE]) for lane in firsts],
            "fixedrange": True,
        },
        "uniformtext": {"minsize": 9, "mode": "hide"},
        "margin": {**MARGIN, "l": LANES_PX},
    }
    return figure_of([bars(str(value), colours[str(value)], some) for value, some in parts], layout)


def bars(title: str, colour: str, blocks: pd.DataFrame) -> FigurePart:
    """Return the Plotly trace of all blocks of one colour; `title` is the colour's name in the legend.

    A block is an event, or several short events that are drawn as one.
    """
    facts = zip(blocks["count"].tolist(), blocks["busy_ns"].tolist(), blocks["dur_ns"].tolist(), strict=True)
    return {
        "type": "bar",
        "base": blocks["start_ns"].tolist(),
        # A bar of length 0 is not drawn, and cannot be clicked.
        "x": blocks["dur_ns"].clip(lower=1).tolist(),
        "y": blocks["row"].tolist(),
        "width": 0.9,  # by default Plotly takes the smallest distance between two bars of one colour
        "orientation": "h",
        "name": plain(title or "host"),
        "marker": {"color": colour, "line": {"width": 0}},
        "text": blocks["text"].tolist(),
        "textposition": "inside",
        "insidetextanchor": "start",
        "hovertext": blocks["name"].map(plain).tolist(),
        "customdata": [(hover(*fact), row) for row, fact in zip(blocks["event"].tolist(), facts, strict=True)],
        "hovertemplate": "%{hovertext}<br>%{customdata[0]}<extra></extra>",
    }


def hover(count: int, busy_ns: int, dur_ns: int) -> str:
    """Return the hover text of a block, which is an event or several events too short to be drawn separately."""
    if count == 1:
        return duration_ns(dur_ns)
    return f"the longest of {count} events; they take {duration_ns(busy_ns)} of {duration_ns(dur_ns)}. Zoom in."


def lane_keys(blocks: pd.DataFrame) -> list[tuple[str, int]]:
    """Return (lane, nesting depth) of each row of the table `blocks`; a lane is a stream or a thread."""
    return list(zip(blocks["lane"], blocks["depth"], strict=True))


def lane_rows(blocks: pd.DataFrame) -> dict[tuple[str, int], int]:
    """Return {(lane, nesting depth): row of the chart}; a lane is a stream or a thread.

    The streams of devices come first, then host threads, each by nesting depth.
    """
    order = blocks.sort_values(["on_device", "lane", "depth"], ascending=[False, True, True])
    return {key: row for row, key in enumerate(dict.fromkeys(lane_keys(order)))}
