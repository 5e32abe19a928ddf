"""The answer and the findings behind it, each with a way to its evidence; then the run at a glance."""

from dataclasses import replace
from typing import Any

from dash import html

from workbench.present.sections import sections
from workbench.present.table import Table
from workbench.present.tables.run import file_list, rank_list
from workbench.web.components.text import finding, table, verdict
from workbench.web.evidence_links import evidence
from workbench.web.served_run import ServedRun

ROWS = 64


def layout(served: ServedRun, _query: dict[str, str]) -> html.Div:
    report = served.report
    found = (
        [html.H2("Findings"), *(finding(f, evidence(served, f)) for f in report.findings)] if report.findings else []
    )
    lead = report.lead()
    tables = [rank_list(report), *sections(report), file_list([served.run, *([served.other] if served.other else [])])]
    return html.Div([verdict(report, evidence(served, lead) if lead else None), *found, *map(shown, tables)])


def shown(one: Table) -> Any:
    """A table, cut where a page would grow too long; `--json` has them all."""
    if not one.rows:
        return None
    return table(replace(one, rows=one.rows[:ROWS], left_out=one.left_out + max(0, len(one.rows) - ROWS)))
