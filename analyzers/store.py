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
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from analyzers import cache
from analyzers.cache import CacheFailure, Columns
from analyzers.child import read_in_child
from analyzers.errors import InputError, LimitExceeded, WorkbenchError

__all__ = ["Columns", "Options", "cache_key", "code_version", "load", "load_many", "load_set"]


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


def load(paths: Sequence[Path], reader: str, options: Options | None = None) -> Columns:
    """Return the columns of one artefact, which may consist of several files.

    Raises:
        InputError: A file is missing, damaged, hostile, or needs more than the limits allow.
        CacheFailure: There is no folder, not even a temporary one, that what is read can be written to.
    """
    options = options or Options()
    # The same file by another path is the same entry.
    paths = [path.resolve() for path in paths]
    key = cache_key(paths, reader)
    failed = CacheFailure("no folder can be written to", "set WORKBENCH_CACHE to a folder of yours")
    for folder in cache.folders():
        try:
            return load_through(folder / key, paths, reader, options)
        except CacheFailure as error:
            cache.give_up(folder, error)
            failed = error
    raise failed


def load_through(entry: Path, paths: list[Path], reader: str, options: Options) -> Columns:
    """Return the columns of an artefact from an entry of a cache, which is written first if there is none.

    Raises:
        InputError: As for `load`.
        CacheFailure: The folder of the entry cannot be written.
    """

    def reread() -> Columns:
        return load(paths, reader, options)

    if options.cache and (columns := cache.open_entry(entry, reread)):
        return columns
    scratch = cache.make_scratch(entry.parent)
    try:
        read_in_child(paths, reader, scratch, options.max_memory)
        if not options.cache:
            return detached_columns(Columns(scratch, reread))
        columns = cache.publish(scratch, entry, reread)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    cache.prune(entry.parent, cache.limit_bytes(entry.parent))
    return columns


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


def detached_columns(columns: Columns) -> Columns:
    """Return columns that stay readable when their files are deleted, because all are mapped already."""
    for name in columns:
        # Maps the column: from then on it needs no file name.
        columns[name]
    return columns
