"""Names of runs for titles with little space; the ends of paths distinguish runs best."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from analyzers.steps.diff import OUTSIDE

CUT = "…"


def short_names(roots: Sequence[Path]) -> list[str]:
    """Return the end of each run's path, as short as possible such that all ends differ.

    >>> short_names([Path("jobs/first/outputs"), Path("jobs/second/outputs")])
    ['first/outputs', 'second/outputs']
    """
    ends = [root.parts[::-1] for root in roots]
    equal = len(list(takewhile(lambda parts: len(set(parts)) == 1, zip(*ends, strict=False)))) if len(ends) > 1 else 0
    return [str(Path(*end[equal::-1])) for end in ends]


def fitted_title(roots: Sequence[Path], width: int) -> str:
    """Return the paths of runs in at most `width` characters; the beginnings of longer paths are cut off."""
    whole = " and ".join(str(root) for root in roots)
    if len(whole) <= width:
        return whole
    short = f"{CUT}/{short_names(roots)[0]}" if len(roots) == 1 else " and ".join(short_names(roots))
    return short if len(short) <= width else CUT + short[max(1, len(short) - width + 1) :]


TITLES = {"residual": OUTSIDE}
"""{column of `analyzers.steps.views.phases`: its title}; the other columns are titles themselves."""


def phase_title(name: str) -> str:
    return TITLES.get(name, name)
