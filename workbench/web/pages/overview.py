"""Small charts of the first page, one above the other: peak memory, step time and loss of each step of the run."""

from collections.abc import Iterator, Sequence

import plotly.graph_objects as go
from dash import html

from analyzers.compare import CompareData
from analyzers.memory import views as memory
from analyzers.run import TIMED
from analyzers.steps import StepsData
from analyzers.steps import views as steps
from analyzers.words import quantity
from workbench.present.table import Table, sections
from workbench.present.tables.run import file_list, rank_list
from workbench.rooms import evidence_link
from workbench.web.components.figure import Drawing, FigurePart, byte_axis, drawn
from workbench.web.components.links import finding, table, verdict
from workbench.web.components.step_charts import (
    SmallChart,
    duration_axis,
    failed_step,
    small_charts,
    thinned,
)
from workbench.web.page import Page, evidence_address, page_of
from workbench.web.pages.compare import first_change
from workbench.web.query import Query
from workbench.web.served_run import ServedRun

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
    devices = served.devices
    if devices:
        device = devices[0]
        uses = memory.steps(served.snapshot(device.path), served.options, device.device)
        peaks = thinned(uses.set_index("step")[["peak_bytes"]])["peak_bytes"].astype(float)
        # The picture above it names the device and the snapshot; a longer title would reach the label of a failed step.
        whose = "" if device.rank is None else f" of rank {device.rank}"
        yield SmallChart(f"peak memory{whose}", peaks, byte_axis(peaks.max()))


def _logged_charts(served: ServedRun) -> Iterator[SmallChart]:
    """Yield charts of step time and loss from the step logs; each value is the largest of all ranks in that step."""
    data = served.data(StepsData)
    if data is None:
        return
    logged = steps.series(served.run.of(*TIMED), served.options)
    largest = logged.groupby("step")[["dur_s", "loss"]].max()
    times, losses = (thinned(largest[[name]].dropna())[name] for name in ("dur_s", "loss"))
    several = len(data.ranks) > 1
    yield SmallChart(f"step time{' of the slowest rank' if several else ''}", times, duration_axis(times.max()))
    yield SmallChart(f"loss{' (the largest of all ranks)' if several else ''}", losses, {})


HEIGHT = 360


def picture(served: ServedRun) -> html.Figure | None:
    """Return a chart for the first finding that has one: memory over time, the state of collectives, or step times.

    The finding of the verdict comes first, then the others in the order of the report. A comparison has the chart of
    what changed, whether it has findings or not.
    """
    if data := served.data(CompareData):
        return _captioned(change) if (change := first_change(data)) else None
    lead = served.report.lead()
    for found in [*([lead] if lead else []), *served.report.findings]:
        at = evidence_link(found)
        draw = page_of(at.room).drawing if at and at.room in served.rooms else None
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
    ranks = [] if served.data(CompareData) else [rank_list(report)]
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
    summary = html.Summary(quantity(len(tables), "more table"))
    return html.Details([summary, *(table(section) for section in tables)], className="more")


PAGE = Page("Overview", layout)
