"""The verdict, findings and tables of a report as HTML. Dash escapes text; control characters are removed here."""

from collections.abc import Callable
from typing import Any

from dash import html

from analyzers.report import Finding, Report
from analyzers.words import rank_names
from workbench.colours import SEVERITIES, SEVERITY_SIGNS, STATUS_SIGNS, STATUSES
from workbench.console import clean
from workbench.present.table import Table
from workbench.web.components.links import labelled, link, source_code, with_source_link

CellLink = Callable[[str], html.A | None]
"""Returns the link that a cell becomes, by its text; None leaves it as text."""


def no_link(_cell: str) -> html.A | None:
    """Return None; the link function for tables without links."""
    return None


def verdict(report: Report[object], evidence: str | None = None) -> html.Section:
    """Return the banner with verdict, reason, next step, and missing evidence.

    `evidence` is the address of the page that shows the evidence, if there is one.
    """
    answer, first = report.verdict, report.lead()
    lines = [html.P(clean(answer.sentence), className="sentence")]
    if first:
        lines += [labelled("Why", [clean(first.why)]), labelled("Next", [clean(first.next)])]
    lines += evidence_link(evidence)
    lines += [labelled("Missing", [clean(gap)]) for gap in answer.missing]
    title = f"{STATUS_SIGNS[answer.status]} {clean(answer.kind).replace('_', ' ')}"
    colour = STATUSES[answer.status]
    return html.Section([html.H2(title), *lines], id="verdict", className="card", style={"borderColor": colour})


def evidence_link(address: str | None) -> list[html.P]:
    """Return a list with the link to the evidence; empty if `address` is None."""
    return [html.P(link("Show the evidence", address, fixed=True), className="evidence")] if address else []


def finding(found: Finding, evidence: str | None = None) -> html.Details:
    """Return a finding that can be unfolded; then it shows its reason, its evidence, and a link to the address
    `evidence`.
    """
    about = f" ({rank_names(found.ranks)})" if found.ranks else ""
    facts = [html.Li([clean(fact.text), " ", source_code(fact.line)]) for fact in found.evidence]
    summary = html.Summary(
        [f"{SEVERITY_SIGNS[found.severity]} {clean(found.title)}{about} ", html.Code(clean(found.id))]
    )
    body = [html.P(clean(found.why)), labelled("Next", [clean(found.next)]), html.Ul(facts), *evidence_link(evidence)]
    return html.Details([summary, *body], className="card", style={"borderColor": SEVERITIES[found.severity]})


def table(section: Table, cell_link: CellLink = no_link) -> html.Div:
    """Return a table with its title as caption and a button that saves it as CSV.

    `cell_link` returns the link of a cell or None; in cells without one, source lines become links.
    """
    styles = ["n" if i in section.numeric else "" for i in range(len(section.columns))]
    columns = zip(section.columns, styles, strict=True)
    rows = [
        html.Tr([cell_of(cell, cell_link(cell), style) for cell, style in zip(row, styles, strict=True)])
        for row in section.rows
    ]
    rest = [html.P(f"... and {section.left_out} more")] if section.left_out else []
    # The column of signs has no name, and a table head without text is an error to a screen reader.
    heads = [(html.Th if name else html.Td)(clean(name), className=style) for name, style in columns]
    save: dict[str, Any] = {"data-save": "csv", "aria-label": f"save {clean(section.title)} as CSV"}
    caption = html.Caption([clean(section.title), html.Button("CSV", **save)])
    body = html.Table([caption, html.Thead(html.Tr(heads)), html.Tbody(rows)])
    return html.Div([body, *rest], className="wide", tabIndex=0)


def cell_of(text: str, to: html.A | None, style: str) -> html.Td:
    """Return a table cell with this text, inside the link `to` if it is given; `style` is its CSS class."""
    return html.Td(html.Span(to, className="whole") if to else with_source_link(text), className=style)
