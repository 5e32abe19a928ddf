"""Durations, phases and loss over the steps; `?rank=N` chooses whose phases are shown."""

from dash import html

from analyzers.steps import views
from workbench.ask import ROOMS
from workbench.present.sections import steps as tables_of
from workbench.web.components.figure import drawn
from workbench.web.components.text import choice, table
from workbench.web.components.timing import losses, phase_stack, step_times
from workbench.web.view import View, number


def layout(view: View, query: dict[str, str]) -> html.Div:
    if "steps" not in view.parts:
        return html.Div("This run holds no step logs.")
    data = view.parts["steps"]
    artefacts = view.run.of(*ROOMS["steps"])
    series = views.series(artefacts, view.options)
    ranks = [rank.rank for rank in data.ranks]
    named = [straggler.rank for straggler in data.stragglers]
    at = number(query, "rank", max(ranks) + 1, named[0] if named else ranks[0])
    rank = at if at in ranks else ranks[0]
    phases = views.phases(artefacts, view.options, rank).droplevel("rank")
    return html.Div(
        [
            html.H2("Duration of each step"),
            drawn("step-times", step_times(series, named), "Duration of each step, a line a rank"),
            html.H2(f"What the steps of rank {rank} are made of"),
            choice("rank", [(str(r), f"rank {r}") for r in ranks], str(rank)),
            drawn("phases", phase_stack(phases), f"Seconds by phase of each step of rank {rank}"),
            html.H2("Loss"),
            drawn("loss", losses(series, data.first_nonfinite_step), "Loss by step"),
            *(table(section) for section in tables_of(data) if section.rows),
        ]
    )
