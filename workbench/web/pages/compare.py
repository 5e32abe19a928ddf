"""The page that compares two runs.

In its address, `by=` selects how memory is grouped, and `kind=` which items of the traces are listed.
"""

from collections.abc import Collection, Iterator

import pandas as pd
from dash import html
from dash.development.base_component import Component

from analyzers.compare import CompareData
from analyzers.memory.diff import Diff
from analyzers.run import TIMED, Run
from analyzers.steps import views
from analyzers.traces.diff import TraceDiff
from analyzers.words import duration_ns
from workbench.console import clean
from workbench.present.tables import comparison
from workbench.web.components.comparison import (
    both_runs,
    bytes_waterfall,
    changes,
    nanoseconds_waterfall,
    seconds_waterfall,
)
from workbench.web.components.figure import Drawing, FigurePart, drawn
from workbench.web.components.links import choice, table, verdict
from workbench.web.components.step_charts import duration_axis, thinned
from workbench.web.page import Page
from workbench.web.query import Query
from workbench.web.served_run import ServedRun

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
    """Return the folder of a run as a link to its own dashboard; `side` is "a" or "b"."""
    return html.A(clean(run.root), href=f"open/{side}/")


def beside(*parts: Component | None) -> html.Div:
    return html.Div([part for part in parts if part is not None], className="beside")


def _step_waterfall(data: CompareData) -> Drawing | None:
    if not data.phases:
        return None
    parts = [(phase.what, phase.change_s) for phase in data.phases if phase.change_s]
    whole = (sum(phase.a_s for phase in data.phases), sum(phase.b_s for phase in data.phases))
    return "From the mean step of run A to that of run B, by phase", seconds_waterfall(parts, whole)


def _trace_waterfall(diff: TraceDiff) -> Drawing:
    parts = [(part.what, part.change_ns) for part in diff.parts]
    figure = nanoseconds_waterfall(parts, (diff.step_a_ns, diff.step_b_ns))
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
            figure = both_runs(lines, _series_axis(column, lines))
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
