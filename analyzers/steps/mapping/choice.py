"""Decide which column of a log stands for which quantity: by the user's `--map`, else by the column's name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzers.columns import Floats
from analyzers.errors import InputError
from analyzers.steps.columns.names import UNITS_OF, meaning_of
from analyzers.steps.columns.quantities import Quantity
from analyzers.steps.columns.raw_table import RawTable
from analyzers.steps.model import MappedColumn

UNKNOWN_UNIT = "unknown"
_PLAIN_BYTES = 1e7
"""A memory size of at least this number without a unit must be in bytes: no device has so many of a larger unit."""
_SECONDS_BY_WRITER: tuple[frozenset[str], ...] = tuple(
    map(frozenset, (("data_time", "time"), ("Time", "Data"), ("iter_time", "remaining_time"), ("iter_time", "iter")))
)
"""Sets of columns by which trainers are recognised that log times in seconds.

They are mmengine and detectron2, PyTorch's ImageNet example (its `AverageMeter` of `time.time()`), and litgpt.
"""
_MIB_BY_WRITER = frozenset(("data_time", "time", "memory"))
"""The columns by which mmengine is recognised; it logs `memory` in MiB."""
_GIB_BY_WRITER = frozenset(("tokens_per_second_per_gpu",))
"""The column by which torchtune is recognised; it logs `peak_memory_*` in GiB."""
_FEW_ROWS, _TIMED_SHARE = 5, 0.02
"""In a table with more than FEW_ROWS rows, at least TIMED_SHARE of the rows of a column of step times have a value."""
_COMBINED = (Quantity.STEP,)
"""Quantities that are read from several columns, because the lines of one log may have them in different columns."""

ColumnMap = tuple[tuple[str, str], ...]
"""The user's choice of columns: pairs of (quantity, column name)."""


def parsed_map(texts: Iterable[str]) -> ColumnMap:
    """Return (quantity, column) of each `--map QUANTITY=COLUMN` option.

    Raises:
        InputError: A text has a different form, or its quantity is unknown.
    """
    return tuple(_parsed_pair(text) for text in texts)


def _parsed_pair(text: str) -> tuple[str, str]:
    """Return (quantity, column) from the text of a `--map` option.

    Raises:
        InputError: The text has a different form, or its quantity is unknown.
    """
    quantity, separator, column = text.partition("=")
    quantity, column = quantity.strip(), column.strip()
    if not separator or not column:
        raise InputError(f"--map {text}: not of the form QUANTITY=COLUMN", "write --map loss=train/nll")
    if meaning_of(quantity) is None:
        known = ", ".join(sorted(Quantity))
        raise InputError(
            f"--map {text}: unknown quantity {quantity}", f"known are {known}; a unit may follow: step_time_ms"
        )
    return quantity, column


@dataclass(frozen=True)
class ColumnChoice:
    """The columns that each quantity is read from, the preferred one first, and the unit of each column.

    `chosen` has the columns that the user named.
    """

    by_quantity: Mapping[Quantity, Sequence[str]]
    units: Mapping[str, str]
    chosen: frozenset[str]

    def used(self, quantity: Quantity) -> Sequence[str]:
        """Return the columns from which a quantity is read: only the preferred one, or none.

        The step number is an exception: rows in which the preferred column has no value use further columns.
        """
        names = self.by_quantity.get(quantity, ())
        return names if quantity in _COMBINED else names[:1]

    def described(self, table: RawTable) -> list[MappedColumn]:
        """Return, for each column of the table, the quantity and the unit that it is read as.

        Columns that stand for no quantity come last.
        """
        quantity_of = {name: quantity for quantity in self.by_quantity for name in self.used(quantity)}
        rows = [
            MappedColumn(
                name=name,
                quantity=quantity_of.get(name),
                unit=self.units.get(name, ""),
                chosen=name in self.chosen,
                last=last_value(table.columns[name]),
            )
            for name in table.columns
        ]
        order = {quantity: position for position, quantity in enumerate(Quantity)}
        return sorted(rows, key=lambda row: order[row.quantity] if row.quantity else len(order))


def last_value(values: Floats) -> float | None:
    """Return the last finite value of a column; None if it has none."""
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else None


def choice_of(table: RawTable, wanted: ColumnMap = ()) -> ColumnChoice:
    """Return a `ColumnChoice` for a table: which of its columns stand for which quantity.

    `wanted` has the (quantity, column) pairs given by the user; all other columns are recognised by name.
    """
    ranked: dict[Quantity, list[tuple[float, float, str]]] = {}
    units: dict[str, str] = {}
    chosen = set()
    for name, values in table.columns.items():
        meaning = meaning_of(name)
        if meaning and not _is_summary(meaning.quantity, _count_of(values), len(table)):
            # Of columns whose names are equally good, the one with the most values comes first.
            ranked.setdefault(meaning.quantity, []).append((meaning.preference, -_count_of(values), name))
            units[name] = meaning.unit
    for text, name in wanted:
        meaning = meaning_of(text)
        if meaning and name in table.columns:
            own = meaning_of(name)
            ranked = {quantity: [row for row in rows if row[2] != name] for quantity, rows in ranked.items()}
            ranked.setdefault(meaning.quantity, []).append((-1, 0, name))
            units[name] = meaning.unit or _unit_in(name, meaning.quantity) or (own.unit if own else "")
            chosen.add(name)
    by_quantity = {quantity: [name for *_, name in sorted(rows)] for quantity, rows in ranked.items() if rows}
    for quantity in UNITS_OF.keys() & by_quantity.keys():
        for name in by_quantity[quantity]:
            units[name] = units[name] or _implied_unit(table, quantity, name)
    return ColumnChoice(by_quantity, units, frozenset(chosen))


def _is_summary(quantity: Quantity, values: int, rows: int) -> bool:
    """Return whether a column of step times or rates has so few values that they must be averages of the whole run.

    Some trainers print such a rate once, at the end. `values` is how many of the table's `rows` have a number in the
    column.
    """
    return (
        quantity in (Quantity.STEP_TIME, Quantity.STEP_RATE)
        and rows > _FEW_ROWS
        and values < max(2, _TIMED_SHARE * rows)
    )


def _count_of(values: Floats) -> int:
    """Return how many values of a column are not NaN."""
    return int(np.count_nonzero(~np.isnan(values)))


def _unit_in(name: str, quantity: Quantity) -> str:
    """Return the unit at the end of a column's name, such as `ms` of `took_ms`; empty if none fits the quantity."""
    from analyzers.steps.columns.names import split_unit, words_of

    _, unit = split_unit(words_of(name))
    return unit if unit in UNITS_OF.get(quantity, ()) else ""


def _implied_unit(table: RawTable, quantity: Quantity, name: str) -> str:
    """Return the unit of a column whose name has none, judged by the trainer that wrote it or by its values.

    The trainer is recognised by its other columns; large values of memory must be bytes. The result is `unknown` if
    neither shows the unit.
    """
    names = {*table.columns, *table.texts}
    if quantity is Quantity.CLOCK:
        return "s"
    if quantity in (Quantity.STEP_TIME, Quantity.DATA_TIME):
        return "s" if any(writer <= names for writer in _SECONDS_BY_WRITER) else UNKNOWN_UNIT
    if name == "memory" and names >= _MIB_BY_WRITER:
        return "mib"
    if names & _GIB_BY_WRITER:
        return "gib"
    values = table.columns[name]
    return "bytes" if np.nanmax(values, initial=0.0) >= _PLAIN_BYTES else UNKNOWN_UNIT
