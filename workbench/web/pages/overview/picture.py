"""The picture on the first page: a chart of the evidence for the verdict."""

from collections.abc import Callable

import plotly.graph_objects as go
from dash import html

from analyzers.steps import views as steps
from workbench.ask import ROOMS
from workbench.evidence_link import EvidenceLink, evidence_link
from workbench.present.tables.memory import device_name, worst_first
from workbench.web.components.collective_matrix import collective_matrix
from workbench.web.components.figure import Drawing, FigurePart, drawn
from workbench.web.components.step_charts import loss_chart, phase_stack, step_durations
from workbench.web.evidence_links import room_query
from workbench.web.pages.compare import first_change
from workbench.web.pages.hang import shown_group, states_in_window
from workbench.web.pages.memory_timeline import chart, last_steps
from workbench.web.pages.overview.trace import trace_drawing
from workbench.web.query import memory_query
from workbench.web.served_run import ServedRun

HEIGHT = 360
STEPS = 2
"""The number of steps in the picture of a failed allocation: the failing step, and one to compare it with."""
_COLLECTIVES = 24
"""The number of last collectives that the picture shows; the one that hangs is among them."""
_SINGLE_RANKS = 12
"""The most ranks that have a row each; if there are more, ranks with equal rows share one."""


def picture(served: ServedRun) -> html.Figure | None:
    """Return a chart for the first finding that has one: memory over time, the state of collectives, or step times.

    The finding of the verdict comes first, then the others in the order of the report. A comparison has the chart of
    what changed, whether it has findings or not.
    """
    if served.rooms.compare:
        return _captioned(change) if (change := first_change(served.rooms.compare)) else None
    lead = served.report.lead()
    for finding in [*([lead] if lead else []), *served.report.findings]:
        at = evidence_link(finding)
        draw = _DRAWINGS.get(at.room) if at and at.room in served.rooms.names else None
        if at and draw and (drawing := draw(served, at)):
            return _captioned(drawing)
    return None


def _captioned(drawing: Drawing) -> html.Figure:
    """Return a drawing (caption, figure) as HTML, with the caption above the figure."""
    title, figure = drawing
    if isinstance(figure, go.Figure):
        figure.update_layout(height=HEIGHT)
    else:
        figure = _with_height(figure)
    shown = drawn("picture", figure, title)
    shown.children = [html.Figcaption(title), shown.children]
    return shown


def _with_height(figure: FigurePart) -> FigurePart:
    """Return a figure that is `HEIGHT` pixels high, without the checks of Plotly's class, which take half a second."""
    layout = figure["layout"]
    assert isinstance(layout, dict)
    return {**figure, "layout": {**layout, "height": HEIGHT}}


def _memory_drawing(served: ServedRun, at: EvidenceLink) -> Drawing | None:
    """Return a chart of the memory of the finding's device over time, by category; None without snapshots."""
    devices = worst_first(served.rooms.memory.devices) if served.rooms.memory else []
    if not devices:
        return None
    query = room_query(served, at)
    device = devices[int(query["device"])]
    figure = chart(served, device, memory_query(query, device), last_steps(served, device, STEPS))
    return f"Allocated memory by category, {device_name(device)}", figure


def _hang_drawing(served: ServedRun, at: EvidenceLink) -> Drawing | None:
    """Return a chart of the state of the last collectives on each rank, with its caption; None if none is recorded.

    It shows the process group that the finding's rank blocks.
    """
    data = served.rooms.hang
    if data is None or not data.groups:
        return None
    group = shown_group(data, room_query(served, at))
    frame = states_in_window(served, group, _COLLECTIVES, _SINGLE_RANKS)
    title = f"State of the last collectives of process group {group.desc or group.name}, by rank"
    return None if frame.empty else (title, collective_matrix(frame))


def _steps_drawing(served: ServedRun, at: EvidenceLink) -> Drawing | None:
    """Return a chart of step logs with its caption; None without step logs.

    It shows the loss, or the phases of the finding's rank, or else the duration of the steps of all ranks.
    """
    logs, data = served.run.of(*ROOMS["steps"]), served.rooms.steps
    if data is None:
        return None
    if at.part == "phases" and at.rank is not None:
        phases = steps.phases(logs, served.options, at.rank).droplevel("rank")
        return f"Time of each phase in the steps of rank {at.rank}", phase_stack(phases)
    series = steps.series(logs, served.options)
    if at.part == "loss":
        return "Loss of each step", loss_chart(series, data.first_nonfinite_step)
    return "Duration of each step, by rank", step_durations(series, [straggler.rank for straggler in data.stragglers])


_DRAWINGS: dict[str, Callable[[ServedRun, EvidenceLink], Drawing | None]] = {
    "memory": _memory_drawing,
    "hang": _hang_drawing,
    "steps": _steps_drawing,
    "trace": trace_drawing,
}
"""{name of an analyzer: function that draws its evidence}, for the analyzers whose evidence can be drawn."""
