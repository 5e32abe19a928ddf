"""Links of the dashboard: to its own pages in any state, and to source files."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from dash import html
from dash.development.base_component import Component

from analyzers.report import Finding, Report
from analyzers.words import ranks_beside, share
from workbench.colours import SEVERITY_SIGNS, STATUS_SIGNS
from workbench.console import clean
from workbench.present import below_answer
from workbench.present.table import Table, without_empty
from workbench.source_files import SOURCE_LINE, find_source
from workbench.web.query import Query, address

Part = str | tuple[str, str, bool]
"""A text, or a link as (text, address, whether the address keeps its own range of steps)."""
_LONG_NAME, _PLACE_TO_BREAK = re.compile(r"(\S{25,})"), re.compile(r"(?<=\w[._/:])(?!py\b|\d+\b)(?=\w)")
LONGEST = 1000
"""The most characters of a text that are shown, because texts of a hostile file may have any length."""


def navigation(links: Sequence[Component], label: str, style: str = "") -> html.Nav:
    """Return an HTML nav element with these links; `label` is read by screen readers."""
    attributes: dict[str, Any] = {"aria-label": label}
    return html.Nav(list(links), className=style, **attributes)


FEW = 6
"""The most options that are shown as links side by side; more are shown as a drop-down list."""


def choice(
    name: str,
    options: Sequence[tuple[str, str]],
    current: str,
    query: Mapping[str, str] | None = None,
    label: str | None = None,
) -> Component | None:
    """Return links that set the query parameter `name` to one of the options (value, text).

    Many options become a drop-down list; fewer than two give None, because there is nothing to choose. The other
    parameters in `query` stay unchanged. Screen readers read `label`, which is `name` by default.
    """
    if len(options) < 2:
        return None
    if len(options) > FEW:
        return picker(name, options, current, query or {}, label or name)
    links = [link(text, address({**(query or {}), name: value}), current=value == current) for value, text in options]
    return navigation(links, f"choose {label or name}", "choice")


def picker(
    name: str, options: Sequence[tuple[str, str]], current: str, query: Mapping[str, str], label: str
) -> html.Select:
    """Return a drop-down list of the options (value, text) for the query parameter `name`.

    The value of each item is an address; the page's script goes to the address of the selected item.
    """
    rows = [
        html.Option(clean(text), value=address({**query, name: value}), selected=value == current)
        for value, text in options
    ]
    spoken: dict[str, Any] = {"aria-label": f"choose {label}"}
    # Another list at the same place must not keep this one's selection.
    return html.Select(rows, className="picker", key=f"{name} {current}", **spoken)


def link(text: str, href: str, *, current: bool = False, fixed: bool = False, style: str = "") -> html.A:
    """Return a link to a page of this dashboard; `href` holds the state of that page.

    The browser follows the link without reloading. It adds the selected steps to the address, except to a `fixed` link.
    """
    # The script recognises links to follow by `data-go`; Dash has no property for it.
    attributes: dict[str, Any] = {"data-go": "fixed" if fixed else "", **({"aria-current": "true"} if current else {})}
    return html.A(clean(text), href=href, className="here" if current else style, **attributes)


def prose(text: str) -> list[Component | str]:
    """Return a sentence of the report as HTML; commands and settings between backticks become code elements."""
    parts = clean(text).split("`")
    # Without a partner, a backtick is a sign like any other.
    if len(parts) % 2 == 0:
        parts = [clean(text)]
    pieces = ([html.Code(part)] if i % 2 else breakable(part) for i, part in enumerate(parts) if part)
    return [piece for some in pieces for piece in some]


def breakable(text: str) -> list[Component | str]:
    """Return a text as HTML in which long names may wrap after dots, underscores and slashes.

    Without these marks, a narrow window would break a name at any letter. The end of a source line, `model.py:61`,
    stays together.
    """
    pieces: list[Component | str] = []
    for number, part in enumerate(_LONG_NAME.split(text)):
        first, *rest = _PLACE_TO_BREAK.split(part) if number % 2 else [part]
        pieces += [first] if first else []
        pieces += [piece for name in rest for piece in (html.Wbr(), name)]
    return pieces


def source_code(line: str) -> html.Code:
    """Return a source position such as `train.py:22` as an HTML code element.

    If the file is on this machine, the position is a link to its page.
    """
    return html.Code(with_source_link(line))


def with_source_link(text: str) -> list[Component | str]:
    """Return a text as HTML, in which source positions such as `train.py:22` are links to their pages.

    A position is plain text if its source file is not on this machine.
    """
    return [part if isinstance(part, str) else link(*part[:2]) for part in source_parts(text)]


def source_parts(text: str) -> list[Part]:
    """Split a text into plain parts and links: each source position such as `train.py:22` becomes a link.

    A position whose file is not on this machine stays plain text. So a text without links is returned as a single part.
    """
    shown = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    parts: list[Part] = []
    end = 0
    for match in SOURCE_LINE.finditer(shown):
        if _is_on_this_machine(match[0]):
            to_source = (clean(match[0]), f"source{address({'at': match[0]})}", False)
            parts += [clean(shown[end : match.start()]), to_source]
            end = match.end()
    return [*parts, clean(shown[end:])]


@lru_cache(4096)
def _is_on_this_machine(text: str) -> bool:
    """Return whether the source file that `text` names exists on this machine.

    The result is cached, because tables repeat source lines.
    """
    return find_source(text) is not None


def labelled(label: str, parts: Iterable[Component | str]) -> html.P:
    return html.P([html.Span(label, className="label"), html.Span([*parts])], className="labelled")


Elements: TypeAlias = list[Component | None]
"""Parts of a page, from top to bottom; Dash leaves out those that are None."""


def part_list(parts: Mapping[str, float], colours: Mapping[str, str], text: Callable[[float], str]) -> list[html.Ul]:
    """Return an HTML list with the name, a bar, the amount and the share of each part; empty if there are no parts.

    `text` formats an amount. The largest part has the longest bar.
    """
    most, total = max(parts.values(), default=0), sum(parts.values())
    rows = [
        html.Li(
            [
                html.Span(clean(name)),
                html.Span(className="bar", style={"width": f"{100 * amount / most:.1f}%", "background": colours[name]}),
                html.Span(text(amount), className="n"),
                html.Span(share(amount, total), className="n"),
            ]
        )
        for name, amount in parts.items()
        if amount > 0
    ]
    return [html.Ul(rows, className="parts")] if rows else []


CellParts = str | list[Part]
"""The content of a table cell: a text, or texts and links."""
CellLink = Callable[[str], html.A | None]
"""A function that returns the link for a table cell with a given text, or None if the cell has no link."""


def _no_link(_cell: str) -> html.A | None:
    return None


def verdict(report: Report[object], evidence: str | None = None) -> html.Section:
    """Return the banner of a page with the verdict, its reason, the next step and the missing evidence.

    `evidence` is the address of the page that shows the evidence, if there is one.
    """
    answer, first = report.verdict, report.lead()
    lines = [html.P(prose(answer.sentence), className="sentence")]
    if first:
        lines += [labelled("Why", prose(first.why))] if first.why else []
        lines += [labelled("Next", prose(first.next))]
    elif answer.next:
        lines += [labelled("Next", prose(answer.next))]
    lines += evidence_link(evidence)
    lines += [labelled(label, prose(text)) for label, text in below_answer(answer)]
    sign = html.Span(STATUS_SIGNS[answer.status], className=f"sign {answer.status}")
    title = html.H2([sign, clean(answer.kind).replace("_", " ")])
    return html.Section([title, *lines], id="verdict", className=f"card {answer.status}")


def not_recorded(what: str, how: str, command: str = "workbench launch -- COMMAND") -> html.Div:
    return html.Div([html.H2(f"This run has no {what}."), html.P([f"{how} ", html.Code(command)])])


def evidence_link(address: str | None) -> list[html.P]:
    return [html.P(link("Show the evidence", address, fixed=True), className="evidence")] if address else []


def finding(found: Finding, evidence: str | None = None) -> html.Details:
    """Return a finding as an HTML element; when it is unfolded, it shows its reason, next step and evidence.

    `evidence` is the address of the page that shows the evidence, if there is one.
    """
    about = ranks_beside(found.title, found.ranks)
    facts = [html.Li([*prose(fact.sentence), " ", source_code(fact.line)]) for fact in found.evidence]
    sign = html.Span(SEVERITY_SIGNS[found.severity], className=f"sign {found.severity}")
    summary = html.Summary([sign, html.Span([*prose(found.title), about]), html.Code(clean(found.id))])
    body = [
        *([html.P(prose(found.why))] if found.why else []),
        labelled("Next", prose(found.next)),
        html.Ul(facts),
        *evidence_link(evidence),
    ]
    return html.Details([summary, *body], className=f"card {found.severity}")


def table(section: Table, cell_link: CellLink = _no_link, *, filtered: bool = True) -> html.Article:
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


TITLE = 40


@dataclass(frozen=True)
class Tab:
    """A tab below the chart: its name in the address, its title, and a function that returns its content."""

    name: str
    title: str
    content: Callable[[], Iterable[Component | None]]


def table_tab(name: str, section: Table) -> Tab:
    title = clean(section.title)
    short = title if len(title) <= TITLE else f"{title[:TITLE]} …"
    return Tab(name, short, lambda: [table(section)])


Parts = Sequence[Component | None]


def workspace(
    bar: Parts, canvas: Parts, inspector: Parts, tabs: Sequence[Tab], query: Query, *, tall: bool = False
) -> html.Div:
    """Return a page: `bar` has the controls, `canvas` the chart, `inspector` describes what is selected in the chart.

    Of the tabs only the selected one is built: the one that `tab` in the query names, else the first. With `tall`, the
    chart may take more of the height. A script of all pages hides and shows the inspector; the browser remembers it.
    """
    current = selected(tabs, query)
    spoken: dict[str, Any] = {"aria-label": "selection"}
    return html.Div(
        [
            html.Div([*bar, _show_button()], className="toolbar"),
            html.Div([*canvas], className="canvas tall" if tall else "canvas"),
            html.Aside([_hide_button(), *inspector], className="inspector", tabIndex=0, **spoken),
            html.Div([_tab_links(tabs, current, query), _tab_body(current)], className="drawer"),
        ],
        className="workspace",
    )


def _show_button() -> html.Button:
    return html.Button("Show details", id="show-inspector", title="Show the details beside the chart (Q)")


def _hide_button() -> html.Button:
    spoken: dict[str, Any] = {"aria-label": "Hide details"}
    return html.Button("✕", id="hide-inspector", title="Hide the details, for a wider chart (Q)", **spoken)


def selected(tabs: Sequence[Tab], query: Query) -> Tab | None:
    return next((tab for tab in tabs if tab.name == query.get("tab")), tabs[0] if tabs else None)


def _tab_links(tabs: Sequence[Tab], current: Tab | None, query: Query) -> html.Nav:
    links = [link(tab.title, address({**query, "tab": tab.name}), current=tab is current) for tab in tabs]
    return navigation(links, "tables and details", "tabs")


def _tab_body(current: Tab | None) -> html.Div:
    return html.Div([*current.content()] if current else [], id="drawer", className="body", tabIndex=0)
