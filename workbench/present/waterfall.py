"""The change between two runs as a waterfall of text lines, from the total of run A to the total of run B."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from rich.text import Text

from analyzers.compare import CompareData
from analyzers.words import duration
from workbench.colours import DARK
from workbench.console import clean
from workbench.present.tables.comparison import signed

_ROWS = 10
"""The most parts that have a line of their own; the other parts share one."""
_LEAST_SHARE = 0.002
"""Parts below this share of the larger total have no line of their own: nobody would see their bar."""
_MORE, _LESS, _WHOLE = DARK.hues["violet"], DARK.hues["teal"], DARK.hues["grey"]
NAME, _SHORTEST_BAR = 18, 8


def waterfall_lines(parts: Sequence[tuple[str, float]], ends: tuple[float, float], width: int) -> list[Text]:
    """Return lines of `width` characters: the total of run A, a line for each part, and the total of run B.

    `parts` are (name, seconds), and `ends` are the totals. The line of a part has its name, a bar that starts where the
    bar above ends, and the change with its sign.
    """
    least = _LEAST_SHARE * max(ends)
    shown = [part for part in parts if abs(part[1]) >= least][:_ROWS]
    rest = sum(change for _, change in parts) - sum(change for _, change in shown)
    shown += [("everything else", rest)] if abs(rest) >= least else []
    levels = [ends[0], *accumulate((change for _, change in shown), initial=ends[0])]
    bars = [(0.0, ends[0]), *pairwise(levels[1:]), (0.0, ends[1])]
    names = ["run A", *(clean(name) for name, _ in shown), "run B"]
    texts = [duration(ends[0]), *(signed(change, duration) for _, change in shown), duration(ends[1])]
    label, number = min(NAME, max(map(len, names))), max(map(len, texts))
    # Both totals may be 0.
    scale = max(_SHORTEST_BAR, width - label - number - 3) / max(*levels, ends[1], 1e-9)
    return [
        Text.assemble((f"{name[:label]:>{label}} ", "dim"), *bar(low, high, scale), f" {text}", no_wrap=True)
        for name, (low, high), text in zip(names, bars, texts, strict=True)
    ]


def bar(start: float, end: float, scale: float) -> list[str | tuple[str, str]]:
    """Return the space before a bar, and the bar: at least one character, in the colour of an increase or decrease."""
    low, high = sorted((round(start * scale), round(end * scale)))
    colour = _WHOLE if start == 0 else _MORE if end > start else _LESS
    return [" " * low, ("█" * (high - low) or "▏", colour)]


def step_changes(data: CompareData) -> tuple[list[tuple[str, float]], tuple[float, float]]:
    """Return the change of each phase of the mean step (name, seconds), largest first, and the totals of both runs."""
    parts = [(phase.what, phase.change_s) for phase in data.phases if phase.change_s]
    return parts, (sum(phase.a_s for phase in data.phases), sum(phase.b_s for phase in data.phases))
