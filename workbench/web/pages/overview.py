"""Small charts of the first page, one above the other: peak memory, step time and loss of each step of the run."""

from collections.abc import Callable, Iterator, Sequence

import plotly.graph_objects as go
from dash import html

from analyzers.memory import views as memory
from analyzers.steps import views as steps
from analyzers.words import quantity
from workbench.ask import ROOMS
from workbench.evidence_link import EvidenceLink, evidence_link
from workbench.present.sections import sections
from workbench.present.table import Table
from workbench.present.tables.memory import device_name, worst_first
from workbench.present.tables.run import file_list, rank_list
from workbench.web.components.collective_matrix import collective_matrix
from workbench.web.components.figure import Drawing, FigurePart, byte_axis, drawn
from workbench.web.components.links import finding, table, verdict
from workbench.web.components.rank_charts import named_first, step_parts, time_shares
from workbench.web.components.step_charts import (
    SmallChart,
    duration_axis,
    failed_step,
    loss_chart,
    phase_stack,
    small_charts,
    step_durations,
    thinned,
)
from workbench.web.pages.compare import first_change
from workbench.web.pages.hang import shown_group, states_in_window
from workbench.web.pages.memory_timeline import chart, last_steps
from workbench.web.query import Query, memory_query
from workbench.web.served_run import ServedRun, evidence_address, room_query

_LABEL = "Memory, step time and loss of each step"


def step_overview(served: ServedRun) -> html.Figure | None:
    """Return the small charts as HTML, with the failed step marked; None if fewer than two of them have data."""
    charts = [chart for chart in (*memory_chart(served), *_logged_charts(served)) if len(chart.by_step) > 1]
    if len(charts) < 2:
        return None
    return drawn("steps-overview", small_charts(charts, failed_step(served.report)), _LABEL, bar=False)


def memory_chart(served: ServedRun) -> Iterator[SmallChart]:
    """Yield a chart of the peak memory of each step, if there is a memory snapshot.

    The chart shows the device that ran out of memory, or else the device with the highest peak.
    """
    devices = worst_first(served.rooms.memory.devices) if served.rooms.memory else []
    if devices:
        device = devices[0]
        uses = memory.steps(served.snapshot(device.path), served.options, device.device)
        peaks = thinned(uses.set_index("step")[["peak_bytes"]])["peak_bytes"].astype(float)
        # The picture above it names the device and the snapshot; a longer title would reach the label of a failed step.
        whose = "" if device.rank is None else f" of rank {device.rank}"
        yield SmallChart(f"peak memory{whose}", peaks, byte_axis(peaks.max()))


def _logged_charts(served: ServedRun) -> Iterator[SmallChart]:
    """Yield charts of step time and loss from the step logs; each value is the largest of all ranks in that step."""
    if served.rooms.steps is None:
        return
    logged = steps.series(served.run.of(*ROOMS["steps"]), served.options)
    largest = logged.groupby("step")[["dur_s", "loss"]].max()
    times, losses = (thinned(largest[[name]].dropna())[name] for name in ("dur_s", "loss"))
    several = len(served.rooms.steps.ranks) > 1
    yield SmallChart(f"step time{' of the slowest rank' if several else ''}", times, duration_axis(times.max()))
    yield SmallChart(f"loss{' (the largest of all ranks)' if several else ''}", losses, {})


# The chart on the first page for a finding about traces: the parts of the time of each rank or each step.

BARS = 10


def trace_drawing(served: ServedRun, at: EvidenceLink) -> Drawing | None:
    """Return a chart of the parts of each rank's time; if a single rank was traced, of each step's time.

    The finding's rank comes first. Return None if nothing was recorded.
    """
    data = served.rooms.trace
    if data is None or not data.ranks:
        return None
    first = data.ranks[0]
    if len(data.ranks) == 1 and len(first.step_times) > 1:
        whose = "" if first.rank is None else f" of rank {first.rank}"
        return f"Kinds of work in each step{whose}", step_parts(first)
    shown = named_first(data.ranks, [at.rank])[:BARS]
    rest = f" ({len(shown)} of {quantity(len(data.ranks), 'rank')})" if len(shown) < len(data.ranks) else ""
    return f"Kinds of work in the recorded time of each rank{rest}", time_shares(shown)


# The picture on the first page: a chart of the evidence for the verdict.

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
    for found in [*([lead] if lead else []), *served.report.findings]:
        at = evidence_link(found)
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


# The first page: the verdict and the findings, each with a link to its evidence, and tables of ranks and files.

_FIRST_TABLES = 2
"""The number of tables of the report that are shown below the ranks; the first ones are the most important."""
_HALF, SPACE = 110, 3
"""The numbers of letters that fit beside each other in half of a large screen, and in the space between columns."""


def layout(served: ServedRun, _query: Query) -> html.Div:
    """Return the first page, with verdict, findings, ranks and files."""
    report, lead = served.report, served.report.lead()
    address = evidence_address(served, lead) if lead else None
    shown, by_step = picture(served), step_overview(served)
    runs = [served.run, *([served.other] if served.other else [])]
    # The report of a comparison knows nothing about its ranks but their numbers.
    ranks = [] if served.rooms.compare else [rank_list(report)]
    first, more = _parted(sections(report))
    tables = [section for section in (*ranks, *first, file_list(runs)) if section.rows]
    return html.Div(
        [
            html.Div([verdict(report, address), *([shown] if shown else [])], className="lead"),
            *([by_step] if by_step else []),
            *([html.H2("Findings")] if report.findings else []),
            *(finding(found, evidence_address(served, found)) for found in report.findings),
            html.Div([*map(placed, tables)], className="tables"),
            *([folded(more)] if more else []),
        ]
    )


def placed(section: Table) -> html.Div:
    """Return a table as HTML; one that is too wide for half of a large screen may take all of its width."""
    widths = (max(map(len, cells)) + SPACE for cells in zip(section.columns, *section.rows, strict=True))
    return html.Div(table(section), className="broad" if sum(widths) > _HALF else "")


def _parted(tables: Sequence[Table]) -> tuple[list[Table], list[Table]]:
    """Split tables into those that are visible at once and those that a click shows.

    Only a few tables are visible at once, so that the page stays short; the pages of the analyzers show all tables. A
    single remaining table is visible too.
    """
    at = _FIRST_TABLES if len(tables) > _FIRST_TABLES + 1 else len(tables)
    return [*tables[:at]], [*tables[at:]]


def folded(tables: Sequence[Table]) -> html.Details:
    """Return tables that a click unfolds, below a line with their number."""
    summary = html.Summary(quantity(len(tables), "more table"))
    return html.Details([summary, *(table(section) for section in tables)], className="more")
