"""Describe a small table of text, which documents, the terminal app and the dashboard lay out in their own way."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from numbers import Integral
from pathlib import Path

from analyzers.report import Report
from analyzers.rooms import imported
from analyzers.words import IN_NO_PHASE, UNKNOWN, number
from workbench.rooms import FACES, room_of

_ROWS = 12
"""The number of rows of a table that a document shows; `--json` prints all data."""
_MORE = 5000
_COUNTS = frozenset(
    (
        "allocations",
        "blocks",
        "calls",
        "compilations",
        "count",
        "entries",
        "events",
        "kernels",
        "launches",
        "times",
        "tokens",
    )
)
"""The headings of columns of counts, which have commas between thousands.

In other columns, whole numbers may be identifiers.
"""


@dataclass(frozen=True)
class Table:
    """A title, column heads and rows of text; columns whose index is in `numeric` are right-aligned.

    `left_out` is the number of rows that `rows` lacks. `more` has the first of these, for views with enough space.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    left_out: int = 0
    more: tuple[tuple[str, ...], ...] = field(default=(), compare=False, repr=False)


def table(title: str, columns: str, rows: Iterable[Iterable[object]], limit: int = _ROWS) -> Table:
    """Return a table of at most `limit` rows; `columns` are heads such as `rank> | phase`, where `>` marks numbers.

    A cell of None is shown as `unknown`; callers pass "" where a cell does not apply.
    """
    heads = [head.strip() for head in columns.split("|")]
    counts = {i for i, head in enumerate(heads) if head.rstrip(">") in _COUNTS}
    cells = [tuple(_cell_text(cell, is_count=i in counts) for i, cell in enumerate(row)) for row in rows]
    # All rows are built before they are cut: `left_out` says how many the reader does not see.
    numeric = frozenset(i for i, head in enumerate(heads) if head.endswith(">"))
    names, more = tuple(head.rstrip(">") for head in heads), tuple(cells[limit : limit + _MORE])
    return Table(title, names, tuple(cells[:limit]), numeric, max(0, len(cells) - limit), more)


def _cell_text(cell: object, *, is_count: bool) -> str:
    # The integers of NumPy are no `int`, but are registered as integers.
    if is_count and isinstance(cell, Integral):
        return number(int(cell))
    return UNKNOWN if cell is None else str(cell)


def without_empty(section: Table) -> Table:
    """Return the table without the columns in which no row has a text, where a face has little space."""
    rows = (*section.rows, *section.more)
    kept = [i for i in range(len(section.columns)) if not rows or any(row[i].strip() for row in rows)]
    if len(kept) == len(section.columns):
        return section

    def reduced(cells: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(row[i] for i in kept) for row in cells)

    return replace(
        section,
        columns=tuple(section.columns[i] for i in kept),
        rows=reduced(section.rows),
        numeric=frozenset(position for position, i in enumerate(kept) if i in section.numeric),
        more=reduced(section.more),
    )


def filled(tables: Iterable[Table]) -> list[Table]:
    return [content for content in tables if content.rows]


def sections(report: Report[object]) -> list[Table]:
    """Return the tables of any report, the most important first; empty tables are left out.

    Raises:
        TypeError: The report is of no room, or its data is not what the room makes.
    """
    place = FACES[room_of(report)].tables
    tables: list[Table] = imported(place)(report.data) if place else []
    return [table for table in tables if table.rows]


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


TITLES = {"residual": IN_NO_PHASE}
"""{column of `analyzers.steps.views.phases`: its title}; the other columns are titles themselves."""


def phase_title(name: str) -> str:
    return TITLES.get(name, name)
