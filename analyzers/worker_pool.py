"""Read artefacts with the workers of an executor, which may be on other machines that share no disk with this one.

A worker returns the files of a cache entry as bytes, which are put into the cache here. If a worker is lost, does not
have this version of the reader, or cannot read an artefact for any reason, the artefact is read here. So columns and
errors are always the same as those of a local run.
"""

import importlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

from analyzers import cache
from analyzers.child import (
    DONE,
    ChildExit,
    Task,
    bytes_on_disk,
    explain,
    memory_of_machine,
    prepare,
    run_forked,
    run_in_new_interpreter,
    unpacked_factor,
)
from analyzers.errors import WorkbenchError

if TYPE_CHECKING:
    from concurrent.futures import Executor


BYTES_PER_S = 1_000_000
"""The number of bytes for each of which a reader gets one second of processor time, in addition to 20 s.

Real recordings take far less. A reader that does more work per byte defines a smaller `BYTES_PER_S` in its module.
"""


def read_in_child(paths: Sequence[Path], reader: str, target: Path, max_memory: int | None) -> None:
    """Read `paths` with the module `reader` in a child process, which writes the columns to the folder `target`.

    Without `max_memory` (bytes) a child gets 1 GiB plus eight times the size of its files, or 48 times if they are
    gzipped: JSON and pickles grow that much as Python objects.

    Raises:
        InputError: The file is missing, damaged, hostile, or needs more than the limits allow.
    """
    file_bytes = sum(bytes_on_disk(path) for path in paths)
    wanted = (1 << 30) + file_bytes * unpacked_factor(paths)
    memory = min(max_memory or wanted, memory_of_machine())
    speed = getattr(importlib.import_module(reader), "BYTES_PER_S", BYTES_PER_S)
    task = Task(reader, target, paths, memory, seconds=20 + file_bytes // speed)
    ended = _run_in_child(task)
    if ended.status != DONE:
        raise explain(ended, task)


def _run_in_child(task: Task) -> ChildExit:
    """Run a task in a child process, and return how the child ended.

    The child is a fork of this process if this process has a single thread, because starting a Python interpreter takes
    longer than reading a small file. With more threads a server process forks in its place: another thread may hold a
    lock, such as that of the logging module, which would never be released in a fork. Readers of other packages, and
    systems other than Linux, get a new interpreter.
    """
    ours = task.reader.startswith("analyzers.")
    if can_fork():
        if ours:
            # Once here, not in each child: importing takes several times as long as reading a small file.
            prepare(task.reader)
        return run_forked(task)
    if ours and sys.platform == "linux":
        from analyzers.reader_server import run_by_server

        return run_by_server(task)
    return run_in_new_interpreter(task)


def can_fork() -> bool:
    return sys.platform == "linux" and threading.active_count() == 1


EntryFiles = tuple[tuple[str, bytes], ...]
"""The files of a cache entry: their names and contents."""
_SENT_AT_MOST = 256 << 20
"""The most bytes of an artefact that are sent to a worker which cannot see its files; larger ones are read here."""
_ASKED_EVERY_S = 0.5
GIVEN_UP_S = 60.0
"""The seconds that artefacts wait if there is no worker: a cluster may be replacing workers that it has lost."""


class Refusal(Enum):
    """The reason why a worker has not read an artefact."""

    OTHER_FILES = auto()
    """The worker does not see these files, or sees different files at their paths."""
    OTHER_VERSION = auto()
    UNREADABLE = auto()


@dataclass(frozen=True)
class Order:
    """A request to a worker: files, with a reader module of a certain version, under a memory limit in bytes.

    `identities` has the size and the time of change of each file, by which a worker checks that it sees the same files.
    If `contents` is given, it is read in place of the files.
    """

    paths: tuple[Path, ...]
    identities: tuple[tuple[int, int], ...]
    reader: str
    version: int
    max_memory: int | None
    contents: tuple[bytes, ...] | None = None


def read_order(order: Order) -> EntryFiles | Refusal:
    """Read the files of `order`, one unit of work for a worker; this function runs in the worker.

    Return the names and contents of the files of the resulting cache entry, because the worker may share no disk with
    the caller. If the worker cannot read the files, return a `Refusal`.
    """
    if order.version != importlib.import_module(order.reader).VERSION:
        return Refusal.OTHER_VERSION
    try:
        with _scratch_folder() as here:
            paths = written(order, here) if order.contents is not None else order.paths
            if order.contents is None and identities(paths) != order.identities:
                return Refusal.OTHER_FILES
            target = here / "entry"
            target.mkdir()
            read_in_child(paths, order.reader, target, order.max_memory)
            return tuple((path.name, path.read_bytes()) for path in sorted(target.iterdir()))
    except (WorkbenchError, OSError):
        # Whoever ordered reads it again, and gets the error with the right path.
        return Refusal.UNREADABLE


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    """Yield a new folder in the first cache folder that can be written, and delete the new folder afterwards.

    If this process is killed before that, a later pruning of the cache deletes it.
    """
    folder = cache.make_scratch(next(cache.folders()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def written(order: Order, folder: Path) -> tuple[Path, ...]:
    """Write the contents of an order to files with the same names in `folder`, and return their paths."""
    paths = []
    for number, (path, content) in enumerate(zip(order.paths, order.contents or (), strict=True)):
        copy = folder / str(number) / path.name
        copy.parent.mkdir()
        copy.write_bytes(content)
        paths.append(copy)
    return tuple(paths)


def identities(paths: Sequence[Path]) -> tuple[tuple[int, int], ...]:
    """Return the size and the time of change of each file; empty if one of them does not exist."""
    try:
        return tuple((status.st_size, status.st_mtime_ns) for status in (path.stat() for path in paths))
    except OSError:
        return ()


class Stopped(Exception):  # never seen by a user
    """Reading was cancelled."""


class WorkerPool:
    """The workers of an executor, as readers of artefacts.

    `size` is how many artefacts the workers read at the same time. `jobs` is how many artefacts this process's own
    children read at the same time if workers cannot read them. `has_workers` is a function that returns whether the
    executor has any workers now, and raises an error if the executor is lost. `report` is a function that is called
    once for each kind of failure that makes artefacts be read here.
    """

    def __init__(
        self,
        executor: "Executor",
        size: int,
        jobs: int,
        has_workers: Callable[[], bool],
        report: Callable[[Refusal | BaseException], object],
    ) -> None:
        self.size = size
        self._executor, self._has_workers, self._report = executor, has_workers, report
        self._local = threading.BoundedSemaphore(jobs)
        self._stopped = threading.Event()
        self._reported: set[object] = set()
        self._blind = False
        self._seen = time.monotonic()

    def read(self, paths: Sequence[Path], reader: str, target: Path, max_memory: int | None) -> None:
        """Let a worker read `paths` with the module `reader`, and write the columns to the folder `target`.

        If no worker can read them, a child process of this process does, limited to `max_memory` bytes (None: by the
        size of the files).

        Raises:
            InputError: As for `read_in_child`.
        """
        files = self._ordered(paths, reader, max_memory)
        if files is not None:
            for name, content in files:
                # Only the last part of the name: an answer must not write outside of the folder.
                (target / Path(name).name).write_bytes(content)
            return
        with self._local:
            if self._stopped.is_set():
                raise Stopped
            read_in_child(paths, reader, target, max_memory)

    def cancel(self) -> None:
        """Cancel all orders; artefacts that have not been read yet stay unread."""
        self._stopped.set()
        self._executor.shutdown(wait=False)

    def _ordered(self, paths: Sequence[Path], reader: str, max_memory: int | None) -> EntryFiles | None:
        """Return (name, content) of each file of the cache entry that a worker made of an artefact; None if none did.

        In the second case the artefact must be read here. A worker that does not see the files gets their contents if
        these are small.
        """
        version: int = importlib.import_module(reader).VERSION
        order = Order(tuple(paths), identities(paths), reader, version, max_memory)
        result: EntryFiles | Refusal = Refusal.OTHER_FILES
        # A file is missing: to read it here gives the right error.
        if not order.identities:
            return None
        try:
            if not self._blind:
                result = self._result(order)
            if result is Refusal.OTHER_FILES and sum(size for size, _ in order.identities) <= _SENT_AT_MOST:
                # Workers that do not see one file hardly see the next: no round trip for each.
                self._blind = True
                result = self._result(replace(order, contents=tuple(path.read_bytes() for path in paths)))
        except Stopped:
            raise
        except BaseException as error:  # noqa: BLE001  # whatever an executor raises, the artefact can be read here
            self._report_once(type(error), error)
            return None
        if isinstance(result, Refusal):
            self._report_once(result, result)
            return None
        return result

    def _result(self, order: Order) -> EntryFiles | Refusal:
        """Send an order to a worker, and return what it answers.

        Raises:
            Stopped: Reading was cancelled.
            TimeoutError: There has been no worker for too long.
        """
        if self._stopped.is_set():
            raise Stopped
        self._look_for_workers()
        future = self._executor.submit(read_order, order)
        while True:
            try:
                return future.result(timeout=_ASKED_EVERY_S)
            except BaseException:
                if self._stopped.is_set():
                    raise Stopped from None
                # Otherwise only the time of this wait was over.
                if future.done():
                    raise
            try:
                self._look_for_workers()
            except TimeoutError:
                future.cancel()
                raise

    def _look_for_workers(self) -> None:
        """Raise TimeoutError if there has been no worker for too long.

        The waiting time is shared by all artefacts: the first one waits, and the next ones are read here at once.
        """
        if self._has_workers():
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > GIVEN_UP_S:
            raise TimeoutError("there is no worker")

    def _report_once(self, kind: object, what: Refusal | BaseException) -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            self._report(what)
