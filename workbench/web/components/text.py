"""Return the verdict, findings and tables of a report as HTML, without control characters; Dash escapes the text."""

import json
from collections.abc import Callable
from typing import Any

from dash import html

from analyzers.report import Finding, Report
from analyzers.words import ranks_beside
from workbench.colours import SEVERITY_SIGNS, STATUS_SIGNS
from workbench.console import clean
from workbench.present.table import Table, without_empty
from workbench.web.components.links import Part, labelled, link, prose, source_code, source_parts

CellParts = str | list[Part]
"""The content of a table cell: a text, or texts and links."""
CellLink = Callable[[str], html.A | None]
"""A function that returns the link for a table cell with a given text, or None if the cell has no link."""


def no_link(_cell: str) -> html.A | None:
    """Return None for any cell; this is the `CellLink` of tables without links."""
    return None


def verdict(report: Report[object], evidence: str | None = None) -> html.Section:
    """Return the banner of a page with the verdict, its reason, the next step and the missing evidence.

    `evidence` is the address of the page that shows the evidence, if there is one.
    """
    answer, first = report.verdict, report.lead()
    lines = [html.P(prose(answer.sentence), className="sentence")]
    if first:
        lines += [labelled("Why", prose(first.why)), labelled("Next", prose(first.next))]
    lines += evidence_link(evidence)
    lines += [labelled("Missing", prose(gap)) for gap in answer.missing]
    sign = html.Span(STATUS_SIGNS[answer.status], className=f"sign {answer.status}")
    title = html.H2([sign, clean(answer.kind).replace("_", " ")])
    return html.Section([title, *lines], id="verdict", className=f"card {answer.status}")


def not_recorded(what: str, how: str, command: str = "workbench launch -- COMMAND") -> html.Div:
    """Return the page for a run that has no artefacts of the kind `what`; `how` says how `command` records them."""
    return html.Div([html.H2(f"This run has no {what}."), html.P([f"{how} ", html.Code(command)])])


def evidence_link(address: str | None) -> list[html.P]:
    """Return a list with the link to the evidence; empty if `address` is None."""
    return [html.P(link("Show the evidence", address, fixed=True), className="evidence")] if address else []


def finding(found: Finding, evidence: str | None = None) -> html.Details:
    """Return a finding as an HTML element; when it is unfolded, it shows its reason, next step and evidence.

    `evidence` is the address of the page that shows the evidence, if there is one.
    """
    about = ranks_beside(found.title, found.ranks)
    facts = [html.Li([*prose(fact.text), " ", source_code(fact.line)]) for fact in found.evidence]
    sign = html.Span(SEVERITY_SIGNS[found.severity], className=f"sign {found.severity}")
    summary = html.Summary([sign, html.Span([*prose(found.title), about]), html.Code(clean(found.id))])
    body = [html.P(prose(found.why)), labelled("Next", prose(found.next)), html.Ul(facts), *evidence_link(evidence)]
    return html.Details([summary, *body], className=f"card {found.severity}")


def table(section: Table, cell_link: CellLink = no_link, *, filtered: bool = True) -> html.Article:
    """Return a table that `tables.js` draws in the browser, where it can be sorted, filtered and saved as CSV.

    `cell_link` returns the link of a cell, or None; in cells without a link, source lines become links. All rows are
    included, even those that the text report omits. Columns without any text are left out. With `filtered`, a long
    table has a field to filter its rows.
    """
    section = without_empty(section)
    rows = [[_cell_parts(cell, cell_link(cell)) for cell in row] for row in (*section.rows, *section.more)]
    columns = [(clean(name), int(i in section.numeric)) for i, name in enumerate(section.columns)]
    title = clean(section.title)
    content = {"title": title, "columns": columns, "rows": rows, "out": section.left_out - len(section.more)}
    content |= {} if filtered else {"unfiltered": True}
    attributes: dict[str, Any] = {
        "data-table": json.dumps(content, separators=(",", ":")),
        "aria-label": title or "table",
    }
    return html.Article(className="wide", tabIndex=0, role="region", **attributes)


def _cell_parts(text: str, to: html.A | None) -> CellParts:
    """Return the content of a cell for the browser: a text, or a list of texts and links (text, address, fixed)."""
    if to is not None:
        return [(str(to.children), getattr(to, "href", ""), getattr(to, "data-go", "") == "fixed")]
    parts = source_parts(text)
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts
