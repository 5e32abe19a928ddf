"""Make, trust and delete the folders of cache entries, and define the errors about them.

This module needs no NumPy, so that a program that only looks for an entry need not load it.
"""

import os
import shutil
import tempfile
from pathlib import Path

from analyzers.errors import WorkbenchError

SCRATCH = "reading-"
"""The prefix of scratch folders: child processes write into such a folder before it becomes a cache entry."""


class CacheFailure(WorkbenchError):
    """A folder of the cache cannot be written."""


class DamagedEntry(Exception):  # never seen by a user
    """An entry of the cache is incomplete, or a file of it has a wrong length or checksum."""


def is_trusted(entry: Path) -> bool:
    """Return whether a cache entry, and the folder that contains it, belong to this user or to root."""
    try:
        # A link is judged by its own owner: anyone can make one that leads to a folder of this user.
        return {path.lstat().st_uid for path in (entry, entry.parent)} <= {os.geteuid(), 0}
    except OSError:
        return False


def discard(entry: Path) -> None:
    """Delete the folder of a cache entry, or a file with its name; errors are ignored."""
    try:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    except OSError:
        # `publish` finds that it cannot be replaced, and says so.
        return


def make_scratch(folder: Path) -> Path:
    """Return a new, empty folder inside the cache for a child process to write to.

    It is on the same disk as the entries, so that renaming it makes it an entry.

    Raises:
        CacheFailure: The folder cannot be written.
    """
    try:
        # Later only the owner is checked (`is_trusted`), so nobody else may be able to write there.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=SCRATCH, dir=folder))
    except OSError as error:
        raise failure(folder, error) from error


def failure(folder: Path, error: Exception) -> CacheFailure:
    reason = "an entry there cannot be replaced"
    if isinstance(error, DamagedEntry | ValueError | KeyError):
        reason = "what was just written there reads back differently"
    elif isinstance(error, OSError):
        # NumPy reports only how much it wrote before the disk was full.
        reason = error.strerror or "No space left on device"
    return CacheFailure(f"{folder}: {reason}", f"free space there, or {ELSEWHERE}")


ELSEWHERE = "set WORKBENCH_CACHE to a folder of yours on another disk"
