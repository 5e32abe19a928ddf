"""Steps and traces: durations over steps, what a step is made of, and the events of a window."""

from collections.abc import Mapping, Sequence
from math import ceil, floor, isnan, log10
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analyzers.traces.structs import RankTrace
from analyzers.words import duration_ns, size
from workbench.colours import EVENT_KINDS, HEAT, PHASES, STATUSES, nth_colour
from workbench.present.tables.trace import step_numbers
from workbench.web.components.figure import ABOVE, PLAIN, byte_ticks, figure_of, key, plain

MOST_RANKS = 12
MOST_STEPS = 1000
PARTS = {
    "compute": ("compute", "compute_ns"),
    "exposed communication": ("communication", "exposed_communication_ns"),
    "exposed memory": ("memory", "exposed_memory_ns"),
    "idle": ("idle", "idle_ns"),
}
FEW = 12
READABLE = 16
FINE = 80
"""Columns of a heat map whose cells have room for a number, and for a line around each."""
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down")
ROW_PX = 18
LANE, LANES_PX = 32, 190
"""Characters of a lane's name that there is room for, and the width that they take."""
SHORTEST_MS = 0.001
UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1))
ROOM = 1 / 60
"""Of the width of a picture, for the name of an event: laying names out that nobody can read takes most of the time."""


def step_times(series: pd.DataFrame, named: Sequence[int]) -> go.Figure:
    """Duration of each step by rank. Of many ranks the median and the slowest, with those in `named` on top."""
    wide = thinned(series.pivot_table(index="step", columns="rank", values="dur_s")).add_prefix("rank ")
    lines = wide if wide.shape[1] <= MOST_RANKS else folded(wide, named)
    return lines_of(lines, "seconds").update_layout(hovermode="x unified")


def folded(wide: pd.DataFrame, named: Sequence[int]) -> pd.DataFrame:
    """The median and the maximum over ranks, and the ranks that are spoken of."""
    apart = [f"rank {rank}" for rank in named][:MOST_RANKS]
    return wide[apart].assign(**{"median rank": wide.median(axis=1), "slowest rank": wide.max(axis=1)})


def thinned(table: pd.DataFrame) -> pd.DataFrame:
    """At most `MOST_STEPS` rows; of each stretch the one with the largest value, so that every spike survives."""
    width = -(-len(table) // MOST_STEPS)
    if width <= 1:
        return table
    keys = [position // width for position in range(len(table))]
    highest = table.max(axis=1).reset_index(drop=True)
    return table.iloc[highest.groupby(keys).idxmax().to_numpy()]


def lines_of(table: pd.DataFrame, unit: str) -> go.Figure:
    """A line a column."""
    figure = go.Figure(layout=PLAIN)
    for i, column in enumerate(table.columns):
        figure.add_trace(
            go.Scatter(
                x=table.index,
                y=table[column],
                name=column,
                mode="lines+markers",
                line={"color": nth_colour(i), "width": 1},
                marker={"symbol": SYMBOLS[i % len(SYMBOLS)]},
            )
        )
    if len(table) <= FEW:
        figure.update_xaxes(dtick=1)  # there is no step 1.5
    figure.update_layout(xaxis={"title": "step"}, yaxis={"title": unit}, height=300, legend=ABOVE)
    return figure


def phase_stack(phases: pd.DataFrame) -> go.Figure:
    """What the steps of one rank are made of, largest phase at the bottom. Rows are steps, columns phases, seconds."""
    thin = thinned(phases)
    figure = go.Figure(layout=PLAIN)
    for i, name in enumerate(sorted(thin.columns, key=lambda column: -thin[column].sum())):
        if thin[name].any():
            title = plain(name).replace("_", " ")
            figure.add_trace(go.Bar(x=thin.index, y=thin[name], name=title, marker=shade(name, i)))
    figure.update_layout(barmode="stack", bargap=0.05, height=320, legend=ABOVE)
    figure.update_layout(xaxis={"title": "step"}, yaxis={"title": "seconds"})
    return figure


def shade(phase: str, index: int) -> dict[str, Any]:
    """The colour that a phase has on every face; the others are hatched, as there are not that many colours."""
    hatched = {} if phase in PHASES else {"pattern": {"shape": "/"}}
    return {"color": PHASES.get(phase, nth_colour(index)), **hatched}


def shares(accounts: Sequence[RankTrace]) -> go.Figure:
    """How the time of each traced rank divides: a bar a rank, its parts in per cent of the span."""
    names = labels(accounts)
    figure = go.Figure(layout=PLAIN)
    for title, (kind, field) in PARTS.items():
        parts = [getattr(account, field) for account in accounts]
        figure.add_trace(
            go.Bar(
                y=names,
                x=[100 * ns / max(1, account.span_ns) for ns, account in zip(parts, accounts, strict=True)],
                orientation="h",
                name=title,
                marker={"color": EVENT_KINDS[kind]},
                customdata=[duration_ns(ns) for ns in parts],
                hovertemplate="%{y}: %{customdata} (%{x:.1f} %)<extra>%{fullData.name}</extra>",
            )
        )
    figure.update_layout(barmode="stack", height=150 + 30 * len(accounts), xaxis={"title": "per cent of the span"})
    return figure.update_layout(yaxis={"autorange": "reversed"}, legend=ABOVE)


def labels(accounts: Sequence[RankTrace]) -> list[str]:
    """A name for each bar; bars of one name Plotly would put on top of each other."""
    names = [f"rank {account.rank}" for account in accounts]
    if len({*names}) < len(names):
        names = [f"{name}, step {step_numbers(one)}" for name, one in zip(names, accounts, strict=True)]
    if len({*names}) < len(names):
        names = [f"{name}, device {one.device}" for name, one in zip(names, accounts, strict=True)]
    return names


def gantt(blocks: pd.DataFrame, window: tuple[int, int], colours: Mapping[str, str]) -> dict[str, Any]:
    """The blocks of `traces.views.timeline`, a row a lane and depth, in nanoseconds from the first event.

    `blocks` has a column `colour` that says what is told by colour; `colours` has one for each of its values.
    """
    rows = lanes(blocks)
    room = (window[1] - window[0]) * ROOM
    named = blocks["name"].map(plain).where(blocks["dur_ns"] >= room, "")
    placed = blocks.assign(event=blocks["row"], row=[rows[key] for key in keys_of(blocks)], text=named)
    parts = placed.groupby("colour", sort=False)
    firsts = {lane: row for (lane, depth), row in reversed(rows.items()) if depth == 0}
    layout = {
        "barmode": "overlay",
        "bargap": 0.1,
        "height": 140 + ROW_PX * len(rows),
        "showlegend": True,
        "legend": ABOVE,
        "xaxis": {"range": list(window), **time_ticks(*window)},
        "yaxis": {
            "autorange": "reversed",
            "tickvals": list(firsts.values()),
            "ticktext": [plain(lane[:LANE]) for lane in firsts],
            "fixedrange": True,
        },
        "uniformtext": {"minsize": 9, "mode": "hide"},
        "margin": {**PLAIN["margin"], "l": LANES_PX},
    }
    return figure_of([bars(str(value), colours[str(value)], some) for value, some in parts], layout)


def time_ticks(low: int, high: int) -> dict[str, Any]:
    """Ticks of an axis in nanoseconds, in the unit that its length is best told in."""
    unit, scale = next((one for one in UNITS if high - low >= 2 * one[1]), UNITS[-1])
    step = 10 ** floor(log10((high - low) / scale))
    step *= next(part for part in (0.2, 0.5, 1) if (high - low) / scale <= 6 * part * step or part == 1)
    first, last = ceil(low / scale / step), floor(high / scale / step)
    digits = max(0, -floor(log10(step)))
    at = [number * step for number in range(first, last + 1)]
    return {
        "title": {"text": f"{unit} from the first event"},
        "tickvals": [one * scale for one in at],
        "ticktext": [f"{one:.{digits}f}" for one in at],
    }


def bars(title: str, colour: str, blocks: pd.DataFrame) -> dict[str, Any]:
    """The blocks of one colour."""
    facts = zip(blocks["count"].tolist(), blocks["busy_ns"].tolist(), blocks["dur_ns"].tolist(), strict=True)
    return {
        "type": "bar",
        "base": blocks["start_ns"].tolist(),
        "x": blocks["dur_ns"].clip(lower=1).tolist(),
        "y": blocks["row"].tolist(),
        "width": 0.9,  # else Plotly takes the least distance between two bars of one colour for it
        "orientation": "h",
        "name": plain(title or "host"),
        "marker": {"color": colour, "line": {"width": 0}},
        "text": blocks["text"].tolist(),
        "textposition": "inside",
        "insidetextanchor": "start",
        "hovertext": blocks["name"].map(plain).tolist(),
        "customdata": [(told(*fact), row) for row, fact in zip(blocks["event"].tolist(), facts, strict=True)],
        "hovertemplate": "%{hovertext}<br>%{customdata[0]}<extra></extra>",
    }


def told(count: int, busy_ns: int, dur_ns: int) -> str:
    if count == 1:
        return duration_ns(dur_ns)
    return f"the longest of {count} events, {duration_ns(busy_ns)} in {duration_ns(dur_ns)}: zoom in"


def keys_of(blocks: pd.DataFrame) -> list[tuple[str, int]]:
    return list(zip(blocks["lane"], blocks["depth"], strict=True))


def lanes(blocks: pd.DataFrame) -> dict[tuple[str, int], int]:
    """The row of each lane and depth: devices first, then host threads, each with its nesting below it."""
    order = blocks.sort_values(["on_device", "lane", "depth"], ascending=[False, True, True])
    return {key: row for row, key in enumerate(dict.fromkeys(keys_of(order)))}


def fleet(frame: pd.DataFrame) -> go.Figure:
    """What each rank does in most of each stretch of the common clock, from `traces.views.ranks_timeline`."""
    kinds = [kind for kind, _ in PARTS.values()]
    most = frame.assign(most=frame[[field for _, field in PARTS.values()]].to_numpy().argmax(axis=1))
    wide = most.pivot_table(index="ranks", columns="start_ns", values="most", sort=False)
    scale = [(edge / len(kinds), EVENT_KINDS[kind]) for i, kind in enumerate(kinds) for edge in (i, i + 1)]
    figure = go.Figure(
        go.Heatmap(
            z=wide.to_numpy(),
            x=wide.columns.to_numpy(float) / 1e6,
            y=[f"rank {ranks}" for ranks in wide.index],
            customdata=[[list(PARTS)[int(code)] for code in row] for row in wide.to_numpy()],
            hovertemplate="%{y} at %{x:.1f} ms: mostly %{customdata}<extra></extra>",
            colorscale=scale,
            zmin=0,
            zmax=len(kinds),
            showscale=False,
            ygap=2,
        ),
        layout=PLAIN,
    )
    for title, (kind, _) in PARTS.items():
        figure.add_trace(key(title, EVENT_KINDS[kind]))
    figure.update_layout(showlegend=True, legend=ABOVE)
    return rows_down(figure, len(wide)).update_layout(xaxis={"title": "ms on the common clock"})


def lateness(frame: pd.DataFrame) -> go.Figure:
    """How late each rank comes to each collective, from `traces.views.lateness`."""
    wide = frame.pivot_table(index="rank", columns="which", values="late_ns").clip(lower=0)
    names = frame.drop_duplicates("which").set_index("which")["name"]
    figure = go.Figure(
        go.Heatmap(
            z=wide.to_numpy() / 1e6,
            x=[f"#{which}" for which in wide.columns],
            y=[f"rank {rank}" for rank in wide.index],
            customdata=[[plain(names[which]) for which in wide.columns]] * len(wide),
            hovertemplate="%{y}, %{x} %{customdata}: %{z:.2f} ms late<extra></extra>",
            colorscale=[(0, "#f2f2f2"), (1, EVENT_KINDS["communication"])],
            zmin=0,
            zmax=max(np.nanmax(wide.to_numpy()) / 1e6, SHORTEST_MS),
            colorbar={"title": "ms"},
            xgap=1,
            ygap=1,
        ),
        layout=PLAIN,
    )
    # Plotly would take #3 for a number.
    return rows_down(figure, len(wide)).update_layout(xaxis={"type": "category"})


def traffic(frame: pd.DataFrame) -> go.Figure:
    """Bytes that each rank (down) sends to each other (across), from `traces.traffic`."""
    most, gap = int(np.nanmax(frame.to_numpy())), int(frame.shape[1] <= FINE)
    told = [["" if isnan(sent) else size(int(sent)) for sent in row] for row in frame.to_numpy()]
    figure = go.Figure(
        go.Heatmap(
            z=frame.to_numpy(),
            x=[*frame.columns],
            y=[f"rank {rank}" for rank in frame.index],
            text=told,
            texttemplate="%{text}" if frame.shape[1] <= READABLE else None,
            hovertemplate="%{y} to %{x}: %{text}<extra></extra>",
            hoverongaps=False,
            colorscale=[(i / (len(HEAT) - 1), colour) for i, colour in enumerate(HEAT)],
            zmin=0,
            zmax=most or 1,
            colorbar=byte_ticks(most),
            xgap=gap,
            ygap=gap,
        ),
        layout=PLAIN,
    )
    across = {"type": "category", "side": "top", "title": "to rank", "automargin": True}
    return rows_down(figure, len(frame)).update_layout(xaxis=across)


def rows_down(figure: go.Figure, rows: int) -> go.Figure:
    """Ranks from top to bottom, each with room for its name."""
    return figure.update_layout(yaxis={"autorange": "reversed"}, height=120 + 24 * min(rows, 40))


def losses(series: pd.DataFrame, nonfinite: int | None) -> go.Figure:
    """The loss by step; a line marks the first step without a finite one."""
    known = series.dropna(subset="loss").groupby("step")["loss"].max().to_frame("loss")
    figure = lines_of(thinned(known), "loss")
    if nonfinite is not None:
        figure.add_vline(x=nonfinite, line={"color": STATUSES["error"]}, annotation_text="not finite")
    return figure
