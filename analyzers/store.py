"""Artefact -> columns: read in a child process under limits, kept as `.npy` files, memory-mapped by everyone else.

A reader is a module with `VERSION: int` and `read(paths: list[Path]) -> tuple[dict[str, ndarray], dict]`: the columns
and a JSON-able `meta`. It is named by its dotted path because this floor must not import the rooms above it.
Artefacts can be hostile and huge. The child limits itself before it opens one, executes nothing, and what it wrote
is found again by the files' identity (path, size, time of change) and the reader's version.
"""

import importlib
import os
import shutil
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


@dataclass(frozen=True)
class Options:
    """How to read: what every analyzer takes beside its files.

    `jobs` children run at once; `max_memory` bounds all of them together, in bytes. None picks a bound for each from
    its file's size. `peak_flops` are the operations a second of a device that no table knows.
    """

    rank: int | None = None
    step: int | None = None
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    cache: bool = True
    max_memory: int | None = None
    peak_flops: float | None = None


class Columns(Mapping[str, "np.ndarray[Any, Any]"]):
    """The columns of an artefact, memory-mapped on first use, and its `meta`."""

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
    """The columns of one artefact, which may lie in several files.

    Raises:
        InputError: A file is missing, damaged, hostile, or needs more than the limits allow.
    """
    import tempfile

    options = options or Options()
    paths = [path.resolve() for path in paths]
    entry = cache_folder() / cache_key(paths, reader)
    if options.cache and (entry / "meta.json").exists():
        os.utime(entry)
        return Columns(entry)
    entry.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=entry.parent))
    try:
        read_in_child(paths, reader, scratch, options.max_memory)
        if not options.cache:
            return detached(scratch)
        keep(scratch, entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    prune(entry.parent, CACHE_BYTES)
    return Columns(entry)


def load_many(
    artefacts: Sequence[Sequence[Path]], reader: str, options: Options | None = None
) -> list[Columns | WorkbenchError]:
    """Each artefact's columns, or why it could not be read: one bad file does not stop the rest.

    Children that run at once share `max_memory` evenly; what its share is too small for is read again, alone.
    """
    from concurrent.futures import ThreadPoolExecutor

    options = options or Options()
    workers = max(1, min(options.jobs, len(artefacts)))
    if workers == 1:
        return [attempt(paths, reader, options) for paths in artefacts]
    shared = replace(options, max_memory=options.max_memory and options.max_memory // workers)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        loaded = list(pool.map(lambda paths: attempt(paths, reader, shared), artefacts))
    if shared.max_memory is None:
        return loaded
    return [
        attempt(paths, reader, options) if isinstance(one, LimitExceeded) else one
        for paths, one in zip(artefacts, loaded, strict=True)
    ]


def attempt(paths: Sequence[Path], reader: str, options: Options) -> Columns | WorkbenchError:
    try:
        return load(paths, reader, options)
    except WorkbenchError as error:
        return error


def load_set(
    paths: Sequence[Path], reader: str, options: Options | None = None
) -> list[tuple[list[int], Columns | WorkbenchError]]:
    """Many small files through one child: [(their numbers in `paths`, columns)].

    Readers of sets report damaged files in `meta`. Should one take the child down, its half is read in halves again, so
    that one of thousands costs a few children more.
    """
    return load_part(list(range(len(paths))), paths, reader, options) if paths else []


def load_part(
    numbers: list[int], paths: Sequence[Path], reader: str, options: Options | None
) -> list[tuple[list[int], Columns | WorkbenchError]]:
    found = attempt([paths[number] for number in numbers], reader, options or Options())
    if len(numbers) == 1 or not isinstance(found, WorkbenchError):
        return [(numbers, found)]
    half = len(numbers) // 2
    return [one for part in (numbers[:half], numbers[half:]) for one in load_part(part, paths, reader, options)]


def cache_folder() -> Path:
    """`$WORKBENCH_CACHE`, else `torch-workbench` in the user's cache folder."""
    if chosen := os.environ.get("WORKBENCH_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-workbench"


def cache_key(paths: Sequence[Path], reader: str) -> str:
    """Changes when a file or the reader's version does."""
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


def keep(scratch: Path, entry: Path) -> None:
    """Publish what a child wrote; whoever comes second finds the entry there and loses nothing."""
    try:
        scratch.rename(entry)
    except OSError:
        if not (entry / "meta.json").exists():
            raise


def detached(scratch: Path) -> Columns:
    """Columns whose files are gone from the disk already; the mappings keep them readable."""
    columns = Columns(scratch)
    for name in columns:
        columns[name]
    return columns


def prune(folder: Path, limit: int) -> None:
    """Delete the entries used longest ago until the rest fits into `limit` bytes; others may do the same meanwhile."""
    entries = sorted((known for path in folder.iterdir() if (known := entry_of(path))), reverse=True)
    total = 0
    for number, (_, size, path) in enumerate(entries):
        total += size
        if total > limit and number:
            shutil.rmtree(path, ignore_errors=True)


def entry_of(path: Path) -> tuple[float, int, Path] | None:
    """(last used, bytes, path) of an entry; None for what is being read into, or has just gone."""
    if path.name.startswith(SCRATCH) or not (path / "meta.json").exists():
        return None
    try:
        return path.stat().st_mtime, sum(file.stat().st_size for file in path.iterdir()), path
    except OSError:
        return None
