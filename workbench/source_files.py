"""Find the source file and line that a text (such as a call stack) names, if the file is on this machine."""

import os
import re
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from workbench.python_path import PACKAGE_ROOT, working_folder

SOURCE_LINE = re.compile(r"([^\s:()\"']+\.(?:py|pyx|cpp|cc|cu|cuh|h|hpp))(?::(\d+)|\((\d+)\))")
"""Matches a source line: `path.py:41`, as stacks write it, or `path.py(41)`, as traces do."""
LARGEST_BYTES = 8 << 20
FILES_AT_MOST = 20_000
"""The number of files after which the search ends, because a home folder may hold millions."""
SKIPPED_FOLDERS = ("site-packages", "node_modules", "__pycache__")


def find_source(text: str) -> tuple[Path, int] | None:
    """Return (path, line) of the first file mentioned in `text` that exists on this machine; None if none does."""
    for match in SOURCE_LINE.finditer(text):
        for path in _candidate_paths(Path(match[1])):
            if _can_be_shown(path):
                return path, int(match[2] or match[3])
    return None


def _can_be_shown(path: Path) -> bool:
    """Return whether `path` is a regular file that this user may read and that is not too long to show."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        # Not only absent: in a folder of somebody else, or a name that no disk takes.
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST_BYTES and os.access(path, os.R_OK)


def _candidate_paths(named: Path) -> Iterator[Path]:
    """Yield the paths on this machine at which the source file `named` may exist, the most probable one first.

    The job may have run in another folder or on another machine, so the path as recorded may not exist here. For
    `/home/ann/job/model/attention.py` the candidates are this path itself; then `home/ann/job/model/attention.py`,
    `job/model/attention.py`, `model/attention.py` and so on, below the working folder and below this project's
    packages; at last any file below these two folders that ends with the whole of `named`, if there is only one.
    """
    if named.is_absolute():
        yield named
    parts = named.parts[1:] if named.is_absolute() else named.parts
    roots = [root for root in (working_folder(), PACKAGE_ROOT) if root]
    for root in roots:
        for cut in range(max(1, len(parts) - 1)):
            yield root.joinpath(*parts[cut:])
    matches = next(filter(None, (_files_ending_with(root, parts) for root in roots)), [])
    if len(matches) == 1:
        yield matches[0]


def _files_ending_with(root: Path, parts: tuple[str, ...]) -> list[Path]:
    named = source_files_by_name(root).get(parts[-1], []) if parts else []
    return [path for path in named if path.parts[-len(parts) :] == parts]


@lru_cache(maxsize=4)
def source_files_by_name(root: Path) -> dict[str, list[Path]]:
    """Return {file name: source files with that name} below a folder, without hidden folders and library folders."""
    by_name: dict[str, list[Path]] = {}
    seen = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith("."))
        for name in names:
            seen += 1
            if SOURCE_LINE.fullmatch(f"{name}:1"):
                by_name.setdefault(name, []).append(Path(folder, name))
        if seen > FILES_AT_MOST:
            break
    return by_name
