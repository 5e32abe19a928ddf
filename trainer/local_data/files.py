"""Find the data files at a path, without files of another split (training, validation, test)."""

import json
import logging
import re
from enum import Enum
from pathlib import Path

from trainer.errors import DataError
from trainer.local_data.records import FORMATS, reader_of

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
    """Return whether a path below the data folder has the ending of a data file, and no part of it is hidden."""
    hidden = any(part.startswith(".") for part in name.parts)
    return reader_of(name) is not None and name.name not in _NOT_DATA and not hidden


def _saved_splits(path: Path) -> list[str]:
    """Return the names of the splits in a folder that the datasets package saved.

    Raises:
        DataError: The file with the names is damaged.
    """
    try:
        return [str(name) for name in json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
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
