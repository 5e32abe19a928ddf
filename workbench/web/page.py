"""Describe a page of the dashboard, and find the page that shows the evidence of a finding."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dash import Dash
from dash.development.base_component import Component

from analyzers.report import Finding
from analyzers.rooms import imported
from workbench.rooms import FACES, EvidenceLink, evidence_link
from workbench.web.components.figure import Drawing
from workbench.web.query import Query, address
from workbench.web.served_run import ServedRun
from workbench.web.step_window import Window


@dataclass(frozen=True)
class Page:
    """A page of the dashboard; the page of a room has a link if the report has data of the room.

    `layout` returns the content of the page. `window` returns the range that it shows, if it has a horizontal axis of
    its own; other pages only pass the range of steps in the address on to their links. `install` registers callbacks.

    The others are about evidence: `query` returns the parameters with which the page shows that of a finding, `drawing`
    a chart of it for the first page, and `tabs` maps parts of the page to the tabs that contain them; parts that are
    not listed are always visible.
    """

    title: str
    layout: Callable[[ServedRun, Query], Component]
    window: Callable[[ServedRun, Query], Window] | None = None
    install: Callable[[Dash, ServedRun], None] | None = None
    query: Callable[[ServedRun, EvidenceLink], Query] | None = None
    drawing: Callable[[ServedRun, EvidenceLink], Drawing | None] | None = None
    tabs: Mapping[str, str] = field(default_factory=dict)


def page_of(room: str) -> Page:
    page: Page = imported(FACES[room].page)
    return page


def evidence_address(served: ServedRun, finding: Finding) -> str | None:
    at = evidence_link(finding)
    if at is None or at.room not in served.rooms:
        return None
    page = page_of(at.room)
    query = page.query(served, at) if page.query else {}
    query |= {"tab": page.tabs[at.part]} if at.part in page.tabs else {}
    return f"{at.room}{address(query) if query else ''}{f'#{at.part}' if at.part else ''}"


def rank_query(_served: ServedRun, at: EvidenceLink) -> Query:
    return {} if at.rank is None else {"rank": str(at.rank)}
