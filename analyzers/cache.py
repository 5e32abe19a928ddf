"""Make, trust and delete the folders of cache entries, and define the errors about them.

This module needs no NumPy, so that a program that only looks for an entry need not load it.
"""

import atexit
import functools
import math
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from analyzers.errors import CacheWarning, WorkbenchError
from analyzers.files import read_whole

SCRATCH = "reading-"
"""The prefix of scratch folders: child processes write into such a folder before it becomes a cache entry."""


class CacheFailure(WorkbenchError):
    """A folder of the cache cannot be written."""


def no_folder() -> CacheFailure:
    return CacheFailure(
        "no folder for the cache can be written to", "set WORKBENCH_CACHE to a folder that you can write to"
    )


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


def cache_folder() -> Path | None:
    """Return the folder of the cache: `$WORKBENCH_CACHE`, or else `torch-workbench` in the user's cache folder.

    The result is None for a user without a home folder.
    """
    if folder := os.environ.get("WORKBENCH_CACHE"):
        return Path(folder)
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "torch-workbench"
    try:
        return Path.home() / ".cache" / "torch-workbench"
    except RuntimeError:
        return None


UNUSABLE: set[Path] = set()
"""The cache folders in which writing has failed in this process."""
_TEMPORARY_ROOTS: tuple[Callable[[], str], ...] = (tempfile.gettempdir, lambda: "/dev/shm", lambda: "/var/tmp")  # noqa: S108


def folders() -> Iterator[Path]:
    """Yield the folders to try for the cache: the user's, then temporary ones, without those where writing failed."""
    wanted = cache_folder()
    if wanted and wanted not in UNUSABLE:
        yield wanted
    yield from temporary_folders()


def temporary_folders() -> Iterator[Path]:
    """Yield the temporary folders to try for the cache; they are deleted when the process ends."""
    for root in _TEMPORARY_ROOTS:
        folder = _temporary_folder(root)
        if folder and folder not in UNUSABLE:
            yield folder


@functools.cache
def _temporary_folder(root: Callable[[], str]) -> Path | None:
    """Return a new folder inside `root()`, which is deleted when the process ends; None if it cannot be made."""
    try:
        folder = tempfile.mkdtemp(prefix="torch-workbench-", dir=root())
    except OSError:
        return None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def give_up(folder: Path, reason: CacheFailure) -> None:
    """Stop using a folder for the cache in this process, and warn once that files will be read again next time."""
    if folder not in UNUSABLE:
        UNUSABLE.add(folder)
        text = f"the cache cannot be written, so files are read again next time: {reason.message}"
        warnings.warn(text, CacheWarning, stacklevel=2)


DEFAULT_LIMIT = 10 << 30
"""The bytes that the cache may hold unless the user sets another limit."""
LIMIT_FILE = "limit"
"""The name of the file in the cache's folder with the limit that the user set, in bytes."""
ENTRY = re.compile(r"[0-9a-f]{32}")
"""Matches the names of cache entries; files with other names in the folder are not deleted."""
_ABANDONED_S = 86_400.0
"""The age in seconds after which a scratch folder counts as left by a killed process: no file takes a day to read."""
_LIMIT_BYTES = 32
"""The largest number of bytes that are read of the file with the limit."""


class Entry(NamedTuple):
    """An entry of the cache: when it was last used (seconds since the epoch), its size in bytes, and its folder."""

    used: float
    size: int
    folder: Path


def entries(folder: Path) -> list[Entry]:
    """Return the entries of a cache folder, the most recently used first.

    An entry that another process deletes at the same time is left out.
    """
    try:
        names = [path for path in folder.iterdir() if ENTRY.fullmatch(path.name)]
    except OSError:
        return []
    return sorted((known for path in names if (known := _entry_of(path))), reverse=True)


def _entry_of(path: Path) -> Entry | None:
    """Return the cache entry in the folder `path`; None if another process has just deleted it."""
    try:
        files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names] or [path]
        return Entry(path.stat().st_mtime, sum(file.stat().st_size for file in files), path)
    except OSError:
        return None


GROWN: dict[Path, float] = {}
"""{cache folder: number of bytes that this process has added to it since it last pruned it}."""
_PARTS_OF_LIMIT = 64


def prune_if_grown(entry: Path) -> None:
    """Prune the cache if this process has added enough to it since the last pruning; `entry` is the newest entry.

    Enough is a fixed part of the cache's limit. Pruning looks at every file of the cache, so pruning after each of many
    small entries would cost more than everything else. The first entry of a process always counts as enough, so that
    the cache cannot grow beyond this part.
    """
    added, limit = _entry_of(entry), limit_bytes(entry.parent)
    grown = GROWN.get(entry.parent, math.inf) + (added.size if added else 0)
    GROWN[entry.parent] = 0 if grown > limit // _PARTS_OF_LIMIT else grown
    if not GROWN[entry.parent]:
        prune(entry.parent, limit)


def prune(folder: Path, limit: int) -> None:
    """Delete the least recently used entries until the rest fits into `limit` bytes; the newest entry always stays.

    Abandoned scratch folders are deleted, too.
    """
    total = 0
    for number, entry in enumerate(entries(folder)):
        total += entry.size
        if total > limit and number:
            discard(entry.folder)
    _remove_scratch(folder, older_than_s=_ABANDONED_S)


def clear(folder: Path) -> list[Entry]:
    """Delete all entries of a cache and return them; entries that another process is writing stay.

    Raises:
        CacheFailure: An entry could not be deleted.
    """
    found = entries(folder)
    for entry in found:
        discard(entry.folder)
    _remove_scratch(folder, older_than_s=_ABANDONED_S)
    # Another process may have written an entry again in the meantime: that one is as new as its time says.
    if left := sum(_entry_of(entry.folder) == entry for entry in found):
        raise CacheFailure(f"{folder}: {left} of {len(found)} entries cannot be deleted", "check whose folder it is")
    return found


def _remove_scratch(folder: Path, older_than_s: float) -> None:
    """Delete the scratch folders in a cache folder that have not changed for more than `older_than_s` seconds.

    Their processes were killed before they could delete them. Only the age is checked, so `older_than_s` must be longer
    than the reading of any file takes.
    """
    for path in folder.glob(f"{SCRATCH}*"):
        try:
            if time.time() - path.stat().st_mtime > older_than_s:
                discard(path)
        except OSError:
            # Another process was faster.
            continue


def limit_bytes(folder: Path) -> int:
    """Return how many bytes a cache may hold: the limit set by `workbench cache --limit`, or 10 GiB."""
    try:
        return int(read_whole(folder / LIMIT_FILE, _LIMIT_BYTES))
    except (OSError, ValueError):
        return DEFAULT_LIMIT


def set_limit(folder: Path, limit: int) -> None:
    """Set how many bytes the cache may hold, and delete the least recently used entries that do not fit.

    Raises:
        CacheFailure: The folder cannot be written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / LIMIT_FILE).write_text(f"{limit}\n")
    except OSError as error:
        raise failure(folder, error) from error
    prune(folder, limit)
