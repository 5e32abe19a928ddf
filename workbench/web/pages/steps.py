"""Durations, phases and loss over the steps; `?rank=N` chooses whose phases are shown, `steps=5-7` which steps."""

from math import ceil, floor
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from analyzers.steps import views
from workbench.ask import ROOMS
from workbench.present.tables.steps import steps_tables as tables_of
from workbench.web.components.figure import ALL, Span, drawn, zoomed
from workbench.web.components.text import choice, table
from workbench.web.components.timing import losses, phase_stack, step_times
from workbench.web.served_run import ServedRun, number
from workbench.web.step_window import Window, read

CHARTS = ("times", "phases", "loss")


def layout(served: ServedRun, query: dict[str, str]) -> html.Div:
    if "steps" not in served.parts:
        return html.Div("This run holds no step logs.")
    data = served.parts["steps"]
    ranks = [rank.rank for rank in data.ranks]
    named = [straggler.rank for straggler in data.stragglers]
    at = number(query, "rank", max(ranks) + 1, named[0] if named else ranks[0])
    rank = at if at in ranks else ranks[0]
    times, phases, loss = figures(served, rank, window(served, query).steps)
    return html.Div(
        [
            html.H2("Duration of each step"),
            html.P("Drag to zoom in, double click for all: the three charts show the same steps.", className="hint"),
            drawn("times", times, "Duration of each step, a line a rank", zooms=True),
            html.H2(f"What the steps of rank {rank} are made of"),
            choice("rank", [(str(r), f"rank {r}") for r in ranks], str(rank), query),
            dcc.Store(id="rank", data=rank),
            drawn("phases", phases, f"Seconds by phase of each step of rank {rank}", zooms=True),
            html.H2("Loss"),
            drawn("loss", loss, "Loss by step", zooms=True),
            *(table(section) for section in tables_of(data) if section.rows),
        ]
    )


def window(_served: ServedRun, query: dict[str, str]) -> Window:
    """The steps in sight; whole ones, as a bar is."""
    wanted = read(query.get("steps", ""))
    return Window(None, whole(wanted) if wanted else None)


def whole(steps: Span) -> Span:
    return float(floor(steps[0])), float(ceil(steps[1]))


def figures(served: ServedRun, rank: int, steps: Span | None) -> tuple[Any, Any, Any]:
    """The three charts, of some steps or of all."""
    data, artefacts = served.parts["steps"], served.run.of(*ROOMS["steps"])
    low, high = steps or ALL
    series = views.series(artefacts, served.options)
    series = series[(series["step"] >= low) & (series["step"] < high)]
    phases = views.phases(artefacts, served.options, rank).droplevel("rank")
    phases = phases[(phases.index >= low) & (phases.index < high)]
    named = [straggler.rank for straggler in data.stragglers]
    broken = data.first_nonfinite_step
    shown = broken if broken is not None and low <= broken < high else None
    found = step_times(series, named), phase_stack(phases), losses(series, shown)
    if steps:  # a bar stands half a step to either side of its number
        for figure in found:
            figure.update_xaxes(range=[low - 0.5, high - 0.5])
    return found


def install(app: Dash, served: ServedRun) -> None:
    """A zoom into one chart narrows all three, and shows steps that were thinned out."""
    if "steps" not in served.parts:
        return

    @app.callback(
        *(Output(chart, "figure") for chart in CHARTS),
        Output("window", "data", allow_duplicate=True),
        *(Input(chart, "relayoutData") for chart in CHARTS),
        State("rank", "data"),
        prevent_initial_call=True,
    )
    def zoom(*given: Any) -> Any:
        *changes, rank = given
        at = CHARTS.index(str(ctx.triggered_id)) if ctx.triggered_id in CHARTS else 0
        if (wanted := zoomed(changes[at])) is None:
            return (no_update,) * 4
        shown = Window(None, None if wanted == ALL else between(wanted))
        return *figures(served, rank, shown.steps), shown.told()


def between(wanted: Span) -> Span:
    """The steps whose numbers lie in a stretch of the axis, at least the nearest one."""
    first, last = ceil(wanted[0]), floor(wanted[1])
    first = first if first <= last else max(0, round(sum(wanted) / 2))
    return float(first), float(max(first, last) + 1)
