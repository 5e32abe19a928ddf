"""The events of a window of time: a row a stream or thread and depth, each event from its start to its end."""

from typing import Any, ClassVar

import pandas as pd
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from analyzers.words import duration_ns
from workbench.colours import EVENT_KIND_SIGNS, EVENT_KINDS, text_colour
from workbench.console import clean
from workbench.tui.widgets.charts.time_zoom import Zoomed
from workbench.tui.widgets.key_bindings import SCROLLED

LABEL = 20
"""Columns in front of the events, for the lane."""
SHORTEST_NAME = 3


class Gantt(ScrollView, Zoomed, can_focus=True):
    """Spans as `traces.views.timeline` gives them."""

    DEFAULT_CSS = "Gantt { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "pan(-1)", "Earlier", id="gantt.left", show=False),
        Binding("right,l", "pan(1)", "Later", id="gantt.right", show=False),
        Binding("plus,equals_sign", "zoom(0.5)", "Zoom in", id="gantt.in"),
        Binding("minus", "zoom(2)", "Zoom out", id="gantt.out"),
        Binding("0", "zoom(0)", "Whole", id="gantt.reset"),
        *(key for key in SCROLLED if isinstance(key, Binding) and key.key not in "hl"),
    ]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._spans = pd.DataFrame()
        self._rows: list[tuple[str, int]] = []

    def show(self, spans: pd.DataFrame, window: tuple[int, int] | None) -> None:
        """Draw the events of a window; those of all time where it is None."""
        ends = (spans["start_ns"] + spans["dur_ns"]) if len(spans) else pd.Series([1])
        self.settle(window, int(ends.max()))
        self._spans, self._rows = spans, lanes(spans)
        self.virtual_size = Size(0, len(self._rows) + 1)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        return self._line(self.scroll_offset.y + y - 1, y).apply_style(self.rich_style)

    def _line(self, row: int, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y == 0:
            return Strip([Segment(self._head()[:width].ljust(width), Style(dim=True))], width)
        if not 0 <= row < len(self._rows):
            return Strip.blank(width)
        lane, depth = self._rows[row]
        label = clean(lane) if depth == 0 else ""
        cells = self._cells(lane, depth, max(1, width - LABEL))
        return Strip([Segment(label[: LABEL - 1].ljust(LABEL)), *cells], width).simplify()

    def _head(self) -> str:
        first, last = self._window
        if not len(self._spans):
            return "no events"
        signs = "  ".join(f"{sign} {name or 'host'}" for name, sign in EVENT_KIND_SIGNS.items() if name != "idle")
        return f"{duration_ns(first)} … {duration_ns(last)} ({duration_ns(last - first)})   {signs}"

    def _cells(self, lane: str, depth: int, width: int) -> list[Segment]:
        """The events of a row, the longer ones over those they hide."""
        first, last = self._window
        mine = self._spans[(self._spans["lane"] == lane) & (self._spans["depth"] == depth)]
        owner = [-1] * width
        scale = width / max(1, last - first)
        for place, (start, dur) in enumerate(zip(mine["start_ns"], mine["dur_ns"], strict=True)):
            begin = max(0, int((start - first) * scale))
            end = min(width, max(begin + 1, int((start + dur - first) * scale)))
            owner[begin:end] = [place] * (end - begin)
        names, kinds = [told(*one) for one in zip(mine["count"], mine["name"], strict=True)], mine["kind"].tolist()
        return [piece(names, kinds, number, length) for number, length in runs(owner)]


def told(count: int, name: str) -> str:
    """A block of many events goes by the longest of them."""
    return clean(name) if count == 1 else f"{count} x {clean(name)}"


def piece(names: list[str], kinds: list[str], number: int, length: int) -> Segment:
    """One event in so many columns: its name, or where that has no room the sign of its kind."""
    if number < 0:
        return Segment(" " * length)
    colour = EVENT_KINDS[kinds[number]]
    style = Style(color=text_colour(colour), bgcolor=colour)
    if length < SHORTEST_NAME:
        return Segment(EVENT_KIND_SIGNS[kinds[number]] * length, style)
    return Segment(f"{names[number][: length - 1]:<{length - 1}}▕", style)


def runs(owner: list[int]) -> list[tuple[int, int]]:
    """(value, length) of each run of equal values."""
    found: list[tuple[int, int]] = []
    for value in owner:
        if found and found[-1][0] == value:
            found[-1] = value, found[-1][1] + 1
        else:
            found.append((value, 1))
    return found


def lanes(spans: pd.DataFrame) -> list[tuple[str, int]]:
    """(lane, depth) of each row: devices first, then threads of the host, each with its nesting below it."""
    if not len(spans):
        return []
    order = spans.sort_values(["on_device", "lane", "depth"], ascending=[False, True, True])
    return list(dict.fromkeys(zip(order["lane"], order["depth"], strict=True)))
