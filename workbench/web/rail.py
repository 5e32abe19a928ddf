"""The parts around every page: a header with the verdict, and a sidebar with pages, findings and ranks."""

from collections.abc import Iterator, Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from analyzers.compare import CompareData
from analyzers.report import Finding
from analyzers.words import quantity, rank_names
from workbench.colours import SEVERITY_SIGNS, STATUS_SIGNS
from workbench.console import clean
from workbench.web.components.links import link, navigation
from workbench.web.page import evidence_address
from workbench.web.query import address
from workbench.web.served_run import ServedRun

KEYS = {
    "Everywhere": (
        ("?", "open or close this list"),
        ("Tab, Enter", "go to the next control, follow it"),
        ("Q", "hide or show the details beside a chart"),
    ),
    "A chart over time or steps": (
        ("← →", "move to the left or right"),
        ("+ -", "zoom in or out"),
        ("0", "show everything"),
        ("Click in a legend", "show one series alone, or all again"),
        ("Ctrl or Shift+click", "hide or show one series"),
    ),
    "The tree of live memory or of calls": (
        ("← → ↑ ↓", "go to the part beside, above or below"),
        ("Enter", "zoom into the part"),
        ("Backspace", "zoom out"),
    ),
    "The timeline of a trace": (
        ("W S", "zoom in or out"),
        ("A D", "move to the left or right"),
        ("← → or , .", "go to the previous or next event of the line"),
        ("↑ ↓", "go to the line above or below"),
        ("Enter", "show the callers of the event, and what it launched"),
        ("F", "fit the event to the window"),
        ("M", "sum up the time of the event"),
        ("/", "find events by name"),
        ("N, Shift+N", "go to the next or previous match"),
        ("0", "show everything"),
        ("Esc", "clear the selection"),
    ),
    "The strip above the timeline": (
        ("← →", "move the visible part"),
        ("↑ ↓ or + -", "make it shorter or longer"),
        ("Page Up, Page Down", "move by the visible part"),
        ("Home, End", "go to the beginning or end of the trace"),
    ),
}
"""{where keys act: (keys, what they do)}; charts and the timeline react to them while they have the focus."""


def key_sheet() -> html.Dialog:
    """Return the list of keys; the script of all pages opens and closes it."""
    parts = [
        part
        for title, keys in KEYS.items()
        for part in (
            html.H3(title),
            html.Dl([cell for key, what in keys for cell in (html.Dt(html.Kbd(key)), html.Dd(what))]),
        )
    ]
    spoken: dict[str, Any] = {"aria-label": "Keys"}
    return html.Dialog([html.H2("Keys"), *parts, html.Button("Close", id="close-keys")], id="keys", **spoken)


def _keys_button() -> html.Button:
    spoken: dict[str, Any] = {"aria-label": "Keys"}
    return html.Button("?", id="show-keys", title="Keys", **spoken)


def skip_link() -> html.Button:
    return html.Button("Skip to the page", id="skip", className="skip")


FINDINGS, _RANK_LINES = 12, 16
"""The most findings and lines on ranks in the sidebar; the first page lists all."""
SEVERITIES = ("info", "warning", "error")


def header(served: ServedRun, documents: Sequence[str], *, with_steps: bool) -> html.Header:
    verdict = served.report.verdict
    sign = html.Span(STATUS_SIGNS[verdict.status], className=f"sign {verdict.status}")
    chip = link("", "./", style="chip")
    chip.children = [sign, clean(verdict.kind).replace("_", " ")]
    saved = [html.A(name, href=f"report.{name}", download=f"report.{name}") for name in documents]
    return html.Header(
        [
            html.H1(_run_name(served), title=clean(served.name)),
            chip,
            _steps_field(hidden=not with_steps),
            html.Button("Copy link", id="copy"),
            html.Details([html.Summary("Save report"), html.Div(saved, className="menu")], className="save-report"),
            html.Button("Light / dark", id="theme"),
            _keys_button(),
        ]
    )


def _run_name(served: ServedRun) -> list[html.Span]:
    """Return the heading of the page: the program's name and the path of the run.

    The end of the path is an element of its own, because a narrow window shows only this end.
    """
    short = clean(served.short_name)
    path = "" if served.other else clean(served.name).removesuffix(short)
    return [html.Span("workbench", className="brand"), *([html.Span(path)] if path else []), html.Span(short)]


def _steps_field(*, hidden: bool) -> html.Section:
    """Return the input field for the range of steps, which applies to all pages.

    With `hidden`, the field exists but is invisible, because the callback that shows pages reads it.
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

    The links of findings and ranks lead to their evidence.
    """
    links = [link(title, name or "./") for name, title in pages]
    return html.Aside([navigation(links, "pages", "pages"), *findings(served), *ranks(served)], className="rail")


def findings(served: ServedRun) -> Iterator[Component]:
    """Yield the heading and the list of findings, each with the sign of its severity; nothing without findings."""
    found = served.report.findings
    if not found:
        return
    rows = [_rail_link(one.severity, clean(one.title), _finding_address(served, one)) for one in found[:FINDINGS]]
    rest = [link(quantity(len(found) - FINDINGS, "more finding"), "./")] if len(found) > FINDINGS else []
    yield html.H2("Findings")
    yield navigation([*rows, *rest], "findings", "listed")


def _finding_address(served: ServedRun, finding: Finding) -> str:
    return evidence_address(served, finding) or "./"


def _rail_link(severity: str, text: str, to: str, hint: str = "") -> html.A:
    """Return a link to the address `to`, with the sign of a severity before its text.

    `hint` is the hover text. By default it is the whole `text`, because the link shows only its first lines.
    """
    shown = link(text, to, fixed=True)
    sign = html.Span(SEVERITY_SIGNS[severity], className=f"sign {severity}")
    shown.children = [sign, html.Span(text, title=hint or text)]
    return shown


def ranks(served: ServedRun) -> Iterator[Component]:
    """Yield the heading and the list of ranks; nothing in a comparison of runs, or if no rank is known.

    The ranks that findings name come first, most severe first. One line lists all other ranks.
    """
    if served.data(CompareData):
        return
    known = {file.rank for file in served.report.inputs if file.rank is not None}
    named = ranks_by_finding(served.report.findings)
    rows: list[Component] = [
        _rail_link(finding.severity, about_ranks(ranks, finding), _rank_address(served, ranks[0]), clean(finding.title))
        for ranks, finding in named[:_RANK_LINES]
    ]
    others = sorted(known - {rank for ranks, _ in named for rank in ranks})
    rows += [html.Span(f"{rank_names(others)}: no finding")] if others else []
    if rows:
        yield html.H2("Ranks")
        yield navigation(rows, "ranks", "listed")


def about_ranks(ranks: Sequence[int], finding: Finding) -> str:
    """Return a short line on ranks, such as "ranks 0-2: host stuck".

    It is short because the list of findings already has the whole sentence.
    """
    return f"{rank_names(ranks)}: {clean(finding.id.partition('.')[2]).replace('_', ' ').replace('.', ' ')}"


def ranks_by_finding(found: Sequence[Finding]) -> list[tuple[list[int], Finding]]:
    """Return (ranks, finding) for each finding that is the most severe one of some ranks, errors first.

    A rank with several equally severe findings belongs to the first of them.
    """
    ranked = sorted(found, key=lambda one: -SEVERITIES.index(one.severity))
    worst: dict[int, int] = {}
    for place, one in enumerate(ranked):
        for rank in one.ranks:
            worst.setdefault(rank, place)
    ranks_of: dict[int, list[int]] = {}
    for rank in sorted(worst):
        ranks_of.setdefault(worst[rank], []).append(rank)
    return [(ranks_of[place], ranked[place]) for place in sorted(ranks_of)]


def _rank_address(served: ServedRun, rank: int) -> str:
    room = next((name for name in ("hang", "steps") if name in served.rooms), "")
    return f"{room}{address({'rank': str(rank)})}" if room else "./"
