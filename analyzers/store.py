"""Artefacts -> columns: read in a child process under limits, kept as `.npy` files, memory-mapped by everybody else.

A reader is a module with `VERSION: int` and `read(paths: list[Path]) -> tuple[dict[str, ndarray], dict]`: the columns
and a JSON-able `meta`. It is named by its dotted path because this floor must not import the rooms above it.
Artefacts can be hostile and huge. The child limits itself before it opens one and executes nothing. What it wrote is
cached under the identity of the files (path, size, time of change) and the reader's version.
"""

import importlib
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from analyzers.child import read_in_child
from analyzers.errors import InputError, LimitExceeded, WorkbenchError

CACHE_BYTES = 4 << 30
"""What the cache may hold; the entries used longest ago go first."""
SCRATCH = "reading-"
"""Prefix of the folders that children are writing to."""


@dataclass(frozen=True)
class Options:
    """How to read: the options that every analyzer takes beside its files.

        memory.analyze(snapshots, store.Options(rank=3, max_memory=4 << 30))

    `rank` and `step` select what is analysed; None: everything. `jobs` children read at the same time; `max_memory`
    (bytes) bounds all of them together, None bounds each by its file's size. `cache=False` leaves nothing on the disk.
    `peak_flops` are the floating-point operations per second of a device that is in no table. `columns` says which
    column of another trainer's log is which quantity: pairs such as ("loss", "train/nll").
    """

    rank: int | None = None
    step: int | None = None
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    cache: bool = True
    max_memory: int | None = None
    peak_flops: float | None = None
    columns: tuple[tuple[str, str], ...] = ()


class Columns(Mapping[str, "np.ndarray[Any, Any]"]):
    """The columns of an artefact by name, memory-mapped on first use, and its `meta`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta: dict[str, Any] = msgspec.json.decode((folder / "meta.json").read_bytes())
        self._names: list[str] = self.meta.pop("__columns__")
        self._mapped: dict[str, np.ndarray[Any, Any]] = {}

    def __getitem__(self, name: str) -> "np.ndarray[Any, Any]":
        if name not in self._names:
            raise KeyError(name)
        if name not in self._mapped:
            path = self.folder / f"{name}.npy"
            self._mapped[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        return self._mapped[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load(paths: Sequence[Path], reader: str, options: Options | None = None) -> Columns:
    """Return the columns of one artefact, which may consist of several files.

    Raises:
        InputError: A file is missing, damaged, hostile, or needs more than the limits allow.
    """
    import tempfile

    options = options or Options()
    # The same file by another path is the same entry.
    paths = [path.resolve() for path in paths]
    entry = cache_folder() / cache_key(paths, reader)
    if options.cache and (entry / "meta.json").exists():
        # Marks the entry as used, so that `prune` keeps it.
        os.utime(entry)
        return Columns(entry)
    entry.parent.mkdir(parents=True, exist_ok=True)
    # In the cache itself: a rename is one step only within a file system.
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=entry.parent))
    try:
        read_in_child(paths, reader, scratch, options.max_memory)
        if not options.cache:
            return detached_columns(scratch)
        publish(scratch, entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    prune(entry.parent, CACHE_BYTES)
    return Columns(entry)


def load_many(
    artefacts: Sequence[Sequence[Path]], reader: str, options: Options | None = None
) -> list[Columns | WorkbenchError]:
    """Return each artefact's columns, or the error: one bad file does not stop the others.

    Children that run at the same time share `max_memory` evenly; an artefact that needs more is read again, alone.
    """
    from concurrent.futures import ThreadPoolExecutor

    options = options or Options()
    workers = max(1, min(options.jobs, len(artefacts)))
    if workers == 1:
        return [load_or_error(paths, reader, options) for paths in artefacts]
    # A limit that holds for all must be divided before it is known who needs how much.
    shared = replace(options, max_memory=options.max_memory and options.max_memory // workers)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        loaded = list(pool.map(lambda paths: load_or_error(paths, reader, shared), artefacts))
    if shared.max_memory is None:
        return loaded
    return [
        load_or_error(paths, reader, options) if isinstance(result, LimitExceeded) else result
        for paths, result in zip(artefacts, loaded, strict=True)
    ]


def load_or_error(paths: Sequence[Path], reader: str, options: Options) -> Columns | WorkbenchError:
    """Return the columns of an artefact, or the error that reading it raised."""
    try:
        return load(paths, reader, options)
    except WorkbenchError as error:
        return error


def load_set(
    paths: Sequence[Path], reader: str, options: Options | None = None
) -> list[tuple[list[int], Columns | WorkbenchError]]:
    """Read many small files in one child; return [(indices into `paths`, columns)].

    Readers of sets report damaged files in `meta`. Where a file makes the child fail, the set is halved until the file
    is alone, so that one bad file of 1000 costs about 20 more children.
    """
    return load_part(list(range(len(paths))), paths, reader, options) if paths else []


def load_part(
    numbers: list[int], paths: Sequence[Path], reader: str, options: Options | None
) -> list[tuple[list[int], Columns | WorkbenchError]]:
    """Read the files with these indices in one child, or in halves where that fails."""
    result = load_or_error([paths[number] for number in numbers], reader, options or Options())
    if len(numbers) == 1 or not isinstance(result, WorkbenchError):
        return [(numbers, result)]
    half = len(numbers) // 2
    halves = (numbers[:half], numbers[half:])
    return [loaded for part in halves for loaded in load_part(part, paths, reader, options)]


def cache_folder() -> Path:
    """Return `$WORKBENCH_CACHE`, else `torch-workbench` in the user's cache folder."""
    if folder := os.environ.get("WORKBENCH_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-workbench"


def cache_key(paths: Sequence[Path], reader: str) -> str:
    """Return the name of a cache entry, which changes with any of the files and with the reader's version.

    Raises:
        InputError: A file is missing.
    """
    import hashlib  # openssl: megabytes that the child can do without, like the other late imports here

    module = importlib.import_module(reader)
    digest = hashlib.sha256(f"{reader} {module.VERSION}".encode())
    for path in paths:
        try:
            stat = path.stat()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}", "check the path") from error
        digest.update(f"\0{path}\0{stat.st_size}\0{stat.st_mtime_ns}".encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


def code_version(folder: Path) -> int:
    """Return a number that changes with any module in a folder: the `VERSION` of a reader whose answers they make."""
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py"))))


def publish(scratch: Path, entry: Path) -> None:
    """Publish what a child wrote, in one step; if another process was faster, its entry is as good."""
    try:
        scratch.rename(entry)
    except OSError:
        if not (entry / "meta.json").exists():
            raise


def detached_columns(scratch: Path) -> Columns:
    """Return columns that stay readable when their files are deleted, because all are mapped already."""
    columns = Columns(scratch)
    for name in columns:
        # Maps the column: from then on it needs no file name.
        columns[name]
    return columns


def prune(folder: Path, limit: int) -> None:
    """Delete the entries used longest ago until the rest fits into `limit` bytes; the newest one always stays.

    Other processes may do the same at the same time, so a file that has disappeared is no error.
    """
    entries = sorted((known for path in folder.iterdir() if (known := entry_of(path))), reverse=True)
    total = 0
    for number, (_, size, path) in enumerate(entries):
        total += size
        if total > limit and number:
            shutil.rmtree(path, ignore_errors=True)


def entry_of(path: Path) -> tuple[float, int, Path] | None:
    """Return (last used, bytes, path) of an entry; None for one that is being written, or was just deleted."""
    if path.name.startswith(SCRATCH) or not (path / "meta.json").exists():
        return None
    try:
        return path.stat().st_mtime, sum(file.stat().st_size for file in path.iterdir()), path
    except OSError:
        return None
