"""The first page: the verdict and the findings, each with a link to its evidence, and tables of ranks and files."""

from dash import html

from workbench.present.sections import sections
from workbench.present.tables.run import file_list, rank_list
from workbench.web.components.text import finding, table, verdict
from workbench.web.evidence_links import evidence_address
from workbench.web.pages.overview.picture import picture
from workbench.web.pages.overview.steps import step_overview
from workbench.web.query import Query
from workbench.web.served_run import ServedRun


def layout(served: ServedRun, _query: Query) -> html.Div:
    """Return the first page, with verdict, findings, ranks and files."""
    report, lead = served.report, served.report.lead()
    address = evidence_address(served, lead) if lead else None
    shown, by_step = picture(served), step_overview(served)
    runs = [served.run, *([served.other] if served.other else [])]
    # The report of a comparison knows nothing about its ranks but their numbers.
    ranks = [] if served.rooms.compare else [rank_list(report)]
    tables = [*ranks, *sections(report), file_list(runs)]
    return html.Div(
        [
            html.Div([verdict(report, address), *([shown] if shown else [])], className="lead"),
            *([by_step] if by_step else []),
            *([html.H2("Findings")] if report.findings else []),
            *(finding(found, evidence_address(served, found)) for found in report.findings),
            *(table(section) for section in tables if section.rows),
        ]
    )
