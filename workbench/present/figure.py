"""Build a figure of a standalone HTML page: a title, an inline SVG drawing with axes, and a legend."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from workbench.axes import Tick
from workbench.console import clean

# Units of the drawing; the page stretches it to its own width.
WIDTH, HEIGHT = 900, 220
_LAST = 0.9
"""A label that is further right than this share of the width ends at its position, so that it is not cut."""


class Axes(NamedTuple):
    """The labels of a drawing: `up` from bottom to top, `across` from left to right.

    The position of each label is a fraction from 0 to 1. `failed` has the position and the name of a failure.
    """

    up: Sequence[Tick]
    across: Sequence[Tick]
    failed: Tick | None = None


def figure(title: str, shapes: str, colours: Mapping[str, str], axes: Axes) -> str:
    """Return an HTML figure with the drawing `shapes` (SVG text), axes and a legend.

    `colours` maps each name in the legend to its CSS background. The labels are HTML and not SVG, because the drawing
    is stretched, and would stretch its letters too.
    """
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{text(name)}</span>' for name, colour in colours.items()
    )
    lines = "".join(_level_line(at) for at, _ in axes.up) + shapes + (_failure_line(axes.failed) if axes.failed else "")
    drawing = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{text(title)}">'
        f"{lines}</svg>"
    )
    up = "".join(f'<span style="bottom:{100 * at:.1f}%">{text(label)}</span>' for at, label in axes.up)
    failed = [_across_label(axes.failed, "failed")] if axes.failed else []
    across = "".join([*map(_across_label, axes.across), *failed])
    plot = f'<div class="plot"><div class="up">{up}</div>{drawing}<div class="across">{across}</div></div>'
    return f'<figure><figcaption>{text(title)}</figcaption>{plot}<p class="keys">{legend}</p></figure>'


def _across_label(tick: Tick, style: str = "") -> str:
    at, label = tick
    classes = " ".join([*(["last"] if at > _LAST else []), *([style] if style else [])])
    return f'<span class="{classes}" style="left:{100 * at:.1f}%">{text(label)}</span>'


def _level_line(at: float) -> str:
    y = (1 - at) * HEIGHT
    return f'<line x1="0" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--edge)"/>'


def _failure_line(failed: Tick) -> str:
    x = failed[0] * WIDTH
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT}" stroke="var(--error)" stroke-width="2"/>'


def text(value: object) -> str:
    """Return `value` as escaped HTML text; it may come from a hostile file."""
    return escape(clean(value))


def prose(sentence: str) -> str:
    """Return a sentence of a report as HTML; commands and settings between backticks become code elements."""
    parts = clean(sentence).split("`")
    # Without a partner, a backtick is a sign like any other.
    if len(parts) % 2 == 0:
        return escape(clean(sentence))
    return "".join(f"<code>{escape(part)}</code>" if i % 2 else escape(part) for i, part in enumerate(parts))


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
    # A loss that is NaN is the one value a reader looks for.
    if not math.isfinite(value):
        return NOT_FINITE
    return LEVELS[round((value - low) / (high - low) * (len(LEVELS) - 1))] if high > low else LEVELS[0]


def bar(part: float, whole: float, width: int = 20) -> str:
    # Clamped: a part may exceed its whole by rounding, and a bar must not push the columns beside it.
    eighths = round(8 * width * max(0.0, min(1.0, part / whole))) if whole else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")
