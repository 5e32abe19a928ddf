"""The first page: the verdict and the findings, each with a link to its evidence, and tables of ranks and files."""

from collections.abc import Sequence

from dash import html

from analyzers.words import quantity
from workbench.present.sections import sections
from workbench.present.table import Table
from workbench.present.tables.run import file_list, rank_list
from workbench.web.components.text import finding, table, verdict
from workbench.web.evidence_links import evidence_address
from workbench.web.pages.overview.picture import picture
from workbench.web.pages.overview.steps import step_overview
from workbench.web.query import Query
from workbench.web.served_run import ServedRun

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
