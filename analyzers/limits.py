"""Limit the memory and processor time that computations in this process spend on the data of artefacts.

A file of some megabytes can claim 20,000 process groups, or a rank and a step for each line: small to read, but
expensive to compare. The child process that reads a file has limits of its own (`child`); computations after reading
are limited here.
"""

import contextlib
import ctypes
import resource
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from analyzers.child import ENFORCED, LEAST_MEMORY, bytes_on_disk, memory_of_machine, unpacked_factor, watch_memory
from analyzers.errors import LimitExceeded
from analyzers.words import duration, size

_ANALYSIS_MEMORY = 2 << 30
_ANALYSIS_S = 40
BYTES_PER_S = 1_000_000
"""The number of bytes of its files for each of which an analysis gets a second of processor time.

It gets `_ANALYSIS_S` seconds in addition. Real recordings take far less.
"""
_WATCH_EVERY_S = 0.5
PAGE = resource.getpagesize()


class OutOfTime(BaseException):
    """Raised if the processor time is used up; it is no `Exception`, so that no `except Exception` catches it."""


@contextlib.contextmanager
def limited(what: str, files: Iterable[Path], max_memory: int | None = None, share: float = 1.0) -> Iterator[None]:
    """Limit the memory and processor time that the body of a `with` may use to compute something from `files`.

    Without `max_memory` (bytes) the limit is 2 GiB plus eight times the size of the files (48 times if they are
    gzipped). The body may use the fraction `share` of the processor time that these files allow. `what` names the work
    in the error. Blocks may be nested: the time of an inner block does not count for the outer one.

    Raises:
        LimitExceeded: The body needs more memory or time than that.
        MemoryError: The user's own limit of the address space (`ulimit -v`) is smaller, and the body needs more.
    """
    files = list(files)
    file_bytes = sum(_present_bytes(path) for path in files)
    wanted = max_memory or _ANALYSIS_MEMORY + file_bytes * unpacked_factor(files)
    memory = min(max(wanted, LEAST_MEMORY), memory_of_machine())
    seconds = share * (_ANALYSIS_S + file_bytes / BYTES_PER_S)
    space_left = _address_space_left()
    try:
        with _limited_memory(memory), limited_time(seconds):
            yield
    except MemoryError as error:
        # Then the user's limit was reached and not ours: the caller names it.
        if space_left < memory:
            raise
        why = f"{what}: the analysis needs more than {size(memory)} of memory"
        hint = "raise --max-memory if you trust the files, or select with --rank and --step"
        raise LimitExceeded(why, hint) from error
    except OutOfTime as error:
        why = f"{what}: the analysis takes more than {duration(seconds)} of processor time"
        raise LimitExceeded(why, "select with --rank and --step, and check that these are real recordings") from error


def _present_bytes(path: Path) -> int:
    """Return the bytes that a file occupies on the disk; 0 if it no longer exists."""
    try:
        return bytes_on_disk(path)
    except OSError:
        return 0


_LOCK = threading.Lock()
_CEILINGS: dict[object, int] = {}
"""{running `_limited_memory` block: bytes of data that the process may have}; the largest number is in force."""


@contextlib.contextmanager
def _limited_memory(memory: int) -> Iterator[None]:
    """Let the data of this process grow by at most `memory` bytes in the body of a `with`.

    Data is memory that the process allocates; columns are mapped from files and do not count.
    """
    if not ENFORCED:
        with _watched_memory(memory):
            yield
        return
    block = object()
    with _LOCK:
        _CEILINGS[block] = _data_bytes() + memory
        _apply_ceilings()
    try:
        yield
    finally:
        with _LOCK:
            del _CEILINGS[block]
            _apply_ceilings()


@contextlib.contextmanager
def _watched_memory(memory: int) -> Iterator[None]:
    """Raise MemoryError in the body of a `with` once this process has grown by `memory` bytes.

    This is for systems that enforce no limit: a thread checks the memory ten times a second. Pages of mapped columns
    also count.
    """
    worker = threading.get_ident()
    ended = watch_memory(memory, lambda: _raise_in(worker, MemoryError))
    try:
        yield
    finally:
        ended.set()


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an error of this class in the thread with this id, at its next bytecode.

    A long call of NumPy is therefore not interrupted; the error is raised when it returns.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def _data_bytes() -> int:
    return _mapped_bytes(5)


def _address_space_left() -> float:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return float("inf") if soft == resource.RLIM_INFINITY else soft - _mapped_bytes(0)


def _mapped_bytes(field: int) -> int:
    """Return a field of Linux's `/proc/self/statm` (0: all memory, 5: data and stack) in bytes; 0 on other systems."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[field]) * PAGE
    except OSError:
        return 0


def _apply_ceilings() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # The system has one limit for all threads, and a smaller one would stop the analysis with the larger.
    wanted = max(_CEILINGS.values(), default=hard)
    # The hard limit stays: once lowered, it could not be raised again.
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextlib.contextmanager
def limited_time(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` in the body of a `with` once it has used `seconds` of processor time."""
    if threading.current_thread() is threading.main_thread():
        with _limited_time_of_process(seconds):
            yield
    else:
        with _limited_time_of_thread(seconds):
            yield


@contextlib.contextmanager
def _limited_time_of_process(seconds: float) -> Iterator[None]:
    """Limit the processor time of the body of a `with` by a system timer, without a second thread.

    While there is a second thread, no file can be read in a fork of this process, which is the fastest way.
    """
    handler = signal.signal(signal.SIGVTALRM, _give_up)
    left, _ = signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        # The time of an outer block goes on from where it was.
        signal.setitimer(signal.ITIMER_VIRTUAL, left)
        signal.signal(signal.SIGVTALRM, handler)


def _give_up(*_: object) -> None:
    raise OutOfTime


@contextlib.contextmanager
def _limited_time_of_thread(seconds: float) -> Iterator[None]:
    """Limit the processor time of the body of a `with` that runs in a thread other than the main thread.

    A second thread watches the time, because the signal of a timer would reach only the main thread.
    """
    ended = threading.Event()
    worker = threading.get_ident()
    clock = time.pthread_getcpuclockid(worker)
    limit = time.clock_gettime(clock) + seconds

    def watch() -> None:
        while not ended.wait(_WATCH_EVERY_S):
            if time.clock_gettime(clock) > limit:
                _raise_in(worker, OutOfTime)
                return

    watcher = threading.Thread(target=watch, name="limit of processor time", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
