"""The horizontal axis of a memory timeline: either the time since the first trace entry, or the entry number."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from analyzers.columns import Integers
from workbench.step_axis import Span
from workbench.web.components.figure import FigurePart, ticks_across

_MICROSECONDS = 1e6


@dataclass(frozen=True)
class TimelineAxis:
    """Converts between trace entries and positions on the axis of a memory timeline.

    `times_us` has the time of each entry in µs since the first entry, ascending. Positions are then in seconds. Without
    times, a position is the number of the entry.
    """

    times_us: Integers

    @property
    def unit(self) -> str:
        """The unit of positions: "seconds" or "entries"."""
        return "seconds" if len(self.times_us) else "entries"

    def positions(self, entries: Iterable[float]) -> list[float]:
        """Return the positions of trace entries on the axis; a fraction such as entry 2.5 is interpolated."""
        at = np.fromiter(entries, float)
        if not len(self.times_us):
            return [float(entry) for entry in at]
        last = len(self.times_us) - 1
        below = np.clip(np.floor(at), 0, last).astype(np.int64)
        above = np.minimum(below + 1, last)
        part = np.clip(at - below, 0, 1)
        seconds = (self.times_us[below] + part * (self.times_us[above] - self.times_us[below])) / _MICROSECONDS
        return [float(second) for second in seconds]

    def entries(self, span: Span) -> Span:
        """Return the first and the last trace entry in `span`, a range of positions; its ends may be infinite."""
        if not len(self.times_us):
            return span
        low, high = np.searchsorted(self.times_us, np.array(span) * _MICROSECONDS, "left").tolist()
        return float(low), float(high)

    def layout(self, first: float, last: float) -> FigurePart:
        """Return the Plotly layout of the axis, with ticks between the positions `first` and `last`."""
        if not len(self.times_us):
            return {"title": {"text": "trace entry (allocator event)", "standoff": 4}}
        ticks = ticks_across(first * 1e9, last * 1e9)
        return {
            "title": {"text": "time since the first trace entry", "standoff": 4},
            "tickvals": [ns / 1e9 for ns in ticks["tickvals"]],
            "ticktext": ticks["ticktext"],
            # Times are whole microseconds, so that six digits show them exactly; `~` drops trailing zeros.
            "hoverformat": ".6~f",
            "ticksuffix": " s",
        }
