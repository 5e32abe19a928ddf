"""Numbers over time in one line of text."""

import math
from collections.abc import Sequence
from itertools import pairwise

LEVELS = "▁▂▃▄▅▆▇█"
BROKEN = "✗"


def spark(values: Sequence[float], width: int) -> str:
    """At most `width` characters, each the highest of its stretch of values; what is not finite is `✗`."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(level(worst(part), low, high) for part in stretches(values, width))


def stretches(values: Sequence[float], width: int) -> list[Sequence[float]]:
    """The values in at most `width` parts of nearly one length."""
    parts = min(width, len(values))
    edges = [len(values) * i // parts for i in range(parts + 1)] if parts else []
    return [values[a:b] for a, b in pairwise(edges)]


def worst(values: Sequence[float]) -> float:
    """The highest, or one that is not finite: neither may be lost in a line."""
    return next((value for value in values if not math.isfinite(value)), max(values))


def level(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return BROKEN
    return LEVELS[round((value - low) / (high - low) * (len(LEVELS) - 1))] if high > low else LEVELS[0]
