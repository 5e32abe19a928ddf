"""Read the rows of numbers that trainers print, of any trainer: what matters of them is named alike."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_PAIR = re.compile(
    r"(?:^|[\s|,;{(\[-])['\"]?([A-Za-z][\w./]{0,40}(?: [A-Za-z]\w{0,20})?)['\"]?\s{0,4}[:=]?\s{0,8}['\"]?"
    r"([-+]?(?:\d[\d,]*\.?\d*(?:e[-+]?\d+)?|nan|inf))(?![\w.]*[A-Za-z:/-]{2})",
    re.IGNORECASE,
)
"""Matches a name and its number: `loss: 2.1`, `'loss': 2.1`, `loss=2.1`, `Loss 6.9 (7.0)`."""
_NAMES = {
    "loss": re.compile(
        r"(?:\w{1,16}[/ _-]?)??(?:\w{1,4})?loss(?:[_/-](?!scale|mask|weight|coef|ratio)\w{1,16})?", re.IGNORECASE
    ),
    "grad_norm": re.compile(r"(?:\w+/)?(?:grad[_ ]?norm|gnorm|gradient_norm)", re.IGNORECASE),
    "time": re.compile(r"(?:iter_?|step_?|batch_?|iteration )?time", re.IGNORECASE),
    "data": re.compile(r"data(?:[_ ]?time|load\w*)?", re.IGNORECASE),
    "reward_std": re.compile(r"reward_std", re.IGNORECASE),
    "zero_std": re.compile(r"frac_reward_zero_std", re.IGNORECASE),
    "margins": re.compile(r"rewards/margins", re.IGNORECASE),
    "mfu": re.compile(r"mfu", re.IGNORECASE),
    "skipped": re.compile(r"skipped iterations", re.IGNORECASE),
    "scale": re.compile(r"(?:fp16 )?(?:grad|loss)[ _]scale", re.IGNORECASE),
}
"""{what a number is: the names that trainers give it}."""
_EVALUATES = re.compile(r"(?:\b|_)(?:valid\w*|eval\w*|val|test)(?:\b|_)", re.IGNORECASE)
_MUST_HAVE = re.compile(r"loss|norm|data|skipped", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """A row that a trainer printed: its line, the rank and step if it has them, and the numbers that are known."""

    line: int
    rank: int | None
    step: int | None
    values: dict[str, float]
    text: str

    @property
    def is_finite(self) -> bool:
        """Whether none of its numbers is NaN or infinite."""
        return all(map(math.isfinite, self.values.values()))


def values_in(text: str) -> dict[str, float]:
    """Return {what a number is: the number} of a line; empty if it is no row."""
    # An evaluation has other losses than the training.
    if not _MUST_HAVE.search(text) or _EVALUATES.search(text):
        return {}
    found: dict[str, float] = {}
    for match in _PAIR.finditer(text):
        for name, pattern in _NAMES.items():
            if name not in found and pattern.fullmatch(match[1]):
                found[name] = float(match[2].replace(",", ""))
    is_row = bool({"loss", "grad_norm", "skipped"} & found.keys()) or {"time", "data"} <= found.keys()
    return found if is_row else {}


def column(rows: Sequence[Row], name: str) -> list[float]:
    """Return the numbers of one kind in all rows that have it, in their order."""
    return [row.values[name] for row in rows if name in row.values]


def are_all(rows: Sequence[Row], name: str, holds: Callable[[float], bool]) -> bool:
    """Return whether rows have numbers of this kind, and a condition holds for all of them."""
    numbers = column(rows, name)
    return bool(numbers) and all(map(holds, numbers))


def lasting_jump(rows: Sequence[Row], name: str, *, factor: float, after_at_least: int) -> tuple[Row, Row] | None:
    """Return the neighbouring rows between which a number grew by a factor and stayed there to the end; None if none.

    All numbers after the jump, and at least so many, are above all before it, by about that factor.
    """
    having = [row for row in rows if name in row.values]
    numbers = [row.values[name] for row in having]
    for at in range(1, len(numbers) - after_at_least + 1):
        highest, lowest = max(numbers[:at]), min(numbers[at:])
        if at == 1 and _counts_otherwise(having[0], having[1], name):
            continue
        if highest > 0 and math.isfinite(lowest) and lowest >= factor * highest:
            return having[at - 1], having[at]
    return None


def _counts_otherwise(first: Row, second: Row, name: str) -> bool:
    """Return whether other numbers of the first row differ as much: it sums or averages over other steps."""
    common = (first.values.keys() & second.values.keys()) - {name}
    pairs = [(first.values[other], second.values[other]) for other in common]
    return any(min(pair) > 0 and max(pair) >= 2 * min(pair) for pair in pairs)


def _of_started_workers(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows without the first one of each epoch, in which the loader's workers start, if there are others."""
    steps = [row.step for row in rows]
    begins = [
        at == 0 or (step is not None and (before := steps[at - 1]) is not None and step < before)
        for at, step in enumerate(steps)
    ]
    return [row for row, is_first in zip(rows, begins, strict=True) if not is_first] or rows


def data_share(rows: Sequence[Row]) -> float | None:
    """Return the share of the time that was spent waiting for data, from 0 to 1; None if it is unknown.

    The first row of each epoch is left out, as the loader's workers start in it, unless there is no other row.
    """
    both = [row.values for row in _of_started_workers([row for row in rows if {"time", "data"} <= row.values.keys()])]
    spent = sum(values["time"] for values in both)
    waited = sum(values["data"] for values in both)
    return waited / spent if spent > 0 and math.isfinite(spent) and 0 <= waited <= spent else None


def largest_jump(rows: Sequence[Row], name: str) -> tuple[Row, Row] | None:
    """Return the two neighbouring rows of one rank between which a number grew by the largest factor; None if none."""
    best: tuple[float, Row, Row] | None = None
    last: dict[int | None, Row] = {}
    for row in rows:
        if name not in row.values:
            continue
        before = last.get(row.rank)
        last[row.rank] = row
        if before and before.values[name] > 0 and math.isfinite(row.values[name]):
            factor = row.values[name] / before.values[name]
            if best is None or factor > best[0]:
                best = (factor, before, row)
    return best[1:] if best else None
