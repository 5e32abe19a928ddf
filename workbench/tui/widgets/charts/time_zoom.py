"""Zooming and panning for charts that show a time range and can ask for another range."""

from textual.message import Message
from textual.widget import Widget

_SHORTEST_NS = 100
"""The shortest time range, in ns, that zooming shows: shorter than any event of a profiler."""


class TimeZoom(Widget):
    """A mixin for charts of a time range, with keys to zoom and pan.

    The chart posts `WindowAsked` when the user wants another time range.
    """

    _whole = _window = (0, 1)

    class WindowAsked(Message):
        """Message: the user wants to see the time range (first, last) in ns; None means the whole recording."""

        def __init__(self, window: tuple[int, int] | None) -> None:
            super().__init__()
            self.window = window

    def set_window(self, window: tuple[int, int] | None, last: int) -> None:
        """Store the visible time range (first, last) in ns; None means the whole recording, from 0 to `last`."""
        # The events of a shorter range do not show where the whole recording ends.
        if window is None:
            self._whole = (0, max(1, last))
        self._window = window or self._whole

    @property
    def middle(self) -> int:
        """The time in ns that a zoom makes the middle of the chart."""
        return sum(self._window) // 2

    def action_pan(self, by: int) -> None:
        """Move the time range by a quarter of its width; `by` is -1 or 1."""
        first, last = self._window
        step = max(1, (last - first) // 4) * by
        self._ask(first + step, last + step)

    def action_zoom(self, factor: float) -> None:
        """Make the time range `factor` times as long around the middle; 0 shows the whole recording."""
        first, last = self._window
        span = max(_SHORTEST_NS, int((last - first) * factor))
        if not factor or span >= self._whole[1]:
            self.post_message(self.WindowAsked(None))
            return
        self._ask(self.middle - span // 2, self.middle + span // 2)

    def _ask(self, first: int, last: int) -> None:
        span = last - first
        first = max(0, min(first, self._whole[1] - span))
        self.post_message(self.WindowAsked((first, first + span)))
