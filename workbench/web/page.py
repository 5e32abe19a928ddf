"""Describe a page of the dashboard, and find the page that shows the evidence of a finding."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from dash import Dash
from dash.development.base_component import Component

from analyzers.report import Finding
from analyzers.rooms import imported
from workbench.axes import Span
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


# Parse the JSON that browsers send after a click, a zoom or typed text.
#
# The content is not trusted: any client may send anything.

ALL = (-inf, inf)


def clicked_point(click: object) -> Mapping[str, object] | None:
    points = click.get("points") if isinstance(click, dict) else None
    return points[0] if isinstance(points, list) and points and isinstance(points[0], dict) else None


def point_data(point: Mapping[str, object], index: int | None = None) -> str:
    """Return the `customdata` of a clicked point as text; with `index`, only that item of it."""
    data = point.get("customdata")
    if index is None:
        return str(data)
    return str(data[index]) if isinstance(data, list) and len(data) > index else ""


def whole_number(value: object) -> int | None:
    """Return `value` as an int, rounded towards zero; None if it is neither a number nor digits in a text."""
    if isinstance(value, str):
        return int(value) if value.lstrip("-").isdecimal() and value.isascii() else None
    return int(value) if isinstance(value, int | float) and abs(value) < inf else None


def typed_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def zoomed_range(change: object) -> Span | None:
    """Return the range of the x axis after a zoom: `ALL` after a reset, None if the x axis did not change.

    Plotly reports the change in three formats: for a range dragged by the user, for one set by code, and for a reset.
    """
    if not isinstance(change, dict):
        return None
    ends = change.get("xaxis.range") or [change.get("xaxis.range[0]"), change.get("xaxis.range[1]")]
    if isinstance(ends, list) and len(ends) == 2 and None not in ends:
        return float(ends[0]), float(ends[1])
    # A zoom of the y axis alone names no x axis at all.
    return ALL if "xaxis.autorange" in change else None
