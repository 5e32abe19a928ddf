"""Write the files of a recorder so that no failure reaches the job, and so that writing costs the job little.

Disks fill up, quotas end, folders are deleted or become read-only, and a script may close all descriptors. Then a
recording is incomplete, and the job continues as if there were no recorder: a note on stderr says so, once.

No file is mapped into memory. Where the disk has no room for a page of a mapped file, or where somebody truncates the
file, the kernel ends the process with SIGBUS; a `pwrite` returns an error instead.
"""

import errno
import fcntl
import functools
import json
import os
import resource
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import sleep  # by name: a script may replace that of the module, and this thread would run without a pause
from typing import ParamSpec, TypeVar
from weakref import ref

from workbench.recorders import signals
from workbench.recorders.files import private_opener, require_room, write_bytes

Params = ParamSpec("Params")
Result = TypeVar("Result")

_HIGHEST_DESCRIPTOR = 1024
"""The descriptors of recorders are below this number, because `select` accepts no others."""
_DESCRIPTORS = 128
"""The number of descriptors below the highest one that recorders use."""
_CATCH_UP_S = 0.1
_noted: list[str] = []


def note(text: str) -> None:
    """Print a line on stderr; do nothing where stderr is closed or cannot be written."""
    with signals.ignoring(Exception):
        if sys.stderr is not None:
            line = f"workbench: {text}"
            with signals.ignoring(ValueError, AttributeError):  # no file of the system
                status = os.fstat(sys.stderr.fileno())
                if stat.S_ISREG(status.st_mode):
                    require_room(status.st_size + len(line.encode(errors="replace")) + 1)
            print(line, file=sys.stderr, flush=True)


def note_failure(error: BaseException) -> None:
    """Print why something is not recorded, unless this process has printed such a line before.

    Raises:
        BaseException: The error comes from the script, such as from its handler of a signal.
    """
    signals.raise_of_script(error)
    kind, why = type(error).__name__, str(error)
    if isinstance(error, OSError):
        # Not the system's sentence, such as that of a full disk: in the log of a job that fails later it would look
        # like the cause.
        kind, why = "OSError", f"{error.filename}"
    _noted.append(kind)
    if len(_noted) == 1:
        code = errno.errorcode.get(getattr(error, "errno", None) or 0, kind)
        note(f"not recorded, and the job continues ({code}: {why})")


def harmless(function: Callable[Params, Result]) -> Callable[Params, Result | None]:
    """Return a function that does the same, but notes an exception instead of raising it, and then returns None.

    It is for what a recorder does in a job, not for functions that call the job's own code.
    """

    @functools.wraps(function)
    def run(*args: Params.args, **kwargs: Params.kwargs) -> Result | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001
            note_failure(error)
            return None

    return run


def save_bytes(path: Path, content: bytes) -> bool:
    """Write a file atomically and return True; if it cannot be written, note why, leave nothing, and return False."""
    try:
        write_bytes(path, content)
    except OSError as error:
        error.filename = str(path)
        note_failure(error)
        return False
    return True


def save_json(path: Path, value: object) -> bool:
    """Write `value` as indented JSON like `save_bytes`."""
    return save_bytes(path, json.dumps(value, indent=1).encode() + b"\n")


def make_folder(path: Path) -> bool:
    """Create a folder and its parents; return whether it exists now. A failure is noted."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        note_failure(error)
        return False
    return True


def remove_file(path: Path) -> None:
    """Delete a file if it exists and can be deleted."""
    with signals.ignoring(OSError):
        path.unlink()


class OwnFile:
    """A regular file that a recorder keeps open; it is written only as long as the descriptor is still that file.

    A script may close all descriptors, as daemons do, and the next file that it opens gets the number of ours. So each
    write first compares device and inode. If they differ, the file is opened again by its path; if the path is another
    file by now, nothing more is written. faulthandler, which writes from C, cannot compare: for its sake the descriptor
    has a high number, which the system gives to no other file before all lower ones are in use.
    """

    def __init__(self, path: Path, *, append: bool = False) -> None:
        self._path, self._flags = path, os.O_APPEND if append else 0
        self._fd = self._device = self._inode = -1
        self._size = 0
        self._is_torn = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open(os.O_CREAT | (0 if append else os.O_TRUNC))
        except OSError as error:
            note_failure(error)

    @property
    def descriptor(self) -> int:
        """The descriptor of the file, after a check that it is still this file; -1 if it cannot be written any more."""
        if self._fd < 0:
            return -1
        try:
            status = os.fstat(self._fd)
            if status.st_ino == self._inode and status.st_dev == self._device:
                self._size = status.st_size
                return self._fd
        except OSError as error:
            signals.raise_of_script(error)
        self._fd = -1
        with signals.ignoring(OSError):
            self._open(0)
        return self._fd

    def append(self, lines: bytes | bytearray) -> bool:
        """Write whole lines to the end of the file, and return whether all were written; a failure is noted.

        If only a part was written, what is written next begins with a new line, so that readers lose only that part.
        """
        fd = self.descriptor
        if fd < 0:
            return False
        lines = b"\n" + lines if self._is_torn else lines
        try:
            require_room(self._size + len(lines))
            written = os.write(fd, lines)
        except OSError as error:
            note_failure(self._named(error))
            return False
        self._is_torn = written < len(lines)
        return not self._is_torn

    def put(self, content: bytes, offset: int) -> bool:
        """Write bytes in place, and return whether all were written; a failure is noted, and no part remains."""
        fd = self.descriptor
        if fd < 0:
            return False
        try:
            if offset + len(content) > self._size:
                require_room(offset + len(content))
            written = os.pwrite(fd, content, offset)
            if written < len(content):
                os.pwrite(fd, bytes(written), offset)
        except OSError as error:
            note_failure(self._named(error))
            return False
        return written == len(content)

    def remove(self) -> None:
        if self.descriptor >= 0:
            self.close()
            remove_file(self._path)

    def _named(self, error: OSError) -> OSError:
        error.filename = str(self._path)
        return error

    def close(self) -> None:
        """Close the descriptor if it is still this file."""
        fd = self.descriptor
        self._fd = -1
        if fd >= 0:
            with signals.ignoring(OSError):
                os.close(fd)

    def _open(self, flags: int) -> None:
        fd = private_opener(str(self._path), os.O_RDWR | self._flags | flags)
        status = os.fstat(fd)
        if self._inode >= 0 and (self._device, self._inode) != (status.st_dev, status.st_ino):
            os.close(fd)
            raise FileExistsError(errno.EEXIST, "another file", str(self._path))
        self._fd, self._device, self._inode = high_descriptor(fd), status.st_dev, status.st_ino
        self._size = status.st_size


def high_descriptor(descriptor: int) -> int:
    """Give a descriptor a high number and return it; return the same number if there is no free one."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    highest = _HIGHEST_DESCRIPTOR if soft == resource.RLIM_INFINITY else min(soft, _HIGHEST_DESCRIPTOR)
    try:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(highest - _DESCRIPTORS, highest // 2))
    except OSError as error:
        signals.raise_of_script(error)
        return descriptor
    os.close(descriptor)
    return high


class Backlog:
    """Paces the writes of a recorder, so that a job with very short steps does not spend its time in them.

    The recorder stores what is to be written, and calls `write` if the time `earliest_ns` (Unix time) has come. This
    calls `drain`, which writes all that is stored: at once for the first `burst` times, and afterwards at most once per
    `interval_s`. What remains is written by a thread within 0.1 s, also if the main thread is stuck in C meanwhile.
    """

    def __init__(self, drain: Callable[[], None], *, interval_s: float, burst: int) -> None:
        self._drain = drain
        self._interval_ns = round(interval_s * 1e9)
        self._ahead_ns = burst * self._interval_ns
        self._regular_ns = 0
        self.earliest_ns = 0
        self._lock = threading.Lock()
        self._is_watched = _watch(self)

    def write(self, now_ns: int) -> None:
        """Write what is stored; `now_ns` is Unix time."""
        # The leaky bucket as a meter (ITU-T I.371, GCRA): `_regular_ns` is when the next write would be at a regular
        # pace, and a write may be early by `_ahead_ns`.
        self._regular_ns = max(self._regular_ns, now_ns) + self._interval_ns
        if self._is_watched:
            self.earliest_ns = self._regular_ns - self._ahead_ns
        self.flush()

    def flush(self) -> None:
        """Write what is stored now, unless another thread is doing so."""
        # Never waits: the thread that holds the lock may wait for a disk.
        if self._lock.acquire(blocking=False):
            try:
                self._drain()
            except Exception as error:  # noqa: BLE001
                note_failure(error)
            finally:
                self._lock.release()


_backlogs: "list[ref[Backlog]]" = []
_writing_process = 0
"""The process in which a thread writes what backlogs leave; 0 before the first."""


def _watch(backlog: Backlog) -> bool:
    """Let the thread of this process write what `backlog` leaves; return False if no thread can be started."""
    global _writing_process  # noqa: PLW0603
    if _writing_process != os.getpid():  # a forked child has no threads but one
        _backlogs.clear()
        if not signals.start_thread(_catch_up):
            return False
        _writing_process = os.getpid()
    _backlogs[:] = [*(known for known in _backlogs if known()), ref(backlog)]
    return True


def _catch_up() -> None:
    while True:
        sleep(_CATCH_UP_S)
        for known in _backlogs:
            if backlog := known():
                backlog.flush()
