"""Find the files of a data set and of a tokenizer at the paths that a user names."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from analyzers.errors import InputError
from analyzers.tokens.reading.sources import FORMS, SUFFIXES

_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
FILES_AT_MOST = 10_000
_OF_DATASETS = ("dataset_info.json", "state.json", "dataset_dict.json")
"""The files that the package datasets writes beside the rows."""


class DataFiles(NamedTuple):
    """The files of a data set, and those of its tokenizer: `tokenizer.json` first, then the files beside it."""

    data: list[Path]
    tokenizer: list[Path]


def find_files(paths: Sequence[Path], tokenizer: Path | None) -> DataFiles:
    """Return the files of a data set and of its tokenizer; a folder stands for all data files below it.

    Raises:
        InputError: A path does not exist, or a folder has no file of a known kind.
    """
    return DataFiles(
        [file for path in paths for file in _data_files(path)], _tokenizer_files(tokenizer) if tokenizer else []
    )


def _data_files(path: Path) -> list[Path]:
    """Return the data files at a path: the file itself, or all below a folder.

    Raises:
        InputError: The path does not exist, or has no data file of a known kind, or too many.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and _is_rows(file))
        if not files or len(files) > FILES_AT_MOST:
            raise InputError(f"{path}: {len(files) or 'no'} files of rows", FORMS)
        return files
    if not path.is_file():
        reason = "not a regular file" if path.exists() else "no such file or folder"
        raise InputError(f"{path}: {reason}", FORMS)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: no data set of a known kind", FORMS)
    return [path]


def _is_rows(path: Path) -> bool:
    """Return whether a file in a folder may hold rows of data, and not a description or a tokenizer."""
    return path.is_file() and path.name not in (*_OF_DATASETS, *_BESIDE, "tokenizer.json", "config.json")


def _tokenizer_files(path: Path) -> list[Path]:
    """Return the files of a tokenizer: `tokenizer.json` (`path` is this file or its folder), and the files beside it.

    Raises:
        InputError: There is no such file.
    """
    hint = "give --tokenizer a tokenizer.json, or the folder of a model that has one"
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{file}: no such file", hint)
    if file.suffix != ".json":
        raise InputError(f"{file}: not a tokenizer.json", hint)
    return [file, *(beside for name in _BESIDE if (beside := file.parent / name).is_file())]
