"""Yield the rows of data sets: JSON lines, `.pt` batches, Parquet and Arrow files."""

import importlib
import os
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from analyzers.errors import InputError
from analyzers.tokens.reading import torch_file

Raw = dict[str, Any]
# A file without line ends must not be read into memory as one line.
_LINE_BYTES = 256 << 20
_JSON_LINES, JSON, TORCH, _PARQUET, _ARROW = (
    (".jsonl", ".ndjson"),
    (".json",),
    (".pt", ".pth"),
    (".parquet",),
    (".arrow",),
)
SUFFIXES = (*_JSON_LINES, *JSON, *TORCH, *_PARQUET, *_ARROW)
FORMS = "give a .jsonl, .parquet or .pt file, or a folder saved by the datasets package"
_INSTALL_ARROW = "pip install pyarrow, or save the data set as .jsonl: dataset.to_json('train.jsonl')"


def rows_of(path: Path) -> Iterator[Raw | str]:
    """Yield the rows of a file; in place of a row that cannot be read, yield a text with the reason.

    Raises:
        InputError: The file is of no known kind, damaged, or needs a package that is not installed.
    """
    suffix = path.suffix.lower()
    if suffix in _JSON_LINES or (suffix in JSON and not _begins_as_list(path)):
        return _json_lines(path)
    if suffix in JSON:
        return iter(_json_list(path))
    if suffix in TORCH:
        return _batch_rows(torch_file.load(path))
    if suffix in (*_PARQUET, *_ARROW):
        return _arrow_rows(path)
    raise InputError("no data set of a known kind", FORMS)


def _begins_as_list(path: Path) -> bool:
    """Return whether a JSON file begins with `[`."""
    with path.open("rb") as file:
        return file.read(64).removeprefix(BOM_UTF8).lstrip(b" \t\r\n").startswith(b"[")


def _json_lines(path: Path) -> Iterator[Raw | str]:
    """Yield the row on each line of a file; empty lines are skipped."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LINE_BYTES):
            number += 1
            text = line.removeprefix(BOM_UTF8).strip() if number == 1 else line.strip()
            if text:
                yield _json_row(text, number)


def _json_row(text: bytes, number: int) -> Raw | str:
    """Return the row in one line of JSON, or a text on why it cannot be read; `number` is the line number."""
    try:
        row = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"line {number}: not JSON: {error}"
    return row if isinstance(row, dict) else f"line {number}: not a JSON object"


def _json_list(path: Path) -> list[Raw | str]:
    """Return the rows of a JSON file that holds a list of objects, with an error text for each other element.

    Raises:
        InputError: The file is not JSON.
    """
    try:
        rows = msgspec.json.decode(path.read_bytes().removeprefix(BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", FORMS) from error
    return [row if isinstance(row, dict) else f"row {i}: not a JSON object" for i, row in enumerate(rows)]


def _batch_rows(batch: Any) -> Iterator[Raw | str]:
    """Yield the rows of a saved batch: a dict of tensors, a list of rows, a pair of inputs and labels, or a tensor.

    Raises:
        InputError: The batch is none of these.
    """
    # torchtitan's loaders yield such pairs, with the inputs in a dict of their own.
    if isinstance(batch, (tuple, list)) and len(batch) == 2 and isinstance(batch[1], np.ndarray):
        inputs = batch[0] if isinstance(batch[0], dict) else {"inputs": batch[0]}
        batch = {**inputs, "labels": batch[1]}
    if isinstance(batch, (tuple, list)) and batch and all(isinstance(row, dict) for row in batch):
        for row in batch:
            yield from _batch_rows(row)
        return
    if isinstance(batch, np.ndarray):
        batch = {"inputs": batch}
    if not isinstance(batch, dict):
        raise InputError(f"a batch is a dict of tensors, and this is {type(batch).__name__}", torch_file.SAVE_AGAIN)
    yield from _split_columns(batch)


def _split_columns(batch: Raw) -> Iterator[Raw]:
    """Yield the rows of a dict of tensors (batch, tokens); a dict without tensors of two dimensions is itself a row."""
    tensors = {name: value for name, value in batch.items() if isinstance(value, np.ndarray) and value.ndim}
    rows = max((len(value) for value in tensors.values() if value.ndim > 1), default=0)
    if not rows:
        yield batch
        return
    for i in range(rows):
        yield {name: value[i] for name, value in tensors.items() if value.ndim > 1 and i < len(value)}


def _arrow_rows(path: Path) -> Iterator[Raw | str]:
    """Yield the rows of a Parquet or Arrow file, of which only a part is in memory at a time.

    Raises:
        InputError: The package pyarrow is not installed, or the file is damaged.
    """
    # Its default allocator reserves more address space than the limit of this process has.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(f"{path.suffix} files need the package pyarrow: {error}", _INSTALL_ARROW) from error
    try:
        if path.suffix.lower() in _PARQUET:
            # Small parts, because the memory of this process is limited.
            yield from _column_rows(parquet.ParquetFile(path).iter_batches(batch_size=256, use_threads=False))
            return
        with arrow.memory_map(str(path)) as source:
            yield from _column_rows(_opened_stream(arrow, source))
    except (arrow.ArrowException, ValueError) as error:
        raise InputError(
            f"not a readable {path.suffix} file: {error}", "check that the file was copied whole"
        ) from error


def _opened_stream(arrow: Any, source: Any) -> Iterator[Any]:
    """Yield the record batches of an Arrow file in one of its two formats: stream or random access.

    `arrow` is the module pyarrow, `source` the opened file. The package datasets writes the stream format.
    """
    try:
        yield from arrow.ipc.open_stream(source)
    except arrow.ArrowInvalid:
        source.seek(0)
        reader = arrow.ipc.open_file(source)
        yield from (reader.get_batch(i) for i in range(reader.num_record_batches))


def _column_rows(batches: Iterator[Any]) -> Iterator[Raw]:
    """Yield the rows of the record batches of an Arrow table."""
    for batch in batches:
        yield from batch.to_pylist()
