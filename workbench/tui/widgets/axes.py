"""Choose round values for the value axis of a chart that is drawn in character cells."""

import math
import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from textual.message import Message
from textual.widget import Widget

_DECIMAL = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
FEW = (1.0, 2.0, 2.5, 5.0, 10.0)
"""The round numbers from a power of ten to the next one.

DECIMAL has those for values from 0 on, FEW those for other ranges.
"""
_MINUTES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0)
_MINUTE_S, _HOUR_S = 60.0, 3600.0
_MOST_LABELLED = 1e300
"""The largest value with labels; multiples of a value near Python's largest number would be infinite."""
_MOST_ROWS = 8
_USUAL_ROWS = 4
"""The distance of labels, in rows, that is preferred among scales that use the height equally well."""
_PREFERRED = 0.01
"""The share by which a scale may be higher for each row by which its labels come nearer to `_USUAL_ROWS`."""


class Unit(Enum):
    """What the values of an axis are; this decides which values are round.

    Sizes are round in binary units and in decimal multiples of such units, for example 128 MiB and 200 MiB. Durations
    above a minute are round in minutes or hours.
    """

    NUMBER = "number"
    BYTES = "bytes"
    SECONDS = "seconds"


class ValueAxis(NamedTuple):
    """The scale of a chart: `top` is the value at its upper edge.

    `labels` is {row: value at the upper edge of the row}, for each row that has a label. Row 0 is the lowest.
    """

    top: float
    labels: dict[int, float]


def value_axis(largest: float, rows: int, unit: Unit) -> ValueAxis:
    """Return a scale with round labels for a chart of `rows` rows; it ends at `largest` or a little above.

    For example, a chart of 25 rows whose largest value is 602 ms ends at 625 ms, and every fourth row has a label, from
    100 ms to 600 ms. If `largest` is above `_MOST_LABELLED`, there are no labels.
    """
    if not largest > 0 or not math.isfinite(largest):
        return ValueAxis(1.0, {})
    if largest > _MOST_LABELLED:
        return ValueAxis(largest, {})
    # Two labels at least, where there are rows for them, but none in neighbouring rows.
    apart = range(2, min(_MOST_ROWS, rows // 2) + 1) if rows >= _USUAL_ROWS else range(1, 2)
    scales = [(distance, round_up(largest * distance / rows, unit)) for distance in apart]
    distance, step = min(
        scales,
        key=lambda scale: scale[1] * rows / scale[0] * (1 + _PREFERRED * abs(scale[0] - _USUAL_ROWS)),
    )
    labels = {distance * number - 1: step * number for number in range(1, rows // distance + 1)}
    return ValueAxis(step * rows / distance, labels)


def round_up(value: float, unit: Unit = Unit.NUMBER) -> float:
    """Return the smallest round number that is not below a positive value.

    >>> round_up(0.012), round_up(150 << 20, Unit.BYTES) / (1 << 20), round_up(70.0, Unit.SECONDS)
    (0.02, 192.0, 120.0)
    """
    scale, choices = _multiples(value, unit)
    # Rounding must not take the next number for a value that is one of them.
    return next((scale * choice for choice in choices if scale * choice >= value * (1 - 1e-9)), value)


def round_distance(value: float, choices: Sequence[float] = FEW) -> float:
    """Return the smallest round number that is not below a positive value.

    Round numbers are the numbers in `choices` (each from 1 to 10) times a power of ten.
    """
    scale = 10.0 ** math.floor(math.log10(value))
    return next(scale * choice for choice in choices if scale * choice >= value * (1 - 1e-9))


def _multiples(value: float, unit: Unit) -> tuple[float, Sequence[float]]:
    """Return (scale, numbers): the products of scale and a number are the round values near `value`, ascending."""
    if unit is Unit.BYTES:
        power = max(0, math.floor(math.log(max(value, 1.0), 1024)))
        decimal = {mantissa * 10**exponent for exponent in range(3) for mantissa in (1, 2, 3, 4, 5, 6, 8)}
        binary = {
            2**exponent * mantissa for exponent in range(11) for mantissa in (1, 3) if 2**exponent * mantissa <= 1024
        }
        return 1024.0**power, sorted(decimal | binary | ({1.5, 2.5} if power else set()))
    if unit is Unit.SECONDS and value > _MINUTE_S / 3:
        scale = _HOUR_S if value > _HOUR_S / 2 else _MINUTE_S
        return scale, [n * 10.0**exponent for exponent in range(9) for n in _DECIMAL] if scale == _HOUR_S else _MINUTES
    return 10.0 ** math.floor(math.log10(value)), FEW if unit is Unit.NUMBER else (*_DECIMAL, 10.0)


def without_zeros(text: str) -> str:
    """Return a number with its unit, without zeros at the end of its fraction.

    >>> without_zeros("200.0 MiB"), without_zeros("1.50 s"), without_zeros("100 ms")
    ('200 MiB', '1.5 s', '100 ms')
    """
    return re.sub(r"(\.\d*?)0+(?!\d)", lambda match: match[1].rstrip("."), text, count=1)


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
