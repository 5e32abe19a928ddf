"""Verdict, findings and tables. Dash escapes text; control characters are taken out here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from dash import html

from analyzers.report import Finding, Report
from analyzers.words import rank_ranges
from workbench.colours import SEVERITIES, SEVERITY_SIGNS, STATUS_SIGNS, STATUSES
from workbench.console import clean
from workbench.present.table import Table
from workbench.source_files import SOURCE_LINE, find_source

Leads = Callable[[str], html.A | None]
"""The link that a cell of a table is, by its text."""
LONGEST = 1000
"""Characters of a cell: names of kernels are long, those of a hostile file longer."""


def verdict(report: Report[Any], evidence: str | None = None) -> html.Section:
    """The banner: verdict, why, next, the way to the evidence, and what was missing."""
    found, first = report.verdict, report.lead()
    lines = [html.P(clean(found.sentence), className="sentence")]
    if first:
        lines += [labelled("Why", first.why), labelled("Next", first.next)]
    lines += [html.P(go("show the evidence", evidence, fixed=True), className="evidence")] if evidence else []
    lines += [labelled("Missing", gap) for gap in found.missing]
    title = f"{STATUS_SIGNS[found.status]} {clean(found.kind).replace('_', ' ')}"
    colour = STATUSES[found.status]
    return html.Section([html.H2(title), *lines], id="verdict", className="card", style={"borderColor": colour})


def navigation(links: list[Any], label: str, style: str = "") -> html.Nav:
    """Links under a label that a screen reader tells."""
    attributes: dict[str, Any] = {"aria-label": label}
    return html.Nav(links, className=style, **attributes)


def choice(
    name: str, options: Sequence[tuple[str, str]], here: str, query: Mapping[str, str] | None = None
) -> html.Nav | None:
    """Links that set `name` in the address, each a (value, text); the rest of `query` stays as it is.

    None where there is nothing to choose from.
    """
    if len(options) < 2:
        return None
    links = [go(text, address({**(query or {}), name: value}), here=value == here) for value, text in options]
    return navigation(links, f"choose {name}", "choice")


def go(text: str, href: str, *, here: bool = False, fixed: bool = False) -> html.A:
    """A link to a page or state of this dashboard. The script follows it without loading the page anew, and keeps the
    window that is in sight, unless the link is `fixed`.
    """
    attributes: dict[str, Any] = {"data-go": "fixed" if fixed else "", **({"aria-current": "true"} if here else {})}
    return html.A(clean(text), href=href, className="here" if here else "", **attributes)


def address(query: Mapping[str, str]) -> str:
    """A query as the address bar takes it."""
    return f"?{urlencode(query)}"


def labelled(label: str, text: str) -> html.P:
    return told(label, [clean(text)])


def told(label: str, parts: Iterable[Any]) -> html.P:
    """Words under a label, which they do not run below where they take several lines."""
    return html.P([html.Span(label, className="label"), html.Span([*parts])], className="labelled")


def finding(found: Finding, evidence: str | None = None) -> html.Details:
    """A finding; its facts unfold, and a link leads to where they are seen."""
    about = f" (rank {rank_ranges(found.ranks)})" if found.ranks else ""
    facts = [html.Li([clean(fact.text), " ", place(fact.line)]) for fact in found.evidence]
    summary = html.Summary(
        [f"{SEVERITY_SIGNS[found.severity]} {clean(found.title)}{about} ", html.Code(clean(found.id))]
    )
    body = [html.P(clean(found.why)), labelled("Next", found.next), html.Ul(facts)]
    body += [html.P(go("show the evidence", evidence, fixed=True), className="evidence")] if evidence else []
    return html.Details([summary, *body], className="card", style={"borderColor": SEVERITIES[found.severity]})


def place(line: str) -> html.Code:
    """A line of source, with a link to it where it has a name and a number and its file is on this machine."""
    return html.Code(sourced(line))


def sourced(text: str) -> list[Any] | str:
    """A text; what in it names a line of a file that is on this machine leads there."""
    shown = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    named = SOURCE_LINE.search(shown)
    if not named or not there(named[0]):
        return clean(shown)
    link = go(named[0], f"source{address({'at': named[0]})}")
    return [clean(shown[: named.start()]), link, clean(shown[named.end() :])]


def linked(cell: str, link: html.A | None) -> Any:
    return html.Span(link, className="whole") if link else sourced(cell)


@lru_cache(4096)
def there(text: str) -> bool:
    """Whether a text leads to a source: asked of the file system once, as tables repeat the same lines."""
    return find_source(text) is not None


def table(section: Table, leads: Leads = lambda _: None) -> html.Div:
    """A table with its title as caption. A cell is the link that `leads` makes of it, else it may lead to a source."""
    styles = ["n" if i in section.numeric else "" for i in range(len(section.columns))]
    columns = zip(section.columns, styles, strict=True)
    rows = [
        html.Tr([html.Td(linked(cell, leads(cell)), className=style) for cell, style in zip(row, styles, strict=True)])
        for row in section.rows
    ]
    rest = [html.P(f"... and {section.left_out} more")] if section.left_out else []
    # A column of signs has no name, and a head without one is no head to a screen reader.
    heads = [(html.Th if name else html.Td)(clean(name), className=style) for name, style in columns]
    head = html.Thead(html.Tr(heads))
    save: dict[str, Any] = {"data-save": "csv", "aria-label": f"save {clean(section.title)} as CSV"}
    caption = html.Caption([clean(section.title), html.Button("csv", **save)])
    return html.Div([html.Table([caption, head, html.Tbody(rows)]), *rest], className="wide", tabIndex=0)
