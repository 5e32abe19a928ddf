"""Round values for the ticks of axes; the dashboard and HTML reports use the same values."""

from collections.abc import Sequence
from math import floor, log10

from analyzers.words import size, tick_durations

Tick = tuple[float, str]
"""A tick of an axis, as (value, label)."""


def byte_tick_values(top: int) -> list[int]:
    """Return the ticks of an axis from 0 to `top` bytes, at round multiples of binary units such as MiB."""
    every = 1 << max(0, (max(top, 1) - 1).bit_length() - 3)  # a power of two of which four to eight fit
    return [*range(0, top + every, every)]


def tick_distance(length: float, most: int) -> float:
    """Return the distance between the ticks of an axis, so that at most `most` ticks fit in `length`.

    The distance is 1, 2 or 5 times a power of ten.
    """
    if length <= 0:
        return 1.0
    # 1, 2 and 5 are the steps that people read without counting.
    magnitude: float = 10.0 ** floor(log10(length / most))
    return next(factor * magnitude for factor in (1, 2, 5, 10) if length / (factor * magnitude) <= most)


def byte_marks(top: int) -> list[Tick]:
    """Return the ticks of an axis that ends at `top` bytes."""
    return [(value, size(value)) for value in byte_tick_values(top) if value <= top]


def duration_marks(top_ns: float, most: int) -> list[Tick]:
    """Return at most `most` + 1 ticks of an axis from 0 to `top_ns` nanoseconds."""
    every = tick_distance(top_ns, most)
    at = [number * every for number in range(floor(top_ns / every) + 1)]
    return [*zip(at, tick_durations(at, every, top_ns), strict=True)]


def apart(ticks: Sequence[Tick], least: float) -> list[Tick]:
    """Return the ticks without any tick that is closer than `least` to the previous one; `ticks` are ascending."""
    kept: list[Tick] = []
    for tick in ticks:
        if not kept or tick[0] - kept[-1][0] >= least:
            kept.append(tick)
    return kept
