"""The layout of a page: a chart on top, a description of the selection beside it, and tabs with tables below."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dash import html
from dash.development.base_component import Component

from workbench.console import clean
from workbench.present.table import Table
from workbench.web.components.links import CellLink, link, navigation, no_link, table
from workbench.web.query import Query, address

TITLE = 40


@dataclass(frozen=True)
class Tab:
    """A tab below the chart: its name in the address, its title, and a function that returns its content."""

    name: str
    title: str
    content: Callable[[], Iterable[Component | None]]


def table_tab(name: str, section: Table, cell_link: CellLink = no_link) -> Tab:
    """Return a tab that holds one table and has the table's title."""
    title = clean(section.title)
    short = title if len(title) <= TITLE else f"{title[:TITLE]} …"
    return Tab(name, short, lambda: [table(section, cell_link)])


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
    """Return the button that shows a hidden inspector; it is visible only while the inspector is hidden."""
    return html.Button("Show details", id="show-inspector", title="Show the details beside the chart (Q)")


def _hide_button() -> html.Button:
    """Return the button, in the corner of the inspector, that hides it so that the chart gets the full width."""
    spoken: dict[str, Any] = {"aria-label": "Hide details"}
    return html.Button("✕", id="hide-inspector", title="Hide the details, for a wider chart (Q)", **spoken)


def selected(tabs: Sequence[Tab], query: Query) -> Tab | None:
    """Return the tab that the query names, else the first; None if there are no tabs."""
    return next((tab for tab in tabs if tab.name == query.get("tab")), tabs[0] if tabs else None)


def _tab_links(tabs: Sequence[Tab], current: Tab | None, query: Query) -> html.Nav:
    """Return the links that select a tab."""
    links = [link(tab.title, address({**query, "tab": tab.name}), current=tab is current) for tab in tabs]
    return navigation(links, "tables and details", "tabs")


def _tab_body(current: Tab | None) -> html.Div:
    """Return the content of the tab `current`; empty if there is no tab."""
    return html.Div([*current.content()] if current else [], id="drawer", className="body", tabIndex=0)
