"""What the browser sends when a reader clicks, zooms or types: JSON of any shape, narrowed here once."""

from collections.abc import Mapping
from math import inf

Span = tuple[float, float]
ALL = (-inf, inf)


def clicked_point(click: object) -> Mapping[str, object] | None:
    """Return the first point of `clickData`, which Plotly sends; None if nothing was clicked."""
    points = click.get("points") if isinstance(click, dict) else None
    return points[0] if isinstance(points, list) and points and isinstance(points[0], dict) else None


def point_data(point: Mapping[str, object], index: int | None = None) -> str:
    """Return the custom data of a point as text, or its item `index` if that is given."""
    data = point.get("customdata")
    if index is None:
        return str(data)
    return str(data[index]) if isinstance(data, list) and len(data) > index else ""


def whole_number(value: object) -> int | None:
    """Return a number, or the number in a text, as an int rounded towards zero; None for anything else."""
    if isinstance(value, str):
        return int(value) if value.lstrip("-").isdecimal() and value.isascii() else None
    return int(value) if isinstance(value, int | float) and abs(value) < inf else None


def typed_text(value: object) -> str:
    """Return the text of an input field; a field that was never used has the value None and yields an empty text."""
    return value if isinstance(value, str) else ""


def zoomed_range(change: object) -> Span | None:
    """Return the range of the x axis after a zoom: `ALL` after a reset, None if the zoom did not change it.

    Plotly reports a range that was dragged, one that code set, and a reset in three different ways.
    """
    if not isinstance(change, dict):
        return None
    ends = change.get("xaxis.range") or [change.get("xaxis.range[0]"), change.get("xaxis.range[1]")]
    if isinstance(ends, list) and len(ends) == 2 and None not in ends:
        return float(ends[0]), float(ends[1])
    # A zoom of the y axis alone names no x axis at all.
    return ALL if "xaxis.autorange" in change else None
