"""Read steps from tables, in JSON or with separators."""

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pandas as pd

from analyzers.columns import Floats, Mask
from analyzers.errors import HostileInput, InputError
from analyzers.files import decoded_json, within_64_bits
from analyzers.steps.columns import COLUMNS_AT_MOST, Quantity, RawTable, RowCollector, meaning_of, shortened
from analyzers.steps.reading.log_lines import bytes_of

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


def read_separated(path: Path) -> RawTable:
    """Return the columns of a CSV table.

    Raises:
        InputError: The table has no header.
    """
    content = bytes_of(path).removeprefix(_BOM)
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
    if name in table.columns:
        table.columns = {other if known == name else known: column for known, column in table.columns.items()}
        if name in table.written_nan:
            table.written_nan[other] = table.written_nan.pop(name)


DEPTH_AT_MOST = 4
"""The deepest nesting of objects in a row, and of the part of a document that is searched for rows."""
_NUMBER_LENGTH = 40
_LARGEST_NUMBER = 1e300


def read_json(path: Path) -> RawTable:
    """Return the rows of a JSON or JSONL file as a table of columns.

    Raises:
        InputError: The file contains no list of rows.
    """
    content = bytes_of(path).removeprefix(b"\xef\xbb\xbf").strip()
    # The first line of an indented document is not a whole object.
    if content.startswith(b"{") and b"\n" in content and is_row(content.partition(b"\n")[0]):
        return _from_lines(content)
    document = decoded(content)
    if document is None:
        return _from_lines(content)
    rows = _rows_in(document)
    if rows is None:
        hint = "give a step log with one row per step, or a log, a dump, a snapshot or the folder of the run"
        raise InputError("the file has no list of rows with steps or losses", hint)
    return _from_rows(rows)


def is_row(line: bytes) -> bool:
    return isinstance(decoded(line), dict)


def decoded(text: bytes) -> Any:
    """Return the value of a JSON text, which may contain NaN and Infinity as Python writes them; None if it is no JSON.

    Raises:
        HostileInput: The value is nested too deeply.
    """
    try:
        return decoded_json(text)
    except RecursionError as error:
        raise HostileInput("nested too deeply", "no trainer writes such a file") from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    # Python writes both into JSON, and msgspec refuses them.
    if b"NaN" not in text and b"Infinity" not in text:
        return None
    try:
        return within_64_bits(json.loads(text))
    except RecursionError as error:
        raise HostileInput("nested too deeply", "no trainer writes such a file") from error
    except (ValueError, UnicodeDecodeError):
        return None


def _from_lines(content: bytes) -> RawTable:
    """Return a table with a row for each line of a text; each line should be a JSON object.

    Any other line counts as damaged; if it is the last line, it counts as truncated.
    """
    rows, damaged, torn = RowCollector(), 0, False
    lines = content.split(b"\n")
    for position, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = decoded(line)
        if isinstance(row, dict):
            _add_row(rows, row)
        else:
            torn, damaged = position == len(lines), damaged + (position < len(lines))
    table = rows.table()
    table.damaged, table.torn = damaged, torn
    return table


def _from_rows(content: list[Any]) -> RawTable:
    """Return a table with a row for each JSON object of a list; other items count as damaged."""
    rows = RowCollector()
    for row in content:
        if isinstance(row, dict):
            _add_row(rows, row)
    table = rows.table()
    table.damaged = sum(not isinstance(row, dict) for row in content)
    return table


def _add_row(rows: RowCollector, row: Mapping[str, Any]) -> None:
    """Append the numbers of a JSON object as a row; numbers of a nested object are named `outer/inner`."""
    for name, value in flat(row):
        number = number_of(value)
        if number is not None:
            rows.set(rows.count, name, number)
        elif isinstance(value, str):
            rows.note_text(name)
    rows.count += 1


def flat(row: Mapping[str, Any], prefix: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Yield the (name, value) pairs of an object and of objects nested in it, whose names become `outer/inner`.

    A list with one item counts as this item; longer lists are left out. `prefix` and `depth` describe a nested object.
    """
    for name, value in row.items():
        if isinstance(value, dict):
            if depth < DEPTH_AT_MOST:
                yield from flat(value, f"{prefix}{name}/", depth + 1)
        elif isinstance(value, list):
            if len(value) == 1:
                yield prefix + str(name), value[0]
        else:
            yield prefix + str(name), value


def number_of(value: Any) -> float | None:
    """Return a JSON value as a number, even if it is written as text; None for anything else, such as `true`."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        # A larger integer would overflow when it becomes a float.
        return float(value) if isinstance(value, float) or abs(value) < _LARGEST_NUMBER else None
    if isinstance(value, str) and len(value) <= _NUMBER_LENGTH and "_" not in value:
        try:
            return float(value)
        except ValueError:
            return None
    return None


def _rows_in(document: Any, depth: int = 0) -> list[Any] | None:
    """Return the longest list of training rows in a JSON document; None if there is none.

    Lists by column, such as `{"step": [1, 2], "loss": [3.1, 2.9]}`, are converted to rows.
    """
    if isinstance(document, list):
        return document if any(_is_training_row(row) for row in document[:50]) else None
    if not isinstance(document, dict) or depth > DEPTH_AT_MOST:
        return None
    if not depth and _has_step_and_loss(document):
        return [document]  # a log of one line
    if columns := _columns_in(document):
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    found = [rows for value in document.values() if (rows := _rows_in(value, depth + 1)) is not None]
    return max(found, key=len, default=None)


def _has_step_and_loss(row: Mapping[str, Any]) -> bool:
    meanings = {
        meaning.quantity
        for name, value in row.items()
        if number_of(value) is not None and (meaning := meaning_of(name))
    }
    return {Quantity.STEP, Quantity.LOSS} <= meanings


def _is_training_row(row: Any) -> bool:
    if not isinstance(row, dict):
        return False
    meanings = (meaning_of(name) for name, value in flat(row) if number_of(value) is not None)
    return any(meaning and meaning.quantity in (Quantity.STEP, Quantity.LOSS) for meaning in meanings)


def _columns_in(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return {name: list} of the lists in a JSON object that are columns of one table; empty if there are none.

    Columns have equal length and at least two values, and one of them is a step or a loss.
    """
    lists = {name: value for name, value in document.items() if isinstance(value, list) and len(value) > 1}
    known = [name for name in lists if (m := meaning_of(name)) and m.quantity in (Quantity.STEP, Quantity.LOSS)]
    if not known or any(number_of(value) is None for value in lists[known[0]][:20]):
        return {}
    length = len(lists[known[0]])
    return {name: value for name, value in lists.items() if len(value) == length}
