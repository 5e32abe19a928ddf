"""Cache the columns that readers write: one folder for each artefact, with a file for each column.

A disk may be full or read-only, lose power in the middle of a write, or be cleaned by other programs. So an entry is
used only if its `meta.json` is complete and each column has the length and the checksum that are recorded there; any
other entry is deleted, and the artefact is read again. If a folder cannot be written, a temporary folder is used until
the process ends.
"""

import atexit
import functools
import io
import os
import re
import shutil
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from analyzers.errors import CacheWarning, WorkbenchError
from analyzers.files import open_regular, read_whole

DEFAULT_LIMIT = 10 << 30
"""The number of bytes that the cache may hold unless the user sets another limit."""
LIMIT_FILE = "limit"
"""The name of the file in the cache's folder that has the limit which the user set, in bytes."""
ENTRY = re.compile(r"[0-9a-f]{32}")
"""Matches the names of cache entries; files with other names in the folder are not deleted."""
SCRATCH = "reading-"
"""The prefix of folders into which child processes write."""
ABANDONED_S = 86_400.0
"""The age in seconds from which on a scratch folder must be that of a killed process: no artefact takes a
day to read.
"""
CHUNK = 1 << 20
META_BYTES = 1 << 30
SMALL = 1 << 18
"""The largest size in bytes of a column that is read into memory instead of being memory-mapped."""


class CacheFailure(WorkbenchError):
    """A folder of the cache cannot be written."""


class DamagedEntry(Exception):  # never seen by a user
    """An entry of the cache is incomplete, or a file of it has a wrong length or checksum."""


class Columns(Mapping[str, "np.ndarray[Any, Any]"]):
    """The columns of one cached artefact by name, and the contents of its `meta.json` (`meta`).

    Each column file is memory-mapped and checked on first use. `reread` is called to read the artefact again if a
    column file turns out to be damaged.

    Raises:
        DamagedEntry: `meta.json` is incomplete, or a column file is missing or has the wrong length.
    """

    def __init__(self, folder: Path, reread: "Callable[[], Columns]") -> None:
        self.folder = folder
        self.meta, self._written = read_meta(folder)
        self._reread = reread
        self._mapped: dict[str, np.ndarray[Any, Any]] = {}

    def __getitem__(self, name: str) -> "np.ndarray[Any, Any]":
        if name not in self._written:
            raise KeyError(name)
        if name not in self._mapped:
            try:
                self._mapped[name] = self._map(name)
            except (OSError, ValueError, DamagedEntry):
                discard(self.folder)
                self._mapped[name] = self._map_anew(name)
        return self._mapped[name]

    def _map_anew(self, name: str) -> "np.ndarray[Any, Any]":
        """Read the artefact again, and return a column of the new cache entry.

        Raises:
            CacheFailure: The new entry was damaged, too, each time that it was written.
        """
        # Not `again[name]`: on a disk that loses what is written it would read again without end.
        for _ in range(PUBLISHING_ATTEMPTS):
            again = self._reread()
            try:
                column = again._map(name)  # noqa: SLF001  # of the same class
            except (OSError, ValueError, KeyError, DamagedEntry) as error:
                # Another process may have cleared the cache in between.
                failed = failure(again.folder.parent, error)
                discard(again.folder)
            else:
                self.folder, self._written = again.folder, again._written  # noqa: SLF001
                return column
        raise failed

    def _map(self, name: str) -> "np.ndarray[Any, Any]":
        path, written = self.folder / f"{name}.npy", self._written[name]
        # What is mapped keeps a file open: a thousand ranks with some thirty columns each are more than a process may.
        body = read_whole(path) if written.size <= SMALL else None
        if (checksum(path) if body is None else zlib.crc32(body)) != written.checksum:
            raise DamagedEntry
        read = functools.partial(np.load, allow_pickle=False)
        column: np.ndarray[Any, Any] = read(path, mmap_mode="r") if body is None else read(io.BytesIO(body))
        column.setflags(write=False)
        return column

    def __iter__(self) -> Iterator[str]:
        return iter(self._written)

    def __len__(self) -> int:
        return len(self._written)


class Written(NamedTuple):
    """The file of one column in the cache: its length in bytes and its CRC-32."""

    size: int
    checksum: int


def write_entry(folder: Path, columns: Mapping[str, "np.ndarray[Any, Any]"], meta: dict[str, Any]) -> None:
    """Write columns in the format that `Columns` reads; `meta.json` is written last and marks the entry as complete.

    Raises:
        CacheFailure: The disk is full, or the folder cannot be written.
    """
    try:
        written = {name: write_column(folder / f"{name}.npy", column) for name, column in columns.items()}
        body = msgspec.json.encode(meta | {"__columns__": written})
        (folder / "meta.json").write_bytes(b"%08x\n%s" % (zlib.crc32(body), body))
    except OSError as error:
        raise failure(folder.parent, error) from error


def write_column(path: Path, column: "np.ndarray[Any, Any]") -> Written:
    if column.nbytes > SMALL:
        np.save(path, column, allow_pickle=False)
        return Written(path.stat().st_size, checksum(path))
    held = io.BytesIO()
    np.save(held, column, allow_pickle=False)
    path.write_bytes(body := held.getvalue())
    return Written(len(body), zlib.crc32(body))


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file, which costs about a third of a second for each gigabyte."""
    value = 0
    with open_regular(path) as file:
        while chunk := file.read(CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def read_meta(folder: Path) -> tuple[dict[str, Any], dict[str, Written]]:
    """Return the contents of an entry's `meta.json`, and the recorded length and checksum of each column by name.

    Raises:
        DamagedEntry: `meta.json` is incomplete, or a column file is missing or has the wrong length.
    """
    try:
        check, _, body = read_whole(folder / "meta.json", META_BYTES).partition(b"\n")
        if check != b"%08x" % zlib.crc32(body):
            raise DamagedEntry
        meta = msgspec.json.decode(body)
        written = msgspec.convert(meta.pop("__columns__"), dict[str, Written])
        if any((folder / f"{name}.npy").stat().st_size != size for name, (size, _) in written.items()):
            raise DamagedEntry
    except (OSError, msgspec.MsgspecError) as error:
        raise DamagedEntry from error
    return meta, written


def open_entry(entry: Path, reread: Callable[[], Columns]) -> Columns | None:
    """Return the columns of a cache entry, and mark it as used; None if it is missing, damaged or not trusted.

    A damaged entry is deleted. Only an entry of this user or of root is trusted: others may have changed the numbers.
    """
    if not is_trusted(entry):
        return None
    try:
        columns = Columns(entry, reread)
        os.utime(entry)
    except DamagedEntry:
        discard(entry)
        return None
    except OSError:
        # A cache that somebody else filled may be read-only: it serves as well.
        return columns
    return columns


def is_trusted(entry: Path) -> bool:
    """Return whether a cache entry, and the folder that it is in, belong to this user or to root."""
    try:
        return {path.lstat().st_uid for path in (entry, entry.parent)} <= {os.geteuid(), 0}
    except OSError:
        return False


PUBLISHING_ATTEMPTS = 5


def publish(scratch: Path, entry: Path, reread: Callable[[], Columns]) -> Columns:
    """Move the folder `scratch`, which a child process has written, into the cache as `entry`; return its columns.

    If another process has done so first, the columns of its entry are returned.

    Raises:
        CacheFailure: The entry can be neither written nor replaced.
    """
    failed: Exception | None = None
    # Each time, another process may have published, cleared or damaged the entry since the last look.
    for _ in range(PUBLISHING_ATTEMPTS):
        try:
            columns = Columns(scratch, reread)
            scratch.rename(entry)
        except (OSError, DamagedEntry) as error:
            failed = error
            if known := open_entry(entry, reread):
                return known
        else:
            columns.folder = entry
            return columns
    if entry.exists() and not is_trusted(entry):
        raise CacheFailure(f"{entry.parent}: another user owns an entry there", ELSEWHERE)
    raise failure(entry.parent, failed or FileExistsError()) from failed


def discard(entry: Path) -> None:
    """Delete the folder of a cache entry, or a file in its place; an error is ignored."""
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


# Where the cache is.


def cache_folder() -> Path | None:
    """Return the folder of the cache: `$WORKBENCH_CACHE`, else `torch-workbench` in the user's cache folder.

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
"""The folders for the cache in which writing has failed in this process."""
TEMPORARY_ROOTS: tuple[Callable[[], str], ...] = (tempfile.gettempdir, lambda: "/dev/shm", lambda: "/var/tmp")  # noqa: S108


def folders() -> Iterator[Path]:
    """Yield the folders to try for the cache: the user's, then temporary ones, except where writing has failed."""
    wanted = cache_folder()
    if wanted and wanted not in UNUSABLE:
        yield wanted
    for root in TEMPORARY_ROOTS:
        folder = temporary_folder(root)
        if folder and folder not in UNUSABLE:
            yield folder


@functools.cache
def temporary_folder(root: Callable[[], str]) -> Path | None:
    """Return a new folder in `root()` that is deleted when the process ends; None if it cannot be made."""
    try:
        folder = tempfile.mkdtemp(prefix="torch-workbench-", dir=root())
    except OSError:
        return None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def give_up(folder: Path, reason: CacheFailure) -> None:
    """Stop using a folder for the cache in this process, and warn once that files will be read again."""
    if folder not in UNUSABLE:
        UNUSABLE.add(folder)
        text = f"the cache cannot be written, so files are read again next time: {reason.message}"
        warnings.warn(text, CacheWarning, stacklevel=2)


# How much it holds.


class Entry(NamedTuple):
    """An entry of the cache: when it was last used (seconds since the epoch), its size in bytes, and its folder."""

    used: float
    size: int
    folder: Path


def entries(folder: Path) -> list[Entry]:
    """Return the entries of a cache, the most recently used first; other processes may delete some at the same time."""
    try:
        names = [path for path in folder.iterdir() if ENTRY.fullmatch(path.name)]
    except OSError:
        return []
    return sorted((known for path in names if (known := entry_of(path))), reverse=True)


def entry_of(path: Path) -> Entry | None:
    """Return the last use, size and folder of a cache entry as an `Entry`; None if the entry was just deleted."""
    try:
        files = list(path.iterdir()) if path.is_dir() else [path]
        return Entry(path.stat().st_mtime, sum(file.stat().st_size for file in files), path)
    except OSError:
        return None


def prune(folder: Path, limit: int) -> None:
    """Delete the least recently used entries until the rest fits into `limit` bytes; the newest entry always stays."""
    total = 0
    for number, entry in enumerate(entries(folder)):
        total += entry.size
        if total > limit and number:
            discard(entry.folder)
    remove_scratch(folder, older_than_s=ABANDONED_S)


def clear(folder: Path) -> list[Entry]:
    """Delete all entries of a cache and return them; entries that a different process is writing stay.

    Raises:
        CacheFailure: An entry could not be deleted.
    """
    found = entries(folder)
    for entry in found:
        discard(entry.folder)
    remove_scratch(folder, older_than_s=ABANDONED_S)
    # Another process may have written an entry again in the meantime: that one is as new as its time says.
    if left := sum(entry_of(entry.folder) == entry for entry in found):
        raise CacheFailure(f"{folder}: {left} of {len(found)} entries cannot be deleted", "check whose folder it is")
    return found


def remove_scratch(folder: Path, older_than_s: float) -> None:
    """Delete the scratch folders that killed processes left behind: those older than `older_than_s` seconds."""
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
        return int(read_whole(folder / LIMIT_FILE, SMALL))
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
