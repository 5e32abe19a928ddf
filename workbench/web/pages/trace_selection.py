"""Describe the event that was clicked on the timeline: its times, and the events that enclose it."""

from dash import html

from analyzers.traces import views
from analyzers.words import duration_ns
from workbench.console import clean
from workbench.web.components.elements import Elements
from workbench.web.components.links import labelled, source_code
from workbench.web.pages.trace_timeline import Chosen, facts
from workbench.web.served_run import ServedRun

NAME = 120


def selected_event(served: ServedRun, chosen: Chosen) -> Elements:
    """Return the clicked event with its times, and the events that enclose it as a list.

    Each item links to its source line if it names one. The list is empty if there is no such event.
    """
    found, artefact = facts(served, chosen), served.traces[chosen.file]
    if found is None:
        return []
    names = views.callers(artefact, chosen.row, served.options)
    inside = f", {duration_ns(found.self_ns)} outside the events in it" if found.self_ns < found.dur_ns else ""
    whose = "" if artefact.rank is None else f"rank {artefact.rank}, "
    kind = ", ".join(word for word in (found.kind or "host", clean(found.category)) if word)
    return [
        html.H2(f"Callers of {clean(names[0][:NAME])}", id="callers"),
        html.Ol([html.Li(source_code(name)) for name in names]),
        labelled("Duration", [f"{duration_ns(found.dur_ns)}{inside}"]),
        labelled("Start", [duration_ns(found.start_ns)]),
        labelled("Track", [f"{whose}{clean(found.lane)}"]),
        labelled("Kind", [kind]),
    ]
