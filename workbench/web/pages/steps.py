"""The page on step logs: the phases of one rank's steps, the duration of the steps of all ranks, and the loss.

In the address, `rank=N` selects the rank, and `steps=5-7` the steps.
"""

from collections.abc import Sequence
from math import ceil, floor

import plotly.graph_objects as go
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from analyzers.run import TIMED
from analyzers.steps import views
from analyzers.steps.model import StepsData
from workbench.axes import Span
from workbench.console import clean
from workbench.present.tables.steps import steps_tables
from workbench.rooms import EvidenceLink
from workbench.web.components.figure import Drawing, drawn, zoom_of
from workbench.web.components.links import Elements, choice, not_recorded, prose, table_tab, workspace
from workbench.web.components.step_charts import (
    failed_step,
    loss_chart,
    mark_failure,
    phase_bars,
    phase_stack,
    step_durations,
)
from workbench.web.page import ALL, Page, rank_query, whole_number, zoomed_range
from workbench.web.query import Query, number
from workbench.web.served_run import ServedRun
from workbench.web.step_window import Window, parse_steps

_CHARTS = ("times", "phases", "loss")
_HINT = "Drag: zoom, in all three charts. Double-click: all steps."


def layout(served: ServedRun, query: Query) -> html.Div:
    data = served.data(StepsData)
    if data is None:
        return not_recorded("step logs", "To record the steps of a job, start it with")
    rank = _shown_rank(served, data, query)
    times, phases, loss = figures(served, data, rank, window(served, query).steps)
    names = [(str(r.rank), f"rank {r.rank}") for r in data.ranks]
    bar: Elements = [
        html.H2("Steps"),
        choice("rank", names, str(rank), query, "a rank"),
        html.P(_HINT, className="hint"),
    ]
    canvas: Elements = [
        html.H2(f"Phases of each step of rank {rank}"),
        drawn(
            "phases", phases, f"Time of each phase in the steps of rank {rank}", zooms=True, fills=True, crosshair=True
        ),
        html.H2("Duration of each step by rank"),
        drawn("times", times, "Duration of each step, one line for each rank", zooms=True, fills=True, crosshair=True),
        html.H2("Loss"),
        drawn("loss", loss, "Loss of each step", zooms=True, fills=True, crosshair=True),
        dcc.Store(id="rank", data=rank),
    ]
    sections = [section for section in steps_tables(data) if section.rows]
    tabs = [table_tab(f"table-{position}", section) for position, section in enumerate(sections, 1)]
    return workspace(bar, canvas, inspector(served, rank), tabs, query, tall=True)


def inspector(served: ServedRun, rank: int) -> Elements:
    """Return the mean time of each phase on rank `rank`, and what the report says about the steps."""
    found = [finding for finding in served.report.findings if finding.id.startswith("steps.")]
    phases = views.phases(served.run.of(*TIMED), served.options, rank).droplevel("rank")
    return [
        html.H2(f"Rank {rank}, mean step"),
        *phase_bars(phases),
        *(part for finding in found for part in (html.H2(clean(finding.title)), html.P(prose(finding.why)))),
    ]


def _shown_rank(served: ServedRun, data: StepsData, query: Query) -> int:
    """Return the rank whose phases are shown: the one in the address, else one that the report names.

    The report names the first straggler, or else the ranks of the verdict; without either it is the first rank.
    """
    ranks = [rank.rank for rank in data.ranks]
    named = [*(straggler.rank for straggler in data.stragglers), *served.report.verdict.ranks]
    default = next((rank for rank in named if rank in ranks), ranks[0])
    rank = number(query, "rank", max(ranks) + 1, default)
    return rank if rank in ranks else ranks[0]


def window(_served: ServedRun, query: Query) -> Window:
    """Return the range of steps that the address selects, rounded to whole steps, because each bar is a step."""
    steps = parse_steps(query.get("steps", ""))
    return Window(None, (float(floor(steps[0])), float(ceil(steps[1]))) if steps else None)


def figures(served: ServedRun, data: StepsData, rank: int, steps: Span | None) -> Sequence[go.Figure]:
    """Return the charts of durations, phases and loss for `steps`, a range (first, end), or for all steps if None."""
    logs = served.run.of(*TIMED)
    low, high = steps or ALL
    series = views.series(logs, served.options)
    series = series[(series["step"] >= low) & (series["step"] < high)]
    phases = views.phases(logs, served.options, rank).droplevel("rank")
    phases = phases[(phases.index >= low) & (phases.index < high)]
    nonfinite = data.first_nonfinite_step
    marked = nonfinite if nonfinite is not None and low <= nonfinite < high else None
    stragglers = [straggler.rank for straggler in data.stragglers]
    charts = step_durations(series, stragglers), phase_stack(phases), loss_chart(series, marked)
    failed = failed_step(served.report)
    if failed is not None and failed != marked and low <= failed < high:
        for chart in charts:
            mark_failure(chart, failed)
    # A bar reaches half a step to either side of its number, and the same step is at the same place in all charts.
    if steps:
        axis: dict[str, object] = {"range": [low - 0.5, high - 0.5]}
    else:
        numbers = [*series["step"], *([failed] if failed is not None else [])]
        ends = [min(numbers) - 0.5, max(numbers) + 0.5] if numbers else [0, 1]
        axis = {"autorangeoptions": {"include": ends, "clipmin": ends[0], "clipmax": ends[1]}}
    for chart in charts:
        # The page's style sheet says how high they are, which depends on the window.
        chart.update_xaxes(**axis).update_layout(height=None)
    return charts


def install(app: Dash, served: ServedRun) -> None:
    """Register the callback of zooms: a zoom in one chart applies to all three charts.

    The steps are read again, so that the charts show steps that were left out of a longer range.
    """
    data = served.data(StepsData)
    if data is None:
        return

    @app.callback(
        *(Output(chart, "figure") for chart in _CHARTS),
        Output("window", "data", allow_duplicate=True),
        *(Input(zoom_of(chart), "data") for chart in _CHARTS),
        State("rank", "data"),
        prevent_initial_call=True,
    )
    def zoom(*given: object) -> object:
        *zooms, rank = given
        triggers = [zoom_of(chart) for chart in _CHARTS]
        at = triggers.index(str(ctx.triggered_id)) if ctx.triggered_id in triggers else 0
        if (wanted := zoomed_range(zooms[at])) is None:
            return (no_update,) * (len(_CHARTS) + 1)
        shown = Window(None, None if wanted == ALL else _steps_between(wanted))
        return *figures(served, data, whole_number(rank) or 0, shown.steps), shown.state()


def _steps_between(wanted: Span) -> Span:
    """Return the whole steps in the range `wanted` of the axis as (first, last + 1).

    If the range contains no whole step, return the step nearest to its middle.
    """
    first, last = ceil(wanted[0]), floor(wanted[1])
    # A narrow drag may contain no whole step.
    first = first if first <= last else max(0, round(sum(wanted) / 2))
    return float(first), float(max(first, last) + 1)


def _evidence_drawing(served: ServedRun, at: EvidenceLink) -> Drawing | None:
    """Return a chart of step logs with its caption; None without step logs.

    It shows the loss, or the phases of the finding's rank, or else the duration of the steps of all ranks.
    """
    logs, data = served.run.of(*TIMED), served.data(StepsData)
    if data is None:
        return None
    if at.part == "phases" and at.rank is not None:
        phases = views.phases(logs, served.options, at.rank).droplevel("rank")
        return f"Time of each phase in the steps of rank {at.rank}", phase_stack(phases)
    series = views.series(logs, served.options)
    if at.part == "loss":
        return "Loss of each step", loss_chart(series, data.first_nonfinite_step)
    return "Duration of each step, by rank", step_durations(series, [straggler.rank for straggler in data.stragglers])


PAGE = Page("Steps", layout, window, install, rank_query, _evidence_drawing)
