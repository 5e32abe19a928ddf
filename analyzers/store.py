"""Load artefacts as columns: read each in a child process under limits, store its columns in a cache, and map them.

An artefact is a file that a training run left behind; columns are arrays by name. A reader is a module with `VERSION:
int` and `read(paths: list[Path]) -> tuple[dict[str, ndarray], dict]`, which returns the columns and `meta`, a dict for
JSON. A reader is given as a dotted path, because this module must not import the analyzers. Artefacts can be hostile
and huge. The child process limits itself before it opens a file, and executes nothing in it. The columns are cached
under the identity of the files (path, size, time of change) and the reader's version.
"""

import contextlib
import importlib
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from analyzers import cache, cached_columns
from analyzers.cache import CacheFailure
from analyzers.cached_columns import Columns
from analyzers.child import ReaderKilled, ServerKilled, bytes_on_disk
from analyzers.errors import InputError, LimitExceeded, WorkbenchError
from analyzers.worker_pool import WorkerPool, can_fork, read_in_child

MANY_FILES = 100
"""The number of files above which an analyzer answers from the first ones while it reads the others."""
FIRST_FILES = 32
"""The number of files after which such an analyzer gives its first answer."""


class Progress:
    """The number of files that an analysis needs, and how many of them have been read or were in the cache.

    `sentence` is the verdict on the first `answered` files; empty if there is none yet.
    """

    def __init__(self) -> None:
        self.wanted = self.read = self.cached = self.failed = self.answered = 0
        self.sentence = ""
        # Threads wait for the processes that read.
        self._lock = threading.Lock()

    @property
    def is_awaited(self) -> bool:
        """Whether an answer from the first files would be shown now; otherwise it need not be computed."""
        return True

    @property
    def done(self) -> int:
        """The number of files that need not be read any more.

        It is never larger than the number of needed files, even if files were read again because reading a set of them
        failed.
        """
        return min(self.wanted, self.kept + self.failed)

    @property
    def kept(self) -> int:
        return self.read + self.cached

    def want(self, files: int) -> None:
        with self._lock:
            self.wanted += files

    def add(self, files: int, *, cached: bool) -> None:
        with self._lock:
            self.read += 0 if cached else files
            self.cached += files if cached else 0

    def fail(self, files: int) -> None:
        with self._lock:
            self.failed += files

    def answer(self, files: int, sentence: str) -> None:
        self.answered, self.sentence = files, sentence


def is_milestone(files: int, total: int, before: int | None = None) -> bool:
    """Return whether an analyzer should give a partial answer after `files` of its `total` files.

    Partial answers come after `FIRST_FILES`, 32, and then after 64, 128 and so on, so that all of them together cost
    about as much as the final one. `before` is the number of files at the previous question (None: one less). The final
    answer is no milestone, and an analysis of few files has none.
    """
    before = files - 1 if before is None else before
    return total > MANY_FILES and FIRST_FILES <= files < total and files.bit_length() > before.bit_length()


__all__ = ["Columns", "Options", "cache_key", "code_version", "load", "load_each", "load_many", "load_set"]

Read = Callable[[Sequence[Path], str, Path, int | None], None]
"""A function that reads files with a reader module into a folder, under a memory limit, such as `read_in_child`."""
ATTEMPTS, SERVERS = 3, 10
"""The number of children, and of servers, that may be killed from outside before a file is given up.

One cause is the system's out-of-memory killer. If it kills the server that forks the children, the reading of all files
stops at once, so there is no reason to suspect one of them. So more kills of servers are tolerated.
"""
FEW_FILES, _SMALL_FILE = 4, 256 << 10
"""Up to FEW_FILES files of at most SMALL_FILE bytes each are read one after the other (see `_are_small`)."""


@dataclass(frozen=True)
class Options:
    """Options that every analyzer takes besides its files.

        memory.analyze(snapshots, store.Options(rank=3, max_memory=4 << 30))

    `rank` and `step` select what is analysed (None: everything). `jobs` is how many child processes read at the same
    time; `max_memory` (bytes) limits all of them together (None: each is limited by its file's size). `cache=False`
    leaves nothing on the disk. `peak_flops` is the peak of the device in floating-point operations per second, for
    devices that are in no table of this project. `columns` are pairs such as ("loss", "train/nll"): which column of
    another trainer's log has which quantity. `workers` are processes, perhaps on other machines, that read artefacts in
    place of child processes. `progress` counts the files that have been read.
    """

    rank: int | None = None
    step: int | None = None
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    cache: bool = True
    max_memory: int | None = None
    peak_flops: float | None = None
    columns: tuple[tuple[str, str], ...] = ()
    workers: WorkerPool | None = None
    progress: Progress | None = field(default=None, compare=False)

    def count(self, paths: Sequence[Path], *, cached: bool) -> None:
        """Add the number of `paths` to the files that `progress` counts as read; do nothing if it is None.

        `cached` says that the cache had the content of these files, so that they were not read again.
        """
        if self.progress:
            self.progress.add(len(paths), cached=cached)


def load(paths: Sequence[Path], reader: str, options: Options | None = None, read: Read | None = None) -> Columns:
    """Return the content of an artefact as columns (arrays by name), from the cache or by reading its files.

    An artefact is something that a run left behind for an analyzer: `paths` has its file, or its files if they belong
    together. `reader` is the module that reads them, such as "analyzers.traces.digest", and `read` the function that
    runs this module (None: it runs in a child process).

    Raises:
        InputError: A file is missing, damaged, hostile, or needs more than the limits allow.
        CacheFailure: No folder, not even a temporary one, can be written.
    """
    options = options or Options()
    # The same file by another path is the same entry.
    paths = [path.resolve() for path in paths]
    key = cache_key(paths, reader)
    failed = cache.no_folder()
    for folder in cache.folders():
        try:
            return _load_through(folder / key, paths, reader, options, read)
        except CacheFailure as error:
            cache.give_up(folder, error)
            failed = error
    raise failed


def _load_through(entry: Path, paths: list[Path], reader: str, options: Options, read: Read | None) -> Columns:
    """Return the content of an artefact from the cache entry `entry`; create a missing entry from the files.

    `paths`, `reader` and `read` are the arguments of `load`.

    Raises:
        InputError: As for `load`.
        CacheFailure: The folder of the entry cannot be written.
    """

    def reread() -> Columns:
        return load(paths, reader, options)

    if options.cache and (columns := cached_columns.open_entry(entry, reread)):
        options.count(paths, cached=True)
        return columns
    with _read_columns(entry.parent, paths, reader, options.max_memory, read) as scratch:
        options.count(paths, cached=False)
        if not options.cache:
            return _detached_columns(Columns(scratch, reread))
        columns = cached_columns.publish(scratch, entry, reread)
    cache.prune_if_grown(entry)
    return columns


@contextlib.contextmanager
def _read_columns(
    folder: Path, paths: list[Path], reader: str, max_memory: int | None, read: Read | None
) -> Iterator[Path]:
    """Read the files with `read` (None: in a child process), and yield a new folder in `folder` with their columns.

    The new folder is deleted afterwards. If a child is killed from outside, the next child gets another folder, because
    the first one may still be writing.

    Raises:
        InputError: As for `load`; `ReaderKilled` if each of `ATTEMPTS` children was killed, or each of
            `SERVERS` servers.
    """
    left = {ReaderKilled: ATTEMPTS, ServerKilled: SERVERS}
    while True:
        scratch = cache.make_scratch(folder)
        try:
            try:
                (read or read_in_child)(paths, reader, scratch, max_memory)
            except ReaderKilled as error:
                left[type(error)] -= 1
                if not left[type(error)]:
                    raise
                continue
            yield scratch
            return
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def load_many(
    artefacts: Sequence[Sequence[Path]], reader: str, options: Options | None = None
) -> list[Columns | WorkbenchError]:
    """Return, for each artefact, its columns or its error, so that one damaged file does not stop the others.

    An artefact is a sequence of files that the module `reader` reads together. Children that run at the same time
    share `max_memory` evenly; an artefact that needs more is read again by itself.
    """
    return list(load_each(artefacts, reader, options))


def load_each(
    artefacts: Sequence[Sequence[Path]], reader: str, options: Options | None = None
) -> Iterator[Columns | WorkbenchError]:
    """Yield, for each artefact, its columns or its error, as `load_many` does, while others are still being read.

    `reader` is the dotted path of the module that reads them.
    """
    options = options or Options()
    if options.progress:
        options.progress.want(sum(map(len, artefacts)))
    parts = max(1, min(options.workers.size if options.workers else options.jobs, len(artefacts)))
    few = options.workers is None and len(artefacts) <= FEW_FILES
    if few and (parts == 1 or (can_fork() and _are_small(artefacts))):
        yield from (_load_or_error(paths, reader, options) for paths in artefacts)
        return
    # A limit that holds for all must be divided before it is known who needs how much.
    shared = replace(options, max_memory=options.max_memory and options.max_memory // parts)
    loaded = _load_in_threads(artefacts, reader, shared, parts)
    for paths, result in zip(artefacts, loaded, strict=True):
        is_too_small = isinstance(result, LimitExceeded) and shared.max_memory is not None
        yield _load_or_error(paths, reader, options) if is_too_small else result


def _load_in_threads(
    artefacts: Sequence[Sequence[Path]], reader: str, options: Options, count: int
) -> Iterator[Columns | WorkbenchError]:
    """Yield, for each artefact, its columns or its error; `count` of them are read at the same time.

    Each thread waits for a child process, or for a worker of `options.workers`, which reads an artefact with `reader`.
    """
    from concurrent.futures import ThreadPoolExecutor

    read = options.workers.read if options.workers else None
    with ThreadPoolExecutor(max_workers=count) as pool:
        try:
            yield from pool.map(lambda paths: _load_or_error(paths, reader, options, read), artefacts)
        except BaseException:
            # Ctrl-C: the threads need not wait for workers.
            if options.workers:
                options.workers.cancel()
            raise


def _are_small(artefacts: Sequence[Sequence[Path]]) -> bool:
    """Return whether all files are so small that reading a few of them one after the other is fastest.

    Otherwise they are read by threads. A process with threads cannot fork, so a server process forks in its place;
    starting the server takes a third of a second. This pays for many files, because a fork of the server is cheaper
    than a fork of a process that has already loaded the columns of hundreds of files.
    """
    sizes = [bytes_on_disk(path) for paths in artefacts for path in paths if path.exists()]
    return all(size <= _SMALL_FILE for size in sizes)


def _load_or_error(
    paths: Sequence[Path], reader: str, options: Options, read: Read | None = None
) -> Columns | WorkbenchError:
    """Return the content of an artefact as columns (arrays by name), or the error that reading it raised."""
    try:
        return load(paths, reader, options, read)
    except WorkbenchError as error:
        # Several files that one child reads are read again in parts.
        if len(paths) == 1 and options.progress:
            options.progress.fail(1)
        return error


Numbered = tuple[list[int], Columns | WorkbenchError]
"""Some files by their indexes in a list of paths, with their columns, or with the error that reading them raised."""


def load_set(paths: Sequence[Path], reader: str, options: Options | None = None, parts: int = 1) -> Iterator[Numbered]:
    """Yield (indexes in `paths`, columns of these files or error) for many small files, in the order of the files.

    The files are divided evenly into `parts` parts, and one child process reads each part; if there are several parts,
    `options.workers` read them. Readers of sets report damaged files in `meta`. If a file makes the child fail, its
    part is halved until this file is alone, so one bad file of 1000 costs about 20 more child processes.
    """
    options = options or Options()
    if parts == 1:
        # A single part is read as soon here as by a worker.
        options = replace(options, workers=None)
    bounds = [len(paths) * i // parts for i in range(parts + 1)] if paths else []
    numbers = [list(range(a, b)) for a, b in pairwise(bounds)]
    loaded = load_each([[paths[number] for number in part] for part in numbers], reader, options)
    for part, result in zip(numbers, loaded, strict=True):
        yield from _in_halves(part, paths, reader, options, result)


def _in_halves(
    numbers: list[int], paths: Sequence[Path], reader: str, options: Options, result: Columns | WorkbenchError
) -> Iterator[Numbered]:
    """Yield (indexes in `paths`, columns or error) for the files with these `numbers`, which one child read together.

    `result` is the result of this child. If it is an error, two children read a half of the files each, and so on,
    until the file that caused the error is alone.
    """
    if len(numbers) == 1 or not isinstance(result, WorkbenchError):
        yield numbers, result
        return
    half = len(numbers) // 2
    for part in (numbers[:half], numbers[half:]):
        again = _load_or_error([paths[number] for number in part], reader, options)
        yield from _in_halves(part, paths, reader, options, again)


def cache_key(paths: Sequence[Path], reader: str) -> str:
    """Return the name of the cache entry for these files; it changes if a file or the reader's version changes.

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
        # With the time of the last change, because a copy may keep size and modification time.
        digest.update(
            f"\0{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}".encode(errors="surrogateescape")
        )
    return digest.hexdigest()[:32]


def code_version(folder: Path) -> int:
    """Return a checksum of all Python modules in a folder, for a reader whose results depend on all of them.

    The reader uses it as its `VERSION`, so that a change of any of these modules makes cached results invalid.
    """
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py"))))


def _detached_columns(columns: Columns) -> Columns:
    """Load or memory-map all columns now and return them, so that they stay readable after their files are deleted."""
    for name in columns:
        # Maps the column: from then on it needs no file name.
        columns[name]
    return columns
