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
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from analyzers.errors import CacheWarning, WorkbenchError
from analyzers.files import json_bytes, open_regular, read_whole
from analyzers.words import bounded

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


# Write and read the files of one cache entry: a folder with a file for each long column, and `meta.json`.
#
# The short columns share one file, because a separate file for each would cost more time than reading a small
# artefact.
#
# A disk may be full or read-only, lose power in the middle of a write, or be cleaned by other programs. So an entry
# is used only if its `meta.json` is complete, and each column has the length and the checksum that are recorded
# there. Any other entry is deleted, and the artefact is read again.

CHUNK = 1 << 20
_META_BYTES = 1 << 30
SMALL = 1 << 18
"""The largest size in bytes of a column that is read into memory; larger ones are memory-mapped.

Each mapped column keeps a file open. If all were mapped, a thousand ranks with some thirty columns each would need more
open files than a process may have.
"""
SHORT_COLUMNS = "short.bin"
"""The name of the file in a cache entry that holds all columns of at most `SMALL` bytes."""


class Columns(Mapping[str, "np.ndarray[Any, Any]"]):
    """The columns of one cached artefact by name, and the contents of its `meta.json` (`meta`).

    A column's file is memory-mapped and checked at the first use of the column. If a file turns out to be damaged, the
    function `reread` is called to read the artefact again.

    Raises:
        DamagedEntry: `meta.json` is incomplete, or a column file is missing or has the wrong length.
    """

    def __init__(self, folder: Path, reread: "Callable[[], Columns]") -> None:
        self.folder = folder
        self.meta, self._long, self._short = _read_meta(folder)
        self._reread = reread
        self._mapped: dict[str, np.ndarray[Any, Any]] = {}

    def __getitem__(self, name: str) -> "np.ndarray[Any, Any]":
        if name not in self._short and name not in self._long:
            raise KeyError(name)
        if name not in self._mapped:
            try:
                self._mapped[name] = self._map(name)
            except (OSError, ValueError, DamagedEntry):
                discard(self.folder)
                self._mapped[name] = self._map_anew(name)
        return self._mapped[name]

    def _map_anew(self, name: str) -> "np.ndarray[Any, Any]":
        """Read the artefact again, and return the column from the new cache entry.

        Raises:
            CacheFailure: Each new entry was damaged as well.
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
                self.folder, self._long, self._short = again.folder, again._long, again._short  # noqa: SLF001
                return column
        raise failed

    def _map(self, name: str) -> "np.ndarray[Any, Any]":
        if name in self._short:
            return read_short(self.folder / SHORT_COLUMNS, self._short[name])
        path, written = self.folder / f"{name}.npy", self._long[name]
        if checksum(path) != written.checksum:
            raise DamagedEntry
        column: np.ndarray[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        column.setflags(write=False)
        return column

    def __iter__(self) -> Iterator[str]:
        yield from self._short
        yield from self._long

    def __len__(self) -> int:
        return len(self._short) + len(self._long)


class Written(NamedTuple):
    """The storage of a long column: the length of its file in bytes, and its CRC-32."""

    size: int
    checksum: int


class Short(NamedTuple):
    """The storage of a short column: its type and shape, its position in the common file, and its CRC-32."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int
    checksum: int


def write_entry(folder: Path, columns: Mapping[str, "np.ndarray[Any, Any]"], meta: dict[str, Any]) -> None:
    """Write columns in the format that `Columns` reads; `meta.json` is written last and marks the entry as complete.

    Raises:
        CacheFailure: The disk is full, or the folder cannot be written.
    """
    short = {name: column for name, column in columns.items() if _is_short(column)}
    try:
        tables = {
            "__short__": _write_short(folder / SHORT_COLUMNS, short),
            "__columns__": {
                name: _write_long(folder / f"{name}.npy", column)
                for name, column in columns.items()
                if name not in short
            },
        }
        body = json_bytes(_bounded_texts(meta) | tables)
        (folder / "meta.json").write_bytes(b"%08x\n%s" % (zlib.crc32(body), body))
    except OSError as error:
        raise failure(folder.parent, error) from error


def _bounded_texts(value: Any) -> Any:
    """Return nested plain values in which no text is longer than a reader may keep; short ones stay.

    Every reader writes its texts through here, so that none can make what comes after it slow.
    """
    if isinstance(value, str):
        return bounded(value)
    if isinstance(value, dict):
        return {_bounded_texts(key): _bounded_texts(inner) for key, inner in value.items()}
    return [_bounded_texts(inner) for inner in value] if isinstance(value, list | tuple) else value


_PLAIN = frozenset("biufSU")
"""The kinds of NumPy types that a short column may have: booleans, numbers and texts."""


def _is_short(column: "np.ndarray[Any, Any]") -> bool:
    return column.nbytes <= SMALL and column.dtype.kind in _PLAIN


def _write_short(path: Path, columns: Mapping[str, "np.ndarray[Any, Any]"]) -> dict[str, Short]:
    offset, found = 0, {}
    with path.open("wb") as file:
        for name, column in columns.items():
            body = column.tobytes()
            found[name] = Short(column.dtype.str, column.shape, offset, len(body), zlib.crc32(body))
            offset += file.write(body)
    return found


def read_short(path: Path, column: Short) -> "np.ndarray[Any, Any]":
    """Return a column from the common file of short columns, as a read-only array.

    Raises:
        DamagedEntry: The bytes are not those that were written.
    """
    with open_regular(path) as file:
        file.seek(column.offset)
        body = file.read(column.size)
    dtype = np.dtype(column.dtype)
    # Objects would be addresses in memory that the file chooses.
    if zlib.crc32(body) != column.checksum or dtype.kind not in _PLAIN:
        raise DamagedEntry
    return np.ndarray(column.shape, dtype, buffer=body)


def _write_long(path: Path, column: "np.ndarray[Any, Any]") -> Written:
    np.save(path, column, allow_pickle=False)
    return Written(path.stat().st_size, checksum(path))


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file, which takes about a third of a second per gigabyte."""
    value = 0
    with open_regular(path) as file:
        while chunk := file.read(CHUNK):
            value = zlib.crc32(chunk, value)
    return value


class Tables(NamedTuple):
    """The contents of an entry's `meta.json`: the artefact's metadata, and how long and short columns are stored."""

    meta: dict[str, Any]
    long: dict[str, Written]
    short: dict[str, Short]


def _read_meta(folder: Path) -> Tables:
    """Return the contents of an entry's `meta.json`, and check that the column files have the recorded lengths.

    Raises:
        DamagedEntry: `meta.json` is incomplete, or a file of columns is missing or has the wrong length.
    """
    try:
        check, _, body = read_whole(folder / "meta.json", _META_BYTES).partition(b"\n")
        if check != b"%08x" % zlib.crc32(body):
            raise DamagedEntry
        meta = msgspec.json.decode(body)
        long = msgspec.convert(meta.pop("__columns__"), dict[str, Written])
        short = msgspec.convert(meta.pop("__short__", {}), dict[str, Short])
        expected = {f"{name}.npy": size for name, (size, _) in long.items()}
        if short:
            expected[SHORT_COLUMNS] = sum(column.size for column in short.values())
        if any((folder / name).stat().st_size != size for name, size in expected.items()):
            raise DamagedEntry
    except (OSError, msgspec.MsgspecError) as error:
        raise DamagedEntry from error
    return Tables(meta, long, short)


def open_entry(entry: Path, reread: Callable[[], Columns]) -> Columns | None:
    """Return the columns of a cache entry, and mark it as used now; None if it is missing, damaged or not trusted.

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


PUBLISHING_ATTEMPTS = 5


def publish(scratch: Path, entry: Path, reread: Callable[[], Columns]) -> Columns:
    """Make the folder `scratch`, written by a child process, the cache entry `entry`; return its columns.

    If another process has made this entry first, the columns of the existing entry are returned.

    Raises:
        CacheFailure: The entry can be neither written nor replaced.
    """
    failed: Exception | None = None
    # Each time, another process may have published, cleared or damaged the entry since the last look.
    for _ in range(PUBLISHING_ATTEMPTS):
        try:
            columns = Columns(scratch, reread)
            # Renaming fails if another process has made the entry, so the first one wins.
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
