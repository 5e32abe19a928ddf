"""The page on text logs.

In its address, `event=N` selects the event whose log lines are shown, and `rank=N` lists only the events of a rank.
"""

from dash import html

from analyzers.logs import LogsData, views
from analyzers.words import quantity
from workbench.console import clean
from workbench.present.table import without_empty
from workbench.present.tables.run import files, first_to_show, ranks
from workbench.rooms import EvidenceLink
from workbench.web.components.links import Elements, breakable, choice, link, not_recorded, table, with_source_link
from workbench.web.page import Page
from workbench.web.query import Query, address, number
from workbench.web.served_run import ServedRun

_EVENTS_AT_MOST, RANKS_AT_MOST = 500, 64
_ALL_RANKS = -1
_HEADS = ("rank", "time", "event", "after step", "message", "source line", "log", "times")


def layout(served: ServedRun, query: Query) -> html.Div:
    data = served.data(LogsData)
    if data is None:
        return not_recorded(
            "text logs", "To keep the output of each rank, start the job with", "workbench launch -- COMMAND"
        )
    shown = [rank.rank for rank in data.ranks]
    rank = number(query, "rank", max(shown, default=0) + 1, _ALL_RANKS)
    rows = views.events(data, None if rank == _ALL_RANKS else rank)
    report = served.report
    at = first_to_show(rows, report.findings, report.verdict.ranks)
    default = rows[at].index if rows else 0
    chosen = number(query, "event", len(data.events), default)
    names = [("", "all ranks"), *((str(one), f"rank {one}") for one in shown[:RANKS_AT_MOST])]
    return html.Div(
        [
            html.H2("Events in the logs"),
            html.P("Choose an event to see the lines around it.", className="hint"),
            choice("rank", names, "" if rank == _ALL_RANKS else str(rank), query, "a rank"),
            _event_list(rows, chosen, query),
            *(excerpt(data, chosen) if data.events else []),
            # A list of nothing but ranks says nothing.
            *(
                table(section)
                for section in (ranks(data), files(data))
                if section.rows and len(without_empty(section).columns) > 1
            ),
        ]
    )


def _event_list(rows: list[views.EventRow], chosen: int, query: Query) -> html.Div:
    """Return a table of the events; the link in each row shows the log lines around that event."""
    body = [_event_row(row, row.index == chosen, query) for row in rows[:_EVENTS_AT_MOST]]
    rest = len(rows) - _EVENTS_AT_MOST
    more = [html.P(f"... and {quantity(rest, 'more event')}")] if rest > 0 else []
    head = html.Thead(html.Tr([html.Th(name) for name in _HEADS]))
    style = "wide" if any(row.step is not None for row in rows) else "wide stepless"
    return html.Div([html.Table([head, html.Tbody(body)]), *more], className=style, tabIndex=0, id="events")


def _event_row(row: views.EventRow, is_chosen: bool, query: Query) -> html.Tr:
    to = link(clean(row.kind.replace("_", " ")), f"logs{address(query | {'event': str(row.index)})}#excerpt")
    cells = [
        html.Td("" if row.rank is None else row.rank, className="n"),
        html.Td(row.time),
        html.Td(to),
        html.Td("" if row.step is None else row.step, className="n"),
        html.Td(clean(row.message)),
        html.Td(with_source_link(clean(row.source))),
        html.Td(clean(row.log)),
        html.Td(row.count, className="n"),
    ]
    return html.Tr(cells, className="here" if is_chosen else "")


def excerpt(data: LogsData, chosen: int) -> Elements:
    """Return the log lines around an event, with the line of the event marked; `chosen` is its index in the report."""
    event = data.events[chosen]
    texts = [(clean(line.text) + "\n", line.is_event) for line in views.excerpt(event)]
    lines = [html.Mark(text) if is_event else text for text, is_event in texts]
    title = f"{clean(event.path)}, around line {event.line}"
    return [html.H2(breakable(title), id="excerpt"), html.Pre(lines, className="excerpt", tabIndex=0)]


def _evidence_query(served: ServedRun, at: EvidenceLink) -> Query:
    events = data.events if (data := served.data(LogsData)) else []
    number = next((i for i, event in enumerate(events) if at.rank is not None and event.rank == at.rank), None)
    return {} if number is None else {"event": str(number)}


PAGE = Page("Logs", layout, query=_evidence_query)
