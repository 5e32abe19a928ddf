"""Steps and traces: durations over steps, what a step is made of, and the events of a window."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from analyzers.traces import RankTrace
from workbench.palette import KINDS, STATUSES, qualitative
from workbench.present.units import nanoseconds
from workbench.web.components.figure import PLAIN, plain

MOST_RANKS = 12
MOST_STEPS = 1000
PARTS = {
    "compute": ("compute", "compute_ns"),
    "exposed communication": ("communication", "exposed_communication_ns"),
    "exposed memory": ("memory", "exposed_memory_ns"),
    "idle": ("idle", "idle_ns"),
}
ROW_PX = 18


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
                line={"color": qualitative(i), "width": 1},
            )
        )
    figure.update_layout(xaxis={"title": "step"}, yaxis={"title": unit}, height=300)
    return figure


def phase_stack(phases: pd.DataFrame) -> go.Figure:
    """What the steps of one rank are made of, largest phase at the bottom. Rows are steps, columns phases, seconds."""
    thin = thinned(phases)
    figure = go.Figure(layout=PLAIN)
    for i, name in enumerate(sorted(thin.columns, key=lambda column: -thin[column].sum())):
        if thin[name].any():
            figure.add_trace(
                go.Bar(x=thin.index, y=thin[name], name=plain(name).replace("_", " "), marker={"color": qualitative(i)})
            )
    figure.update_layout(barmode="stack", bargap=0.05, height=320, xaxis={"title": "step"}, yaxis={"title": "seconds"})
    return figure


def shares(accounts: Sequence[RankTrace]) -> go.Figure:
    """How the time of each traced rank divides: a bar a rank, its parts in per cent of the span."""
    names = [f"rank {account.rank}" for account in accounts]
    figure = go.Figure(layout=PLAIN)
    for title, (kind, field) in PARTS.items():
        parts = [getattr(account, field) for account in accounts]
        figure.add_trace(
            go.Bar(
                y=names,
                x=[100 * ns / max(1, account.span_ns) for ns, account in zip(parts, accounts, strict=True)],
                orientation="h",
                name=title,
                marker={"color": KINDS[kind]},
                customdata=[nanoseconds(ns) for ns in parts],
                hovertemplate="%{y}: %{customdata} (%{x:.1f} %)<extra>%{fullData.name}</extra>",
            )
        )
    figure.update_layout(barmode="stack", height=150 + 30 * len(accounts), xaxis={"title": "per cent of the span"})
    return figure.update_layout(yaxis={"autorange": "reversed"}, legend={"orientation": "h", "y": 1.2})


def gantt(spans: pd.DataFrame, window: tuple[int, int]) -> go.Figure:
    """The events of a window, a row a lane and depth, in nanoseconds from the first event."""
    rows = lanes(spans)
    figure = go.Figure(layout=PLAIN)
    for kind, some in spans.assign(row=[rows[key] for key in keys_of(spans)]).groupby("kind", sort=False):
        figure.add_trace(
            go.Bar(
                base=some["start_ns"],
                x=some["dur_ns"].clip(lower=1),
                y=some["row"],
                orientation="h",
                name=str(kind) or "host",
                marker={"color": KINDS[str(kind)], "line": {"width": 0.5, "color": "#ffffff"}},
                text=[plain(name) for name in some["name"]],
                textposition="inside",
                insidetextanchor="start",
                customdata=[
                    [plain(cat), nanoseconds(int(ns))] for cat, ns in zip(some["cat"], some["dur_ns"], strict=True)
                ],
                hovertemplate="%{text}<br>%{customdata[0]}, %{customdata[1]}<extra></extra>",
            )
        )
    firsts = {lane: row for (lane, depth), row in reversed(rows.items()) if depth == 0}
    figure.update_layout(
        barmode="overlay",
        bargap=0.1,
        height=140 + ROW_PX * len(rows),
        showlegend=True,
        legend={"orientation": "h", "y": 1.1},
        xaxis={"title": "ns from the first event", "range": list(window), "tickformat": "~s"},
        yaxis={
            "autorange": "reversed",
            "tickvals": list(firsts.values()),
            "ticktext": [plain(lane)[:28] for lane in firsts],
            "fixedrange": True,
        },
        uniformtext={"minsize": 9, "mode": "hide"},
        margin={"l": 170},
    )
    return figure


def keys_of(spans: pd.DataFrame) -> list[tuple[str, int]]:
    return list(zip(spans["lane"], spans["depth"], strict=True))


def lanes(spans: pd.DataFrame) -> dict[tuple[str, int], int]:
    """The row of each lane and depth: devices first, then host threads, each with its nesting below it."""
    order = spans.sort_values(["on_device", "lane", "depth"], ascending=[False, True, True])
    return {key: row for row, key in enumerate(dict.fromkeys(keys_of(order)))}


def losses(series: pd.DataFrame, nonfinite: int | None) -> go.Figure:
    """The loss by step; a line marks the first step without a finite one."""
    known = series.dropna(subset="loss").groupby("step")["loss"].max().to_frame("loss")
    figure = lines_of(thinned(known), "loss")
    if nonfinite is not None:
        figure.add_vline(x=nonfinite, line={"color": STATUSES["error"]}, annotation_text="not finite")
    return figure
