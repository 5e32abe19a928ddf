"""Draw a sparkline, which shows numbers over time in one line of text."""

import math
from collections.abc import Sequence
from itertools import pairwise

LEVELS = "▁▂▃▄▅▆▇█"
NOT_FINITE = "✗"


def spark(values: Sequence[float], width: int) -> str:
    """Return a sparkline of at most `width` characters; each character shows the maximum of consecutive values.

    NaN and infinity are drawn as `✗`.
    """
    # A NaN among the values would make every level NaN.
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(level(worst(part), low, high) for part in _stretches(values, width))


def _stretches(values: Sequence[float], width: int) -> list[Sequence[float]]:
    parts = min(width, len(values))
    edges = [len(values) * i // parts for i in range(parts + 1)] if parts else []
    return [values[a:b] for a, b in pairwise(edges)]


def worst(values: Sequence[float]) -> float:
    """Return the first value that is not finite; if all are finite, the maximum."""
    return next((value for value in values if not math.isfinite(value)), max(values))


def level(value: float, low: float, high: float) -> str:
    """Return the block character for a value between `low` and `high`; `✗` if the value is not finite."""
    # A loss that is NaN is the one value a reader looks for.
    if not math.isfinite(value):
        return NOT_FINITE
    return LEVELS[round((value - low) / (high - low) * (len(LEVELS) - 1))] if high > low else LEVELS[0]


def bar(part: float, whole: float, width: int = 20) -> str:
    """Return a bar of block characters, filled to the fraction `part` / `whole` of `width` characters."""
    # Clamped: a part may exceed its whole by rounding, and a bar must not push the columns beside it.
    eighths = round(8 * width * max(0.0, min(1.0, part / whole))) if whole else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")
