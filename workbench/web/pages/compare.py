"""The page that compares two runs.

In its address, `by=` selects how memory is grouped, and `kind=` which items of the traces are listed.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

import pandas as pd
import plotly.graph_objects as go
from dash import html
from dash.development.base_component import Component

from analyzers.compare import CompareData
from analyzers.memory.diff import Diff
from analyzers.run import TIMED, Run
from analyzers.steps import views
from analyzers.traces.diff import TraceDiff
from analyzers.words import duration_ns, size
from workbench.console import clean
from workbench.present.tables import comparison
from workbench.present.tables.comparison import Formatter, signed
from workbench.web.components.figure import (
    ABOVE,
    MOST_BESIDE_TICKS,
    Drawing,
    FigurePart,
    byte_ticks,
    drawn,
    narrow,
    plain,
    plain_layout,
    theme,
    ticks_across,
)
from workbench.web.components.links import choice, table, verdict
from workbench.web.components.step_charts import duration_axis, step_ticks, thinned
from workbench.web.page import Page
from workbench.web.query import Query
from workbench.web.served_run import ServedRun

_MORE, _LESS, _WHOLE = "violet", "teal", "grey"
"""The names of the colours of bars; the sign of each number says the same as its colour."""
_SIDES = {"a": "grey", "b": "blue"}
_DASHES = {"a": "dot", "b": "solid"}
BARS, NAME, _NARROW_NAME = 20, 34, 18
_LEAST_SHARE = 0.002
"""The share of the larger run's total below which a change has no bar of its own, because nobody would see it."""
_ROW_PX = 26


def bytes_waterfall(parts: Sequence[tuple[str, float]], ends: tuple[int, int]) -> go.Figure:
    return waterfall(parts, ends, size).update_xaxes(**byte_ticks(max(ends), MOST_BESIDE_TICKS))


def _seconds_waterfall(parts: Sequence[tuple[str, float]], ends: tuple[float, float]) -> go.Figure:
    scaled = [(name, change * 1e9) for name, change in parts]
    return _nanoseconds_waterfall(scaled, (ends[0] * 1e9, ends[1] * 1e9))


def _nanoseconds_waterfall(parts: Sequence[tuple[str, float]], ends: tuple[float, float]) -> go.Figure:
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
        height=50 + _ROW_PX * len(names),
    )


def _both_runs(series: Mapping[str, "pd.Series[float]"], axis: FigurePart) -> go.Figure:
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


LISTED = 40


def layout(served: ServedRun, query: Query) -> html.Div:
    """Return the page that compares two runs; if the dashboard was started for one run, return a hint.

    `compare A B --web` starts the dashboard of two runs. `query` has the choices in the page's address.
    """
    data = served.data(CompareData)
    if data is None or served.other is None:
        return html.Div("To compare two runs, start the dashboard with: workbench compare A B --web")
    return html.Div(
        [
            verdict(served.report),
            html.P(
                ["run A: ", _run_link(served.run, "a"), ", run B: ", _run_link(served.other, "b")], className="hint"
            ),
            *_mean_step(data),
            *(_profiled_step(data.traces, query) if data.traces else []),
            *(_peak_memory(data.memory, query) if data.memory else []),
            *_step_series(served.run, served.other),
            beside(*(table(one) for one in (comparison.measures(data), comparison.settings(data)) if one.rows)),
        ]
    )


def _run_link(run: Run, side: str) -> html.A:
    return html.A(clean(run.root), href=f"open/{side}/")


def beside(*parts: Component | None) -> html.Div:
    return html.Div([part for part in parts if part is not None], className="beside")


def _step_waterfall(data: CompareData) -> Drawing | None:
    if not data.phases:
        return None
    return "From the mean step of run A to that of run B, by phase", _seconds_waterfall(*comparison.step_changes(data))


def _trace_waterfall(diff: TraceDiff) -> Drawing:
    parts = [(part.what, part.change_ns) for part in diff.parts]
    figure = _nanoseconds_waterfall(parts, (diff.step_a_ns, diff.step_b_ns))
    return "From the profiled step of run A to that of run B, by kind of work", figure


def _memory_waterfall(diff: Diff, by: str) -> Drawing:
    rows = [(change.what, float(change.bytes)) for change in comparison.GROUPINGS[by](diff) if change.bytes]
    return f"From peak a to peak b, by {comparison.SINGULAR[by]}", bytes_waterfall(rows, (diff.a_bytes, diff.b_bytes))


def first_change(data: CompareData) -> Drawing | None:
    """Return the chart that stands beside the verdict on the first page: step time, or else memory."""
    if data.phases:
        return _step_waterfall(data)
    if data.traces:
        return _trace_waterfall(data.traces)
    return _memory_waterfall(data.memory, next(iter(comparison.GROUPINGS))) if data.memory else None


def _mean_step(data: CompareData) -> Iterator[Component]:
    if drawing := _step_waterfall(data):
        title, figure = drawing
        yield html.H2("How the mean step changed")
        yield beside(drawn("step-change", figure, title), table(comparison.step_phases(data)))


def _profiled_step(diff: TraceDiff, query: Query) -> Iterator[Component | None]:
    """Yield the parts of the page about the profiled step: its change, and the kernels that explain it."""
    title, figure = _trace_waterfall(diff)
    yield html.H2("How the profiled step changed")
    yield beside(drawn("trace-change", figure, title), table(comparison.trace_parts(diff)))
    if diff.memory:
        yield table(comparison.device_memory(diff, LISTED))
    if not (kinds := comparison.changed_kinds(diff)):
        return
    kind = chosen(query, "kind", kinds)
    rows = [(change.name, change.change_ns) for change in diff.changes if change.kind == kind]
    yield choice("kind", [(name, f"by {name}") for name in kinds], kind, query, "what is listed")
    yield drawn("kernel-change", changes(rows, duration_ns), f"Time per step that each {kind} gained or lost")
    yield table(comparison.trace_changes(diff, kind, LISTED))


def _peak_memory(diff: Diff, query: Query) -> Iterator[Component | None]:
    """Yield the parts of the page about the change of peak memory.

    In each run, this is the peak of the device with the highest peak.
    """
    by = chosen(query, "by", comparison.GROUPINGS)
    yield html.H2("How the memory at the peak changed")
    groupings = [(grouping, f"by {comparison.SINGULAR[grouping]}") for grouping in comparison.GROUPINGS]
    yield choice("by", groupings, by, query, "how memory is grouped")
    title, figure = _memory_waterfall(diff, by)
    yield beside(drawn("memory-change", figure, title), table(comparison.memory_changes(diff, by, LISTED)))


def chosen(query: Query, name: str, known: Collection[str]) -> str:
    return query[name] if query.get(name) in known else next(iter(known))


def _step_series(a: Run, b: Run) -> Iterator[Component]:
    logs = {side: run.of(*TIMED) for side, run in (("a", a), ("b", b))}
    known = {side: views.series(files) for side, files in logs.items() if files}
    shown = []
    for column, title in (("dur_s", "Duration of each step"), ("loss", "Loss")):
        lines = {side: _by_step(frame, column) for side, frame in known.items() if frame[column].notna().any()}
        if lines:
            figure = _both_runs(lines, _series_axis(column, lines))
            chart = drawn(f"both-{column}", figure, f"{title}, one line for each run")
            shown.append(html.Section([html.H2(f"{title} in both runs"), chart]))
    if shown:
        yield beside(*shown)


def _series_axis(column: str, lines: "dict[str, pd.Series[float]]") -> FigurePart:
    return {"title": "loss"} if column == "loss" else duration_axis(max(float(line.max()) for line in lines.values()))


def _by_step(frame: pd.DataFrame, column: str) -> "pd.Series[float]":
    """Return, for each step, the highest value of `column` over all ranks; at most as many steps as a chart draws.

    The highest duration counts, because a step takes as long as on its slowest rank.
    """
    # `max` over ranks: all wait for the slowest, so its time is the time of the step.
    highest = frame.dropna(subset=column).groupby("step")[column].max()
    return thinned(highest.to_frame())[column]


PAGE = Page("Compare", layout)
