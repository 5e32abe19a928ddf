"""Hold a log of another trainer in its original form: columns of numbers under the names that the writer gave them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analyzers.columns import Column, Floats, Mask

COLUMNS_AT_MOST = 512
"""The most columns of one file that are read; a hostile header might have a million."""
_NAME_LENGTH = 200


@dataclass
class RawTable:
    """A log in its original form: float64 columns under the writer's names, NaN if a row has no value.

    `written_nan` is {column: mask of the rows in which NaN itself was written}. `texts` has the names of columns whose
    values are not numbers. `omitted` counts the values (in CSV, the columns) beyond the first COLUMNS_AT_MOST columns.
    `damaged` counts unreadable lines. `torn` is whether the last line is truncated.
    """

    columns: dict[str, Floats] = field(default_factory=dict)
    written_nan: dict[str, Mask] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    omitted: int = 0
    damaged: int = 0
    torn: bool = False

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def stored(self, file: int) -> tuple[dict[str, Column], dict[str, Any]]:
        """Return the columns under names that the cache can store, and the rest of the table as data for JSON.

        `file` is the index of the log among the logs read together; the index becomes a part of the names.
        """
        names = list(self.columns)
        columns: dict[str, Column] = {f"raw{file}.{i}": self.columns[name] for i, name in enumerate(names)}
        columns |= {f"nan{file}.{names.index(name)}": mask for name, mask in self.written_nan.items()}
        meta = {"names": names, "texts": self.texts, "omitted": self.omitted}
        return columns, {"headers": [], "torn": self.torn, "damaged": self.damaged, "raw": meta}

    @classmethod
    def from_stored(cls, columns: Mapping[str, Column], meta: Mapping[str, Any], file: int) -> "RawTable":
        """Return the table of the log with index `file` from the columns and the data that `stored` returned."""
        names = meta["raw"]["names"]
        return cls(
            {name: columns[f"raw{file}.{i}"] for i, name in enumerate(names)},
            {name: columns[f"nan{file}.{i}"] for i, name in enumerate(names) if f"nan{file}.{i}" in columns},
            meta["raw"]["texts"],
            meta["raw"]["omitted"],
            meta["damaged"],
            meta["torn"],
        )


class RowCollector:
    """Builds a `RawTable` from rows of named numbers.

    If a name occurs only in some rows, its value in the other rows is NaN.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = {}
        self._values: dict[str, list[float]] = {}
        self._texts: dict[str, None] = {}
        self.count = 0
        self.omitted = 0

    def add(self, row: Mapping[str, float]) -> None:
        """Append a row, {name of the column: number}."""
        for name, value in row.items():
            self.set(self.count, name, value)
        self.count += 1

    def set(self, row: int, name: str, value: float) -> None:
        """Set the value of column `name` in row number `row`; the row may also be a new one after the last row."""
        # Most names are known, and need no shortening.
        if name not in self._values and (name := shortened(name)) not in self._values:
            if len(self._values) >= COLUMNS_AT_MOST:
                self.omitted += 1
                return
            self._rows[name], self._values[name] = [], []
        self._rows[name].append(row)
        self._values[name].append(value)

    def note_text(self, name: str) -> None:
        """Record the name of a column whose values are no numbers."""
        if len(self._texts) < COLUMNS_AT_MOST:
            self._texts[shortened(name)] = None

    def table(self) -> RawTable:
        """Return the collected rows as a table of columns."""
        table = RawTable(texts=[name for name in self._texts if name not in self._values], omitted=self.omitted)
        for name, values in self._values.items():
            rows, numbers = np.array(self._rows[name], dtype=np.int64), np.array(values, dtype=np.float64)
            table.columns[name] = column = np.full(self.count, np.nan)
            column[rows] = numbers
            if (broken := np.isnan(numbers)).any():
                table.written_nan[name] = mask = np.zeros(self.count, dtype=bool)
                mask[rows[broken]] = True
        return table


def shortened(name: str) -> str:
    """Return a column name in a form that a report can show: limited in length, valid UTF-8."""
    return name[:_NAME_LENGTH].encode("utf-8", "replace").decode()


def _column_or_nan(table: RawTable, name: str) -> Floats:
    """Return a column of a table; all NaN if the table has no column of this name."""
    return table.columns.get(name, np.full(len(table), np.nan))


def first_present(columns: Sequence[Floats], count: int) -> Floats:
    """Return, for each of `count` rows, the first value of `columns` that is not NaN in this row; else NaN."""
    whole = np.full(count, np.nan)
    for column in columns:
        whole = np.where(np.isnan(whole), column, whole)
    return whole
