"""Find the folder of the cache: the user's folder, or a temporary one if it cannot be written."""

import atexit
import functools
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from analyzers.cache.entry_folders import CacheFailure
from analyzers.errors import CacheWarning


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
