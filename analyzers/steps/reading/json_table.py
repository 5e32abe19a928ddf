"""Read metrics in JSON: a row per line, a list per column, or a list of rows anywhere, as in `trainer_state.json`."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from analyzers.errors import HostileInput, InputError
from analyzers.steps.columns import Quantity, RawTable, RowCollector, meaning_of
from analyzers.steps.reading.jsonl import content_of

DEPTH_AT_MOST = 4
"""The deepest nesting of objects in a row, and of the part of a document that is searched for rows."""
_NUMBER_LENGTH = 40
_LARGEST_NUMBER = 1e300


def read(path: Path) -> RawTable:
    """Return the rows of a JSON or JSONL file as a table of columns.

    Raises:
        InputError: The file contains no list of rows.
    """
    content = content_of(path).removeprefix(b"\xef\xbb\xbf").strip()
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
        return msgspec.json.decode(text)
    except RecursionError as error:
        raise HostileInput("nested too deeply", "no trainer writes such a file") from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    # Python writes both into JSON, and msgspec refuses them.
    if b"NaN" not in text and b"Infinity" not in text:
        return None
    try:
        return json.loads(text)
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
