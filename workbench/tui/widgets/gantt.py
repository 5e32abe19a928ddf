"""A chart of the events in a time range: each event is a bar from its start to its end.

There is a row for each nesting depth of each stream or thread.
"""

from collections.abc import Sequence
from typing import ClassVar, Unpack

import pandas as pd
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from analyzers.words import duration_ns, size, tick_durations
from workbench.colours import EVENT_KIND_SIGNS, EVENT_KINDS, text_colour
from workbench.console import clean
from workbench.tui.widgets.axes import TimeZoom, Unit, round_distance
from workbench.tui.widgets.common import SCROLL_KEYS, WidgetOptions, fitted
from workbench.tui.widgets.stacked_chart import StackedChart

_HEAD_LINES = 2
"""The number of lines above the events: the range of time with the legend, and the ruler."""
_RULER_COLUMNS = 14
"""The usual distance, in columns, between two times of the ruler."""
_RULER_STEPS = (1.0, 2.0, 5.0, 10.0)
"""The round distances between times of the ruler; 2.5 would need a digit more than 2."""
PROFILER = "PyTorch Profiler"
"""The name of the lane with the profiler's own work, which says nothing about the job."""
LABEL_WIDTH = 20
"""The columns in front of the events, for the name of the stream or thread."""
_SHORTEST_NAME = 3


class Gantt(ScrollView, TimeZoom, can_focus=True):
    """A chart of events over time; the events come from `traces.views.timeline`."""

    DEFAULT_CSS = "Gantt { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "pan(-1)", "Earlier", id="gantt.left", show=False),
        Binding("right,l", "pan(1)", "Later", id="gantt.right", show=False),
        Binding("plus,equals_sign", "zoom(0.5)", "Zoom in", id="gantt.in"),
        Binding("minus", "zoom(2)", "Zoom out", id="gantt.out"),
        Binding("0", "zoom(0)", "Whole", id="gantt.reset"),
        # h and l move through time here, and must not scroll as well.
        *(key for key in SCROLL_KEYS if isinstance(key, Binding) and key.key not in "hl"),
    ]

    def __init__(self, **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self._spans = pd.DataFrame()
        self._rows: list[tuple[str, int]] = []

    def show(self, spans: pd.DataFrame, window: tuple[int, int] | None) -> None:
        """Draw the events in the time range `window` (first, last) in ns; None means the whole recording."""
        ends = (spans["start_ns"] + spans["dur_ns"]) if len(spans) else pd.Series([1])
        self.set_window(window, int(ends.max()))
        self._spans, self._rows = spans, lanes(spans)
        self.virtual_size = Size(0, len(self._rows) + _HEAD_LINES)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        return self._line(self.scroll_offset.y + y - _HEAD_LINES, y).apply_style(self.rich_style)

    def _line(self, row: int, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y == 0:
            return Strip([Segment(self._head()[:width].ljust(width), Style(dim=True))], width)
        if y == 1:
            return Strip([Segment((" " * LABEL_WIDTH + self._ruler(width - LABEL_WIDTH))[:width].ljust(width))], width)
        if not 0 <= row < len(self._rows):
            return Strip.blank(width)
        lane, depth = self._rows[row]
        label = clean(lane) if depth == 0 else ""
        cells = self._cells(lane, depth, max(1, width - LABEL_WIDTH))
        return Strip([Segment(fitted(label, LABEL_WIDTH - 1).ljust(LABEL_WIDTH)), *cells], width).simplify()

    def _head(self) -> str:
        first, last = self._window
        if not len(self._spans):
            return "no events"
        signs = "  ".join(f"{sign} {name or 'host'}" for name, sign in EVENT_KIND_SIGNS.items() if name != "idle")
        return f"{duration_ns(first)} … {duration_ns(last)} ({duration_ns(last - first)})   {signs}"

    def _ruler(self, columns: int) -> str:
        """Return the time axis as a line of text: ticks at round times, each followed by its label.

        A tick whose label does not fit is left out.
        """
        first, last = self._window
        line, step = "", int(round_distance(max(1.0, (last - first) * _RULER_COLUMNS / max(1, columns)), _RULER_STEPS))
        ticks = range(-(-first // step) * step, last, step) if len(self._spans) else range(0)
        for at, label in zip(ticks, tick_durations(ticks, step, last - first), strict=True):
            column = (at - first) * columns // max(1, last - first)
            if column + 1 + len(label) <= columns:
                line = f"{line.ljust(column)}╷{label}"
        return line

    def _cells(self, lane: str, depth: int, width: int) -> list[Segment]:
        """Return the cells of one row of the chart, `width` characters in total.

        The row belongs to `lane` (a stream or thread) and to a nesting depth. An event is at least one character wide,
        and covers earlier events in the same cell.
        """
        first, last = self._window
        events = self._spans[(self._spans["lane"] == lane) & (self._spans["depth"] == depth)]
        owner = [-1] * width
        scale = width / max(1, last - first)
        for number, (start, dur) in enumerate(zip(events["start_ns"], events["dur_ns"], strict=True)):
            begin = max(0, int((start - first) * scale))
            end = min(width, max(begin + 1, int((start + dur - first) * scale)))
            owner[begin:end] = [number] * (end - begin)
        names = [_block_name(count, name) for count, name in zip(events["count"], events["name"], strict=True)]
        kinds = events["kind"].tolist()
        return [piece(names, kinds, number, length) for number, length in runs(owner)]


def _block_name(count: int, name: str) -> str:
    return clean(name) if count == 1 else f"{count} x {clean(name)}"


def piece(names: list[str], kinds: list[str], number: int, length: int) -> Segment:
    """Return event number `number` as a segment of `length` characters.

    The segment shows the event's name, or the sign of its kind if the name does not fit. A negative number is a gap.
    """
    if number < 0:
        return Segment(" " * length)
    colour = EVENT_KINDS[kinds[number]]
    style = Style(color=text_colour(colour), bgcolor=colour)
    if length < _SHORTEST_NAME:
        return Segment(EVENT_KIND_SIGNS[kinds[number]] * length, style)
    return Segment(f"{names[number][: length - 1]:<{length - 1}}▕", style)


def runs(owner: list[int]) -> list[tuple[int, int]]:
    """Return (value, length) of each run of equal neighbours in a list.

    >>> runs([7, 7, -1])
    [(7, 2), (-1, 1)]
    """
    lengths: list[tuple[int, int]] = []
    for value in owner:
        if lengths and lengths[-1][0] == value:
            lengths[-1] = value, lengths[-1][1] + 1
        else:
            lengths.append((value, 1))
    return lengths


def lanes(spans: pd.DataFrame) -> list[tuple[str, int]]:
    """Return (lane, nesting depth) of each row of the chart, from the top; `spans` are the events.

    A lane is a device stream or a host thread. Devices come first; the profiler's own work comes last.
    """
    if not len(spans):
        return []
    of_profiler = spans["lane"].str.contains(PROFILER, regex=False)
    order = spans.assign(of_profiler=of_profiler).sort_values(
        ["of_profiler", "on_device", "lane", "depth"], ascending=[True, False, True, True]
    )
    return list(dict.fromkeys(zip(order["lane"], order["depth"], strict=True)))


COLOURS = {"allocated": EVENT_KINDS["memory"], "unallocated": EVENT_KINDS["idle"]}


class DeviceMemoryChart(StackedChart, TimeZoom):
    """A chart of a device's memory over time, as `traces.views.memory` returns it."""

    UNIT: ClassVar[Unit] = Unit.BYTES

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "Earlier", id="held.left", show=False),
        Binding("right,l", "move(1)", "Later", id="held.right", show=False),
        Binding("plus,equals_sign", "zoom(0.5)", "Zoom in", id="held.in"),
        Binding("minus", "zoom(2)", "Zoom out", id="held.out"),
        Binding("0", "zoom(0)", "Whole", id="held.reset"),
    ]

    def show(self, frame: pd.DataFrame, window: tuple[int, int] | None) -> None:
        """Draw the memory in the time range `window` (first, last) in ns; None means the whole recording."""
        unallocated = (frame["reserved"] - frame["allocated"]).clip(lower=0)
        width = int(frame["at_ns"].iloc[1] - frame["at_ns"].iloc[0]) if len(frame) > 1 else 1
        self.set_window(window, int(frame["at_ns"].max()) + width if len(frame) else 1)
        self.draw(frame.assign(unallocated=unallocated, top=frame["allocated"] + unallocated), COLOURS, "top")

    @property
    def highest(self) -> int:
        return int(self.instants["allocated"].to_numpy(int).argmax())

    @property
    def middle(self) -> int:
        return (
            int(self.instants["at_ns"].iloc[self.cursor]) if 0 <= self.cursor < len(self.instants) else super().middle
        )

    def action_move(self, columns: int) -> None:
        self.move(columns)

    def signs(self) -> dict[int, str]:
        """Return the mark above the chart as {index of a table row: sign}: `▼` over the peak."""
        return {self.highest: "▼"}

    def value_text(self, value: float) -> str:
        return size(int(value))

    def ruler(self) -> Sequence[str]:
        row, top = self.instants.iloc[max(0, self.cursor)], size(int(self.instants["allocated"].max()))
        memory = _memory_text(int(row["allocated"]), int(row["reserved"]))
        return [f"{row['where']}, {duration_ns(int(row['at_ns']))}: {memory}", f"▼ {top}"]


def _memory_text(allocated: int, reserved: int) -> str:
    return f"{size(allocated)} allocated" + (f", {size(reserved)} reserved" if reserved else "")
