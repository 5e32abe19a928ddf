"""Read tables of metrics in CSV and similar formats, with any separator, decimal commas and repeated headers."""

import csv
import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from analyzers.columns import Floats, Mask
from analyzers.errors import InputError
from analyzers.steps.columns import COLUMNS_AT_MOST, RawTable, shortened
from analyzers.steps.reading.jsonl import content_of

_BOM = b"\xef\xbb\xbf"
_SEPARATORS = (",", ";", "\t", "|")
_SECTIONS_AT_MOST = 1000
"""The most headers in one file; a restart may write a new header with other columns."""
_LONGEST_HEADER = 1 << 18
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?")
_NAN_TEXTS = frozenset(("nan", "+nan", "-nan", "none", "null", "na", "n/a", "-"))
"""The texts that stand for "no number"; only the first three mean that NaN was computed."""
_WRITTEN_NAN = frozenset(("nan", "+nan", "-nan"))
_TAG_IN_NAME = re.compile(r"tag-(.+?)\.csv")
"""Matches the tag in the name of a file that TensorBoard exported, whose values are in the column `Value`."""


@dataclass(frozen=True)
class Dialect:
    separator: str
    header: bytes

    def names(self) -> list[str]:
        return [name.strip() for name in _header_cells(self.header, self.separator)]


def _header_cells(header: bytes, separator: str) -> list[str]:
    """Return the cells of a header line; empty if the line cannot be read as CSV."""
    text = header.decode("utf-8", "replace")
    try:
        return next(csv.reader([text], delimiter=separator, skipinitialspace=True), [])
    except csv.Error:
        return []


def read(path: Path) -> RawTable:
    """Return the columns of a CSV table.

    Raises:
        InputError: The table has no header.
    """
    content = content_of(path).removeprefix(_BOM)
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        content = content.decode("utf-16", "replace").encode()
    content = b"\n".join(line for line in _comment_lines_removed(content))
    dialect = _dialect_of(content)
    parts = [parsed(section, dialect) for section in sections(content, dialect)]
    table = joined(parts)
    if tag := _TAG_IN_NAME.search(path.name):
        rename(table, "Value", tag[1])
    return table


def _comment_lines_removed(content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content) and (content[at : at + 1] in b"#\r\n" or content[at : at + 4] == b"sep="):
        end = content.find(b"\n", at)
        at = len(content) if end < 0 else end + 1
    yield content[at:]


def _dialect_of(content: bytes) -> Dialect:
    """Return the `Dialect` of a table, judged by its first line.

    Raises:
        InputError: The first line is no header.
    """
    header = content[:_LONGEST_HEADER].partition(b"\n")[0].rstrip(b"\r")
    text = header.decode("utf-8", "replace")
    counts = {separator: len(_header_cells(header, separator)) for separator in _SEPARATORS}
    separator = max(_SEPARATORS, key=lambda one: counts[one])
    if not text.strip() or (counts[separator] < 2 and not re.fullmatch(r"\"?[A-Za-z_][\w /.-]*\"?", text.strip())):
        raise InputError("no header in the first line of the table", "the first line must name the columns")
    return Dialect(separator, header)


def sections(content: bytes, dialect: Dialect) -> Iterator[tuple[list[str], bytes]]:
    """Yield (column names, lines) of each part of a table; a part begins with a header and ends before the next one.

    A repeated header is recognised by its beginning: the name of the first column.
    """
    first = dialect.header.split(dialect.separator.encode())[0]
    mark = b"\n" + first + dialect.separator.encode()
    begins = [0]
    while first and len(begins) < _SECTIONS_AT_MOST and (at := content.find(mark, begins[-1])) >= 0:
        begins.append(at + 1)
    for begin, end in pairwise([*begins, len(content)]):
        header, _, lines = content[begin:end].partition(b"\n")
        yield Dialect(dialect.separator, header.rstrip(b"\r")).names(), lines


def parsed(section: tuple[list[str], bytes], dialect: Dialect) -> RawTable:
    """Return the columns of one part of a table, given as (column names, lines)."""
    names, lines = unique(section[0]), section[1]
    table = RawTable(omitted=max(0, len(names) - COLUMNS_AT_MOST))
    if not lines.strip():
        return table
    # pandas must not drop a written NaN: it means that the training computed NaN, an empty cell means nothing.
    frame = pd.read_csv(
        io.BytesIO(lines), sep=dialect.separator, header=None, names=range(len(names)), index_col=False,
        usecols=range(min(len(names), COLUMNS_AT_MOST)), keep_default_na=False, na_values=[""], skipinitialspace=True,
        on_bad_lines="skip", encoding_errors="replace", low_memory=False, quoting=_quoting_of(lines),
    )  # fmt: skip
    torn = not lines.endswith(b"\n") and len(frame) > 0 and bool(frame.iloc[-1].isna().iloc[-1]) and len(names) > 1
    table.torn = torn and is_cut(lines, len(names), dialect)
    if table.torn:
        frame = frame.iloc[:-1]
    # Lines that have too many cells are left out; only counting tells how many.
    table.damaged = (
        max(0, lines.count(b"\n") + (not lines.endswith(b"\n")) - len(frame) - _blank_lines(lines))
        if b'"' not in lines
        else 0
    )
    table.damaged -= table.torn and table.damaged > 0
    for position, name in enumerate(names[:COLUMNS_AT_MOST]):
        # A table whose cells are separated by commas cannot have decimal commas.
        _add_column(table, name, frame[position], decimal_commas=dialect.separator in ";\t")
    return table


def _quoting_of(lines: bytes) -> Literal[0, 3]:
    """Return the quoting mode with which the `csv` module should read `lines`: csv.QUOTE_MINIMAL or csv.QUOTE_NONE.

    An odd number of quotes means that they are plain text and not quoting (QUOTE_NONE).
    """
    return 0 if lines.count(b'"') % 2 == 0 else 3  # csv.QUOTE_MINIMAL, csv.QUOTE_NONE


def _blank_lines(lines: bytes) -> int:
    return lines.count(b"\n\n") + lines.count(b"\n\r\n") + lines.startswith((b"\n", b"\r\n"))


def is_cut(lines: bytes, columns: int, dialect: Dialect) -> bool:
    last = lines.rsplit(b"\n", 1)[-1]
    return last.count(dialect.separator.encode()) < columns - 1


def unique(names: list[str]) -> list[str]:
    """Return the names made unique: a number is added to a repeated name, and an empty name becomes `column N`."""
    seen: dict[str, int] = {}
    distinct = []
    for position, given in enumerate(names):
        name = shortened(given) or f"column {position + 1}"
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return distinct


def _add_column(table: RawTable, name: str, cells: "pd.Series[Any]", *, decimal_commas: bool) -> None:
    """Add a column to a table; if most of its cells are text, only the name of the column is stored."""
    if cells.dtype.kind in "iuf":
        table.columns[name] = np.asarray(cells, dtype=np.float64)
        return
    if cells.dtype.kind == "b":
        table.texts.append(name)
        return
    numbers, nan = numbers_in(cells, decimal_commas=decimal_commas)
    # A text such as `=1+1` is no number; a column with a few damaged cells still is.
    if 2 * np.count_nonzero(~np.isnan(numbers) | nan) < np.count_nonzero(cells.notna()):
        table.texts.append(name)
        return
    table.columns[name] = numbers
    if nan.any():
        table.written_nan[name] = nan


def numbers_in(cells: "pd.Series[Any]", *, decimal_commas: bool) -> tuple[Floats, Mask]:
    """Return the numbers in a column of texts (NaN: none), and a mask of the rows in which NaN itself was written.

    If `decimal_commas`, a comma may be the decimal point, as in `0,5`.
    """
    codes, texts = pd.factorize(cells.astype(str).str.strip())
    # The last value is that of missing cells, whose code is -1; a damaged column may have no other.
    values = np.array([*(_number_in(text, decimal_commas=decimal_commas) for text in texts), math.nan])
    nan = np.array([*(text.lower() in _WRITTEN_NAN for text in texts), False])
    missing = cells.isna().to_numpy()
    numbers: Floats = np.where(missing, math.nan, values[codes])
    return numbers, nan[codes] & ~missing


def _number_in(text: str, *, decimal_commas: bool) -> float:
    """Return the number in a cell; NaN if the cell has none.

    `1,234.5` has a thousands separator; in `0,5` the comma is decimal if `decimal_commas`.
    """
    try:
        # `float` accepts `1_000`, which Python writes and no table does.
        return float(text) if "_" not in text else math.nan
    except ValueError:
        pass
    if decimal_commas and _DECIMAL_COMMA.fullmatch(text):
        return float(text.replace(",", "."))
    if _THOUSANDS.fullmatch(text):
        return float(text.replace(",", ""))
    return math.nan


def joined(parts: list[RawTable]) -> RawTable:
    """Return the parts of a table as one table, the rows of each part after those of the part before."""
    if len(parts) == 1:
        return parts[0]
    whole = RawTable(omitted=max(part.omitted for part in parts), damaged=sum(part.damaged for part in parts))
    whole.torn = parts[-1].torn
    names = dict.fromkeys(name for part in parts for name in part.columns)
    whole.texts = list(dict.fromkeys(t for part in parts for t in part.texts if t not in names))
    for name in names:
        whole.columns[name] = np.concatenate([part.columns.get(name, np.full(len(part), np.nan)) for part in parts])
        masks = [part.written_nan.get(name, np.zeros(len(part), dtype=bool)) for part in parts]
        if any(mask.any() for mask in masks):
            whole.written_nan[name] = np.concatenate(masks)
    return whole


def rename(table: RawTable, name: str, other: str) -> None:
    """Rename a column of the table in place, from `name` to `other`."""
    if name in table.columns:
        table.columns = {other if known == name else known: column for known, column in table.columns.items()}
        if name in table.written_nan:
            table.written_nan[other] = table.written_nan.pop(name)
