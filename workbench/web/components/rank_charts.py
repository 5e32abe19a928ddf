"""Charts that compare traced ranks: parts of their time, activity over time, lateness in collectives, bytes sent."""

from collections.abc import Sequence
from math import isnan

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from dash import html

from analyzers.traces.model import RankTrace, StepTime
from analyzers.words import duration_ns, percent, ranks_label, share, size
from workbench.present.tables.trace import step_numbers
from workbench.web.components.figure import (
    ABOVE,
    COLLECTIVES_ACROSS,
    MARGIN,
    NAMES_ABOVE,
    FigurePart,
    byte_ticks,
    duration_ticks,
    figure_of,
    heat_scale,
    legend_entry,
    plain,
    plain_layout,
    theme,
    ticks_across,
)
from workbench.web.components.links import part_list
from workbench.web.components.step_charts import duration_axis, gap_between, step_ticks, thinned

PARTS = {
    "compute": ("compute", "compute_ns"),
    "exposed communication": ("communication", "exposed_communication_ns"),
    "exposed memory": ("memory", "exposed_memory_ns"),
    "idle": ("idle", "idle_ns"),
}
"""The parts of a rank's time: {title: (kind, which selects the colour, column of `traces.views.ranks_timeline`)}."""
_READABLE, _FINE = 16, 80
"""The most columns of a heat map with a number in each cell, and the most with a line around each cell."""
_SHORTEST_NS = 1000.0
_WIDEST_BAR = 0.4
_TALLEST_ROWS = 40


def time_shares(accounts: Sequence[RankTrace]) -> go.Figure:
    """Return a chart with a stacked bar for each traced rank, divided into the parts of its recorded time.

    The parts are computing, communication and memory operations without computing, and idle time.
    """
    names = bar_names(accounts)
    figure = go.Figure(layout=plain_layout())
    for title, (kind, _) in PARTS.items():
        parts = [_part_ns(account, title) for account in accounts]
        if not any(parts):
            continue
        figure.add_trace(
            go.Bar(
                width=_WIDEST_BAR if len(accounts) == 1 else None,
                y=names,
                x=[ns / max(1, account.span_ns) for ns, account in zip(parts, accounts, strict=True)],
                orientation="h",
                name=title,
                marker={"color": theme().kinds[kind]},
                customdata=[
                    f"{duration_ns(ns)} ({share(ns, account.span_ns)})"
                    for ns, account in zip(parts, accounts, strict=True)
                ],
                hovertemplate="%{y}: %{customdata}<extra>%{fullData.name}</extra>",
            )
        )
    quarters = [0, 0.25, 0.5, 0.75, 1]
    axis = {"title": "share of the recorded time", "tickvals": quarters, "ticktext": [percent(p) for p in quarters]}
    figure.update_layout(barmode="stack", height=150 + 30 * len(accounts), xaxis=axis)
    return figure.update_layout(yaxis={"autorange": "reversed", "automargin": True}, legend=ABOVE)


def step_parts(account: RankTrace) -> go.Figure:
    steps = account.step_times
    parts = pd.DataFrame(
        {title: [_part_ns(step, title) / 1e9 for step in steps] for title in PARTS}, index=[step.step for step in steps]
    )
    parts = thinned(parts)
    figure = go.Figure(layout=plain_layout())
    for title, (kind, _) in PARTS.items():
        if parts[title].any():
            figure.add_trace(go.Bar(x=parts.index, y=parts[title], name=title, marker={"color": theme().kinds[kind]}))
    axis = duration_axis(float(parts.sum(axis=1).max()))
    figure.update_layout(barmode="stack", bargap=gap_between(len(parts)), legend=ABOVE, yaxis=axis)
    return figure.update_layout(xaxis={"title": "step", **step_ticks(parts.index)})


def named_first(accounts: Sequence[RankTrace], named: Sequence[int | None]) -> list[RankTrace]:
    return sorted(accounts, key=lambda account: account.rank not in named)


def share_bars(account: RankTrace) -> list[html.Ul]:
    parts = {title: float(_part_ns(account, title)) for title in PARTS}
    colours = {title: theme().kinds[kind] for title, (kind, _) in PARTS.items()}
    return part_list(parts, colours, lambda ns: duration_ns(int(ns)))


def _part_ns(account: RankTrace | StepTime, title: str) -> int:
    """Return the nanoseconds that a rank or step spent in the part `title`, a key of `PARTS`."""
    times = {
        "compute": account.compute_ns,
        "exposed communication": account.exposed_communication_ns,
        "exposed memory": account.exposed_memory_ns,
        "idle": account.idle_ns,
    }
    return times[title]


def bar_names(accounts: Sequence[RankTrace]) -> list[str]:
    """Return a unique name for each rank's bar; Plotly would draw bars with the same name on top of each other."""
    names = ["unknown rank" if account.rank is None else f"rank {account.rank}" for account in accounts]
    # Several recorded steps of one rank, then several devices of one process.
    if len({*names}) < len(names):
        names = [f"{name}, step {step_numbers(account)}" for name, account in zip(names, accounts, strict=True)]
    if len({*names}) < len(names):
        names = [f"{name}, device {account.device}" for name, account in zip(names, accounts, strict=True)]
    return names


def activity(frame: pd.DataFrame) -> go.Figure:
    """Return a heat map of activity: a row per rank, a column per time interval, on a clock common to all ranks.

    A cell shows what the rank did for most of the interval. `frame` is the result of `traces.views.ranks_timeline`.
    """
    kinds = [kind for kind, _ in PARTS.values()]
    most = frame.assign(most=frame[[field for _, field in PARTS.values()]].to_numpy().argmax(axis=1))
    wide = most.pivot_table(index="ranks", columns="start_ns", values="most", sort=False)
    starts = wide.columns.to_numpy(float)
    scale = [(edge / len(kinds), theme().kinds[kind]) for i, kind in enumerate(kinds) for edge in (i, i + 1)]
    figure = go.Figure(
        go.Heatmap(
            z=wide.to_numpy(),
            x=starts,
            y=[ranks_label(ranks) for ranks in wide.index],
            customdata=[
                [f"{duration_ns(at)}: mostly {list(PARTS)[int(code)]}" for code, at in zip(row, starts, strict=True)]
                for row in wide.to_numpy()
            ],
            hovertemplate="%{y} at %{customdata}<extra></extra>",
            colorscale=scale,
            zmin=0,
            zmax=len(kinds),
            showscale=False,
            ygap=2,
        ),
        layout=plain_layout(),
    )
    for title, (kind, _) in PARTS.items():
        figure.add_trace(legend_entry(title, theme().kinds[kind]))
    ends = (float(starts.min()), float(starts.max())) if len(starts) else (0.0, 0.0)
    axis = {"title": "time on the common clock", **ticks_across(*ends)}
    return _rows_down(figure, len(wide)).update_layout(showlegend=True, legend=NAMES_ABOVE, xaxis=axis)


def lateness(frame: pd.DataFrame) -> go.Figure:
    """Return a heat map of how late each rank arrives at each collective.

    `frame` is the result of `traces.views.lateness`.
    """
    # A rank may arrive before the median of the others: early is not late.
    wide = frame.pivot_table(index="rank", columns="which", values="late_ns").clip(lower=0)
    names = frame.drop_duplicates("which").set_index("which")["name"]
    latest = max(float(np.nanmax(wide.to_numpy())), _SHORTEST_NS)
    figure = go.Figure(
        go.Heatmap(
            z=wide.to_numpy(),
            x=[f"#{which}" for which in wide.columns],
            y=[f"rank {rank}" for rank in wide.index],
            customdata=[
                [f"{plain(names[which])}: {'not in it' if isnan(late) else duration_ns(late) + ' late'}"
                 for which, late in zip(wide.columns, row, strict=True)]
                for row in wide.to_numpy()
            ],
            hovertemplate="%{y}, %{x} %{customdata}<extra></extra>",
            colorscale=heat_scale(),
            zmin=0,
            zmax=latest,
            colorbar={"title": "late by", **duration_ticks(0, latest)},
            xgap=1,
            ygap=1,
        ),
        layout=plain_layout(),
    )  # fmt: skip
    return _rows_down(figure, len(wide)).update_layout(xaxis=COLLECTIVES_ACROSS)


def bytes_sent(frame: pd.DataFrame) -> go.Figure:
    """Return a heat map of bytes sent: a row per sender, a column per receiver.

    `frame` is the result of `traces.views.traffic`.
    """
    most, gap = int(np.nanmax(frame.to_numpy())), int(frame.shape[1] <= _FINE)
    texts = [["" if isnan(sent) else size(int(sent)) for sent in row] for row in frame.to_numpy()]
    figure = go.Figure(
        go.Heatmap(
            z=frame.to_numpy(),
            x=[*frame.columns],
            y=[f"rank {rank}" for rank in frame.index],
            text=texts,
            texttemplate="%{text}" if frame.shape[1] <= _READABLE else None,
            hovertemplate="%{y} to rank %{x}: %{text}<extra></extra>",
            hoverongaps=False,
            colorscale=heat_scale(),
            zmin=0,
            zmax=most or 1,
            colorbar=byte_ticks(most),
            xgap=gap,
            ygap=gap,
        ),
        layout=plain_layout(),
    )
    across = {"type": "category", "side": "top", "title": "to rank", "automargin": True}
    return _rows_down(figure, len(frame)).update_layout(xaxis=across)


def _rows_down(figure: go.Figure, rows: int) -> go.Figure:
    axis = {"autorange": "reversed", "automargin": True}
    return figure.update_layout(yaxis=axis, height=140 + 24 * min(rows, _TALLEST_ROWS))


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
