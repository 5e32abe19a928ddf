"""Read local data one record at a time, from any position.

Formats are text, JSON, CSV, Parquet, and what the datasets package reads.
"""

import csv
import gzip
import importlib
import json
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from trainer.errors import DataError
from workbench.recorders.files import read_regular

BLOCK, BLOCKS = 1 << 20, 64
"""The bytes of a block, and the most blocks that a checksum reads, so that data of any size are checked fast."""
_FILE_HINT = "give --training.dataset_path a file or folder"
Fields = dict[str, Any]
Numbered = Iterator[tuple[str, Fields]]
"""The records of a file, each as (its position in the file as text for messages, its fields)."""


class Position(NamedTuple):
    """A position in the data: index of the file, of the record in the file, and of the token in the record."""

    file: int = 0
    record: int = 0
    token: int = 0


class Record(NamedTuple):
    """A record of the data: its position, the same position as text for messages (`where`), and its fields."""

    position: Position
    where: str
    fields: Fields


class Data(Protocol):
    """Data that can be read from any position; every rank reads them, and a resumed run continues at its position."""

    size: int
    """The size of the stored data in bytes."""

    def records(self, start: Position) -> Iterator[Record]:
        """Yield the records from position `start` on; nothing if the data end before it."""

    def checksum(self) -> int:
        """Return a checksum of the data; a resumed run compares it to notice that the data have changed."""


class InMemory:
    """Records that are already in memory, such as synthetic text."""

    def __init__(self, fields: Iterable[Fields]) -> None:
        self.fields = list(fields)
        self.content = json.dumps(self.fields).encode()
        self.size = len(self.content)

    def records(self, start: Position) -> Iterator[Record]:
        first = start.record if start.file == 0 else len(self.fields)
        for number in range(first, len(self.fields)):
            yield Record(Position(0, number), f"record {number}", self.fields[number])

    def checksum(self) -> int:
        return zlib.crc32(self.content)


class Files:
    """The records of local files, one file after the other; only the part that is being read is in memory."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        try:
            self.stored = [file for path in paths for file in files_below(path)]
            self.size = sum(file.stat().st_size for file in self.stored)
        except OSError as error:
            raise DataError(f"{error.filename}: {error.strerror}", _FILE_HINT) from error

    def records(self, start: Position) -> Iterator[Record]:
        """Yield the records from position `start` on.

        Raises:
            DataError: A file is missing or damaged, or the package that reads it is not installed.
        """
        for number, path in list(enumerate(self.paths))[start.file :]:
            skip = start.record if number == start.file else 0
            for record, (where, fields) in enumerate(_read_file(path, skip), start=skip):
                yield Record(Position(number, record), where, fields)

    def checksum(self) -> int:
        """Return a checksum: of all bytes if the data are small, of evenly spaced blocks if they are large."""
        result, share = self.size, max(1, BLOCKS // max(1, len(self.stored)))
        for path in self.stored:
            length = path.stat().st_size
            count = -(-length // BLOCK)
            # All blocks where they fit, else as many as each file may have, the first and the last among them.
            chosen = count if self.size <= BLOCK * BLOCKS else min(count, share)
            with path.open("rb") as file:
                for i in range(chosen):
                    file.seek((length - BLOCK) * i // max(1, chosen - 1) if chosen < count else i * BLOCK)
                    result = zlib.crc32(file.read(BLOCK), result)
        return result


def files_below(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _read_file(path: Path, skip: int) -> Numbered:
    """Yield the records of a file, or of a folder that the datasets package saved, except the first `skip` records.

    Raises:
        DataError: The file is missing, damaged or of an unknown format, or the package that reads it is not installed.
    """
    reader = _saved_records if path.is_dir() else reader_of(path)
    if reader is None:
        raise DataError(f"{path}: not a file of a known format", f"give files that end in {', '.join(FORMATS)}")
    try:
        yield from reader(path, skip)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}", _FILE_HINT) from error
    except (ValueError, EOFError, KeyError, zlib.error) as error:
        raise DataError(f"{path}: {error}", "check that the file was copied whole") from error


def reader_of(path: Path) -> Callable[[Path, int], Numbered] | None:
    return next((reader for suffix, reader in FORMATS.items() if path.name.lower().endswith(suffix)), None)


def _text_records(path: Path, skip: int) -> Numbered:
    if not skip:
        yield str(path), {"text": path.read_text(encoding="utf-8-sig")}


def _json_records(path: Path, skip: int) -> Numbered:
    """Yield the objects in a file of JSON lines, or in one JSON array; the file may be compressed by gzip.

    Raises:
        DataError: A line is not a JSON object.
    """
    # Of all editors, those on Windows put a byte order mark first.
    encoding = "utf-8-sig"
    with gzip.open(path, "rt", encoding=encoding) if path.suffix == ".gz" else path.open(encoding=encoding) as file:
        lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
        # A file that begins with a lone bracket is an array, whose lines are no JSON.
        if (first := next(lines, None)) and first[1].lstrip().startswith("["):
            file.seek(0)
            try:
                values = json.load(file)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{path}: {type(error).__name__}: {error}", "write one JSON array of objects"
                ) from error
            for number, value in enumerate(islice(values, skip, None), start=skip):
                yield f"{path}, item {number}", _as_object(value, f"{path}, item {number}")
            return
        file.seek(0)
        lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
        for number, line in islice(lines, skip, None):
            where = f"{path}, line {number}"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{where}: {type(error).__name__}: {error}", "write one JSON object per line"
                ) from error
            yield where, _as_object(value, where)


def _as_object(value: object, where: str) -> Fields:
    """Return `value` if it is a JSON object; `where` names its position in the error.

    Raises:
        DataError: The value is not an object.
    """
    if not isinstance(value, dict):
        raise DataError(f"{where}: not a JSON object", 'write one {"text": "..."} per line, or a row for fine-tuning')
    return value


def _csv_records(path: Path, skip: int) -> Numbered:
    with path.open(encoding="utf-8-sig", newline="") as file:
        for number, fields in islice(enumerate(csv.DictReader(file)), skip, None):
            yield f"{path}, row {number}", fields


def _parquet_records(path: Path, skip: int) -> Numbered:
    """Yield the rows of a Parquet file; one part is in memory at a time, and skipped row groups are not read."""
    file = package("pyarrow.parquet", "pyarrow", path).ParquetFile(path)
    groups: list[int] = []
    number = 0
    for group in range(file.metadata.num_row_groups):
        length = file.metadata.row_group(group).num_rows
        if number + length > skip or groups:
            groups.append(group)
        else:
            number += length
    for batch in file.iter_batches(batch_size=256, row_groups=groups, columns=wanted(file.schema_arrow.names)):
        for fields in batch.to_pylist():
            if number >= skip:
                yield f"{path}, row {number}", _without_nulls(fields)
            number += 1


def _saved_records(path: Path, skip: int) -> Numbered:
    rows = package("datasets", "datasets", path).load_from_disk(str(path))
    yield from numbered(rows.select_columns(wanted(rows.column_names)).skip(skip), path, skip)


def _streamed_records(kind: str) -> Callable[[Path, int], Numbered]:
    """Return a function that reads local files of the format `kind` with the datasets package, without downloads."""

    def read(path: Path, skip: int) -> Numbered:
        # Set before the package is imported: it reads the variable once.
        os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
        module = package("datasets", "datasets", path)
        rows = module.load_dataset(kind, data_files=[str(path)], split="train", streaming=True)
        yield from numbered(rows.skip(skip), path, skip)

    return read


def numbered(rows: Iterable[Fields], path: Path, first: int) -> Numbered:
    for number, fields in enumerate(rows, start=first):
        yield f"{path}, row {number}", _without_nulls(fields)


def package(module: str, name: str, path: Path) -> Any:
    """Import and return `module`, which reads the file at `path`.

    Raises:
        DataError: The package of the module, `name`, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f"pip install {name}, or use .jsonl files"
        raise DataError(f"{path}: the package {name} is not installed", hint) from error


COLUMNS = ("messages", "prompt", "completion", "input_ids", "labels", "text")


def wanted(columns: list[str]) -> list[str]:
    """Return the columns that can be trained on; without any, return all columns, so that errors can name them."""
    return [name for name in columns if name in COLUMNS] or columns


def _without_nulls(fields: Fields) -> Fields:
    """Return the fields of a row without null values in objects within lists, such as the messages of a conversation.

    In a table, every message has the same fields, such as tool calls. A field without a value is null.
    """
    return {name: _stripped(value) for name, value in fields.items()}


def _stripped(value: object) -> object:
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return value
    return [{name: part for name, part in item.items() if part is not None} for item in value]


FORMATS: dict[str, Callable[[Path, int], Numbered]] = {
    ".txt": _text_records,
    ".jsonl": _json_records,
    ".json": _json_records,
    ".jsonl.gz": _json_records,
    ".json.gz": _json_records,
    ".parquet": _parquet_records,
    ".csv": _csv_records,
    ".arrow": _streamed_records("arrow"),
    ".jsonl.zst": _streamed_records("json"),
    ".json.zst": _streamed_records("json"),
}
"""{ending of a file name: function that reads such files, from (path, number of records to skip)}."""


logger = logging.getLogger("root")
_NOT_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


class Split(Enum):
    """A split of a data set; the value is a regular expression for the usual names of the split in file names."""

    TRAIN = "train|training"
    VALIDATION = "validation|valid|dev|val"
    TEST = "test|testing|eval|evaluation"


def local_files(path: Path, split: Split = Split.TRAIN) -> list[Path]:
    """Return the data files at a path: the file itself, or all data files below a folder, sorted by name.

    A folder that the datasets package saved counts as one file. If the file names contain splits, such as
    `train-00000-of-00002.parquet`, only the files of `split` are returned.

    Raises:
        DataError: The folder has no data files.
    """
    if not path.is_dir() or (path / "state.json").is_file():
        return [path]
    if (path / "dataset_dict.json").is_file():
        return _of_split([path / name for name in _saved_splits(path)], path, split)
    files = sorted(file for file in path.rglob("*") if _is_data(file.relative_to(path)) and file.is_file())
    if not files:
        raise DataError(f"{path}: no data files", f"put files there that end in {', '.join(FORMATS)}")
    return _of_split(files, path, split)


def _is_data(name: Path) -> bool:
    hidden = any(part.startswith(".") for part in name.parts)
    return reader_of(name) is not None and name.name not in _NOT_DATA and not hidden


def _saved_splits(path: Path) -> list[str]:
    """Return the names of the splits in a folder that the datasets package saved.

    Raises:
        DataError: The file with the names is damaged.
    """
    try:
        return [str(name) for name in json.loads(read_regular(path / "dataset_dict.json", by_links=True))["splits"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path / 'dataset_dict.json'}: {error}", "save the data set again") from error


def _of_split(files: list[Path], folder: Path, split: Split) -> list[Path]:
    """Return the files of `split`, by their names below `folder`.

    If no file is named after the split, return the files whose names contain no split, or else all files. For
    validation, files of the test split come before files without a split.
    """
    named = {file: _split_of(file.relative_to(folder)) for file in files}
    # The tests of a data set serve as its validation where it has no other.
    wanted = [split, Split.TEST, None] if split is Split.VALIDATION else [split, None]
    chosen = next((part for name in wanted if (part := [file for file in files if named[file] is name])), files)
    if len(chosen) < len(files):
        logger.info("%s: %d of %d files are those of this split, by their names", folder, len(chosen), len(files))
    return chosen


def _split_of(name: Path) -> Split | None:
    """Return the split that a path names: in the file's name, or else in the name of a folder; None without a split."""
    for part in reversed(name.parts):
        for split in Split:
            # Not within a word: `latest` names no test split.
            if re.search(rf"(?<![a-z])({split.value})(?![a-z])", part.lower()):
                return split
    return None
