"""Find the data files at a path, and leave out those of other splits."""

import json
import logging
import re
from enum import Enum
from pathlib import Path

from trainer.errors import DataError
from trainer.local_data.records import FORMATS, reader_of

logger = logging.getLogger("root")
NOT_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


class Split(Enum):
    """A part of a data set. The value is a regular expression for its usual names in the names of files."""

    TRAIN = "train|training"
    VALIDATION = "validation|valid|dev|val"
    TEST = "test|testing|eval|evaluation"


def local_files(path: Path, split: Split = Split.TRAIN) -> list[Path]:
    """Return a file, or all data files below a folder, sorted by name. A folder of the datasets package counts as one.

    Where names of files tell splits apart, such as `train-00000-of-00002.parquet`, only those of `split` are returned.

    Raises:
        DataError: The folder has no data files.
    """
    if not path.is_dir() or (path / "state.json").is_file():
        return [path]
    if (path / "dataset_dict.json").is_file():
        return of_split([path / name for name in saved_splits(path)], path, split)
    files = sorted(file for file in path.rglob("*") if is_data(file.relative_to(path)) and file.is_file())
    if not files:
        raise DataError(f"{path}: no data files", f"put files there that end in {', '.join(FORMATS)}")
    return of_split(files, path, split)


def is_data(name: Path) -> bool:
    """Return whether a file below the folder of the data has a name of data; hidden ones are those of caches."""
    hidden = any(part.startswith(".") for part in name.parts)
    return reader_of(name) is not None and name.name not in NOT_DATA and not hidden


def saved_splits(path: Path) -> list[str]:
    """Return the names of the splits in a folder that the datasets package saved.

    Raises:
        DataError: The file that names them is damaged.
    """
    try:
        return [str(name) for name in json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path / 'dataset_dict.json'}: {error}", "save the data set again") from error


def of_split(files: list[Path], folder: Path, split: Split) -> list[Path]:
    """Return the files of a split; those without a split in their names, or all of them, where the split has none."""
    named = {file: split_of(file.relative_to(folder)) for file in files}
    # The tests of a data set serve as its validation where it has no other.
    wanted = [split, Split.TEST, None] if split is Split.VALIDATION else [split, None]
    chosen = next((part for name in wanted if (part := [file for file in files if named[file] is name])), files)
    if len(chosen) < len(files):
        logger.info("%s: %d of %d files are those of this split, by their names", folder, len(chosen), len(files))
    return chosen


def split_of(name: Path) -> Split | None:
    """Return the split that a file's name tells, or that of its folder; None if neither does."""
    for part in reversed(name.parts):
        for split in Split:
            if re.search(rf"(?<![a-z])({split.value})(?![a-z])", part.lower()):
                return split
    return None
