"""A stretch of time that is asked for in smaller and larger pieces."""

from textual.message import Message
from textual.widget import Widget

SHORTEST_NS = 100
"""The narrowest window."""


class Zoomed(Widget):
    """A window is (first, last) in ns; to ask for another is `Asked`. A second base, as styles come from the first."""

    _whole = _window = (0, 1)

    class Asked(Message):
        """Something else is wanted: what is in a window, or in all time."""

        def __init__(self, window: tuple[int, int] | None) -> None:
            super().__init__()
            self.window = window

    def settle(self, window: tuple[int, int] | None, last: int) -> None:
        """A window is shown; where it is None all time is, up to `last`."""
        if window is None:
            self._whole = (0, max(1, last))
        self._window = window or self._whole

    @property
    def middle(self) -> int:
        """What stays where it is."""
        return sum(self._window) // 2

    def action_pan(self, by: int) -> None:
        """Go on by a quarter of what is in sight."""
        first, last = self._window
        step = max(1, (last - first) // 4) * by
        self._ask(first + step, last + step)

    def action_zoom(self, factor: float) -> None:
        """Half or twice as much time around the middle; 0 for all of it."""
        first, last = self._window
        span = max(SHORTEST_NS, int((last - first) * factor))
        if not factor or span >= self._whole[1]:
            self.post_message(self.Asked(None))
            return
        self._ask(self.middle - span // 2, self.middle + span // 2)

    def _ask(self, first: int, last: int) -> None:
        span = last - first
        first = max(0, min(first, self._whole[1] - span))
        self.post_message(self.Asked((first, first + span)))
