"""Parse the JSON that browsers send after a click, a zoom or typed text.

The content is not trusted: any client may send anything.
"""

from collections.abc import Mapping
from math import inf

from workbench.axes import Span

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
