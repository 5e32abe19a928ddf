"""Write and read the files of one cache entry: a folder with a file for each long column, and `meta.json`.

The short columns share one file, because a separate file for each would cost more time than reading a small artefact.

A disk may be full or read-only, lose power in the middle of a write, or be cleaned by other programs. So an entry is
used only if its `meta.json` is complete, and each column has the length and the checksum that are recorded there. Any
other entry is deleted, and the artefact is read again.
"""

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from analyzers.cache import ELSEWHERE, CacheFailure, DamagedEntry, discard, failure, is_trusted
from analyzers.files import json_bytes, open_regular, read_whole
from analyzers.words import bounded

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
