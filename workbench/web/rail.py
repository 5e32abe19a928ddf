"""The parts around every page: the header with the verdict, and a sidebar (rail) with pages, findings and ranks."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from analyzers.report import Finding
from analyzers.words import quantity, rank_ranges
from workbench.colours import SEVERITY_SIGNS, STATUS_SIGNS
from workbench.console import clean
from workbench.web.components.links import link, navigation
from workbench.web.evidence_links import evidence_address
from workbench.web.query import address
from workbench.web.served_run import ServedRun

FINDINGS, RANKS = 12, 16
"""The most findings and ranks that the sidebar lists; the first page lists all."""
SEVERITIES = ("info", "warning", "error")


def header(served: ServedRun, documents: Sequence[str], *, with_steps: bool) -> html.Header:
    """Return the header: the run, its verdict, the range of steps, and buttons."""
    verdict = served.report.verdict
    sign = html.Span(STATUS_SIGNS[verdict.status], className=f"sign {verdict.status}")
    chip = link("", "./", style="chip")
    chip.children = [sign, clean(verdict.kind).replace("_", " ")]
    saved = [html.A(name, href=f"report.{name}", download=f"report.{name}") for name in documents]
    return html.Header(
        [
            html.H1(run_name(served), title=clean(served.name)),
            chip,
            steps_field(hidden=not with_steps),
            html.Button("Copy link", id="copy"),
            html.Details([html.Summary("Save report"), html.Div(saved, className="menu")], className="save-report"),
            html.Button("Light / dark", id="theme"),
        ]
    )


def run_name(served: ServedRun) -> list[html.Span]:
    """Return the parts of the page's heading; where there is no space for the path of a run, its end stays."""
    short = clean(served.short_name)
    path = "" if served.other else clean(served.name).removesuffix(short)
    return [html.Span("workbench", className="brand"), *([html.Span(path)] if path else []), html.Span(short)]


def steps_field(*, hidden: bool) -> html.Section:
    """Return the input field for the range of steps, which applies to all pages.

    With `hidden`, it is invisible rather than left out, because the callback that shows pages reads it.
    """
    field = dcc.Input(id="steps", type="text", placeholder="all", debounce=True, maxLength=40)
    spoken: dict[str, Any] = {"aria-label": "steps to show"}
    return html.Section(
        [html.Label(["Steps ", field], title="Applies to all pages"), html.Button("Show all", id="reset")],
        className="linked",
        hidden=hidden,
        **spoken,
    )


def rail(served: ServedRun, pages: Sequence[tuple[str, str]]) -> html.Aside:
    """Return the sidebar, called rail: `pages` (name, title) as links, then the findings and the ranks.

    Findings and ranks are links to their evidence.
    """
    links = [link(title, name or "./") for name, title in pages]
    return html.Aside([navigation(links, "pages", "pages"), *findings(served), *ranks(served)], className="rail")


def findings(served: ServedRun) -> Iterator[Component]:
    """Yield the heading and the list of findings, each with the sign of its severity; nothing if there are none."""
    found = served.report.findings
    if not found:
        return
    rows = [rail_link(one.severity, clean(one.title), finding_address(served, one)) for one in found[:FINDINGS]]
    rest = [link(quantity(len(found) - FINDINGS, "more finding"), "./")] if len(found) > FINDINGS else []
    yield html.H2("Findings")
    yield navigation([*rows, *rest], "findings", "listed")


def finding_address(served: ServedRun, finding: Finding) -> str:
    """Return the address of the page with the evidence of a finding, or of the first page if no page has it."""
    return evidence_address(served, finding) or "./"


def rail_link(severity: str, text: str, to: str) -> html.A:
    """Return a link to the address `to`, with the sign of a severity before its text."""
    shown = link(text, to, fixed=True)
    sign = html.Span(SEVERITY_SIGNS[severity], className=f"sign {severity}")
    shown.children = [sign, html.Span(text, title=text)]
    return shown


def ranks(served: ServedRun) -> Iterator[Component]:
    """Yield the heading and the list of ranks; nothing if no rank is known.

    First come the ranks that findings name, each with its most severe finding, then a line with all other ranks.
    """
    known = {file.rank for file in served.report.inputs if file.rank is not None}
    worst = worst_by_rank(served.report.findings)
    named = sorted(worst, key=lambda rank: (-SEVERITIES.index(worst[rank].severity), rank))[:RANKS]
    rows: list[Component] = [
        rail_link(worst[rank].severity, about_rank(rank, clean(worst[rank].title)), rank_address(served, rank))
        for rank in named
    ]
    others = sorted(known - {*named})
    rows += [html.Span(f"rank{'s' if len(others) > 1 else ''} {rank_ranges(others)}: no finding")] if others else []
    if rows:
        yield html.H2("Ranks")
        yield navigation(rows, "ranks", "listed")


def about_rank(rank: int, title: str) -> str:
    """Return the title of a finding, after the rank unless the title begins with it."""
    return title if re.match(rf"rank {rank}\b", title, re.IGNORECASE) else f"rank {rank}: {title}"


def worst_by_rank(found: Sequence[Finding]) -> dict[int, Finding]:
    """Return {rank: the most severe finding that names it, or the first of equally severe ones}."""
    worst: dict[int, Finding] = {}
    for one in found:
        for rank in one.ranks:
            before = worst.get(rank)
            if before is None or SEVERITIES.index(one.severity) > SEVERITIES.index(before.severity):
                worst[rank] = one
    return worst


def rank_address(served: ServedRun, rank: int) -> str:
    """Return the address of the page that shows most about a rank: hang, else steps, else the first page."""
    room = next((name for name in ("hang", "steps") if name in served.rooms.names), "")
    return f"{room}{address({'rank': str(rank)})}" if room else "./"
