"""Read an artefact, which can be hostile and huge, in a child process that limits its own memory and time first.

The child is a fork of this process, or a new interpreter.
"""

import contextlib
import ctypes
import functools
import gc
import importlib
import os
import resource
import select
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, NoReturn

import msgspec

from analyzers.cache import CacheFailure
from analyzers.cached_columns import write_entry
from analyzers.errors import HostileInput, InputError, LimitExceeded, WorkbenchError
from analyzers.files import json_bytes
from analyzers.words import duration, size

if TYPE_CHECKING:
    import socket

PACKAGE_ROOT = Path(__file__).resolve().parent.parent
_SPARSE_AT_LEAST = 1 << 20
"""The size in bytes up to which a file is not checked for holes.

The bytes of a small file may be compressed, or be stored in its inode, so that it seems to have holes.
"""
LEAST_MEMORY = 256 << 20
_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
ENFORCED = sys.platform == "linux"
"""Whether the operating system can limit a process's memory; if not (macOS), a thread watches the memory."""
_WATCH_EVERY_S = 0.1
WALL_S, WALL_FACTOR = 300, 10
"""The limit of a child's wall time is WALL_S seconds plus WALL_FACTOR times its limit of processor time.

It may be much longer than the processor time, because a disk may hang and a machine may be busy.
"""
KILLS = frozenset({-signal.SIGKILL, -signal.SIGTERM})
"""The exit statuses of a child that was killed by another program; our own limits end a child in other ways."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_ARRAY, _KEPT_BYTES = 32 << 20, 256 << 20
"""glibc keeps arrays of up to `_KEPT_ARRAY` bytes in the heap, and at most `_KEPT_BYTES` of free memory at its end."""
DONE, CRASHED, FAILED, TIMED_OUT, SERVER_KILLED = 0, 1, 3, 124, 137
"""The exit statuses of a child.

FAILED says that something is wrong with the input, CRASHED that something is wrong with the reader. SERVER_KILLED says
that the server which forks the children was killed, and all of them with it.
"""


@dataclass(frozen=True)
class Task:
    """The work of a child process: read `paths` with the module `reader`, and write the columns to the folder `target`.

    Its limits are `memory` (bytes of address space) and `seconds` (of processor time).
    """

    reader: str
    target: Path
    paths: Sequence[Path]
    memory: int
    seconds: int

    @property
    def wall_s(self) -> int:
        """The seconds of wall time after which the child is killed, whatever it waits for."""
        return WALL_S + WALL_FACTOR * self.seconds


class ReaderKilled(LimitExceeded):
    """Raised if the child process that read the input was killed from outside, so that reading again may succeed."""


class ServerKilled(ReaderKilled):
    """Raised if the server process that forks the readers was killed from outside, and with it all of these readers."""


class ChildExit(NamedTuple):
    """The end of a child process: its exit status (negative if a signal ended it), and the message that it wrote."""

    status: int
    message: bytes


def unpacked_factor(paths: Iterable[Path]) -> int:
    """Return how many bytes of memory a reader may use per byte of these files: 8, or 48 if one of them is gzipped."""
    return 48 if any(path.suffix == ".gz" for path in paths) else 8


def bytes_on_disk(path: Path) -> int:
    """Return the bytes that a file occupies on the disk.

    A sparse file may claim to have terabytes although it has only a few bytes of data.
    """
    status = path.stat()
    return min(status.st_size, max(status.st_blocks * 512, _SPARSE_AT_LEAST))


@functools.cache
def memory_of_machine() -> int:
    """Return the most bytes that a child may use: three quarters of the machine's memory, or of the container's."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CONTAINER_LIMITS:
        # Version 2 of cgroups writes `max` if there is no limit, which is no number.
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(path.read_text()))
    return max(LEAST_MEMORY, min(limits) // 4 * 3)


def interpreter(module: str) -> tuple[list[str], dict[str, str]]:
    # An empty entry of PYTHONPATH is the working folder, whose modules could hide those of the standard library.
    search = [str(PACKAGE_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    # -P: a module in the working folder must not be imported in place of ours.
    command = [sys.executable, "-P", "-m", module]
    # Further threads of OpenBLAS would count towards the limit of address space, and a server with threads must not
    # fork.
    return command, os.environ | {"PYTHONPATH": os.pathsep.join(search), "OPENBLAS_NUM_THREADS": "1"}


def run_in_new_interpreter(task: Task) -> ChildExit:
    """Run a task in a new Python process, and return how this process ended."""
    import subprocess

    command, environment = interpreter("analyzers.child")
    limits = str(task.memory), str(task.seconds)
    try:
        child = subprocess.run(  # noqa: PLW1510  # the caller looks at the status
            [*command, task.reader, str(task.target), *limits],
            # Not as arguments: the paths of thousands of dumps are longer than a command line may be.
            input=b"\0".join(os.fsencode(path) for path in task.paths),
            capture_output=True,
            env=environment,
            timeout=task.wall_s,
        )
    except subprocess.TimeoutExpired:
        return ChildExit(TIMED_OUT, b"")
    return ChildExit(child.returncode, child.stdout or child.stderr)


def run_forked(task: Task) -> ChildExit:
    """Run a task in a fork of this process, and return how the fork ended.

    The memory that this process has already mapped does not count towards the task's memory limit.
    """
    reading, writing = os.pipe()
    # RLIMIT_AS counts what the parent had mapped at the fork as well.
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    process = os.fork()
    if not process:
        os.close(reading)
        _work_and_leave(task, own, writing)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            # The child writes only at its end, and closes the pipe with it.
            in_time = is_readable(pipe, task.wall_s)
            message = pipe.read() if in_time else b""
        if not in_time:
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
    except BaseException:  # Ctrl-C too: no child may go on reading unseen
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise
    return ChildExit(os.waitstatus_to_exitcode(status) if in_time else TIMED_OUT, message)


def is_readable(pipe: "IO[bytes] | socket.socket", seconds: int) -> bool:
    waiting = select.poll()  # `select` fails for numbers beyond 1023
    waiting.register(pipe, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def _work_and_leave(task: Task, own: int, pipe: int) -> NoReturn:
    """Do the task in the forked process, write its message to `pipe`, and exit without cleaning up.

    `own` is the address space in bytes that the process had before the task. Exit handlers and buffered output belong
    to the parent and are skipped here: otherwise the same text would be written twice.
    """
    status = CRASHED
    try:
        # Ctrl-C must end the child, not raise in the middle of the parent's handlers.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        end_with_parent()
        nowhere = os.open(os.devnull, os.O_RDWR)
        # A reader must not write to the terminal that a TUI draws on.
        for stream in range(3):
            os.dup2(nowhere, stream)
        sys.stdout = sys.stderr = os.fdopen(nowhere, "w")
        # The collector would touch, and so copy, all objects of the parent. What a reader makes lives until it ends.
        gc.freeze()
        gc.disable()
        limit_self(own + task.memory, task.seconds)
        keep_freed_memory()
        status, message = perform(task)
        os.write(pipe, message)
    except BaseException as error:  # noqa: BLE001  # the parent sees only what is written here
        os.write(pipe, f"{type(error).__name__}: {error}".encode(errors="replace"))
    finally:
        os._exit(status)


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends, even while it is stopped or waits for a disk."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


_PR_SET_PDEATHSIG = 1


def explain(ended: ChildExit, task: Task) -> WorkbenchError:
    """Return the error to raise for a child process that failed at `task`; `ended` is its exit status and message."""
    name = str(task.paths[0]) if len(task.paths) == 1 else f"{task.paths[0].parent} ({len(task.paths)} files)"
    if ended.status == FAILED:
        error = msgspec.json.decode(ended.message)
        if error["kind"] == CacheFailure.__name__:
            return CacheFailure(error["message"], error["hint"])
        kinds = {kind.__name__: kind for kind in (HostileInput, LimitExceeded)}
        return kinds.get(error["kind"], InputError)(f"{name}: {error['message']}", error["hint"])
    if killed := _kind_of_kill(ended.status):
        fewer_jobs = "look for the kernel's out-of-memory killer (dmesg), and ask again with fewer --jobs"
        return killed[0](f"{name}: {killed[1]}", fewer_jobs)
    if limit := stopped(ended.status, task):
        return LimitExceeded(f"{name}: {limit[0]}", limit[1])
    lines = ended.message.decode(errors="replace").strip().splitlines() or ["no message"]
    if b"MemoryError" in ended.message:  # from a traceback of Python, not a sentence of ours
        return LimitExceeded(
            f"{name}: reading needs more than {size(task.memory)} of memory",
            "raise --max-memory if you trust the file",
        )
    return InputError(
        f"{name}: the reader failed: {lines[-1]}", "report this with the file, or with its first kilobyte"
    )


def _kind_of_kill(status: int) -> tuple[type[ReaderKilled], str] | None:
    """Return (error class, text) for a child with this exit status if it was killed from outside; else None."""
    if status == SERVER_KILLED:
        return ServerKilled, "the process that starts its readers was killed"
    if status in KILLS:
        return ReaderKilled, f"the process that read it was killed ({signal.Signals(-status).name})"
    return None


def stopped(status: int, task: Task) -> tuple[str, str] | None:
    """Return (which limit or crash stopped a child, hint) from its exit status; None if it ended by itself.

    `task` has the limits.
    """
    if status == TIMED_OUT:
        return f"reading took more than {duration(task.wall_s)}", "check the disk: it may hang, or be very slow"
    if status == -signal.SIGXCPU:
        what = f"reading took more than {task.seconds} s of processor time"
        return what, "check that it is a real recording: those take far less"
    if status == -signal.SIGABRT:
        # A library that is not written in Python ends its process where an allocation fails.
        what = f"a library gave up in the middle of reading, with at most {size(task.memory)} of memory"
        return what, "raise --max-memory if you trust the file"
    if status in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE):
        what = f"the reader crashed ({signal.Signals(-status).name}); nothing else was harmed"
        return what, "check where the file comes from, and report this with the file if you can share it"
    return None


def perform(task: Task) -> tuple[int, bytes]:
    """Read the files of a task and write the columns; return the exit status, and on failure the error as JSON."""
    try:
        write_entry(task.target, *importlib.import_module(task.reader).read(list(task.paths)))
    except WorkbenchError as error:
        failure = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
    except (OSError, EOFError, zlib.error) as error:
        failure = {"kind": "InputError", "message": str(error), "hint": "check that the file was copied whole"}
    except RecursionError:
        failure = {"kind": "HostileInput", "message": "nested too deeply", "hint": "no recorder writes such a file"}
    else:
        return DONE, b""
    return FAILED, json_bytes(failure)


def prepare(reader: str) -> None:
    """Import the module `reader` and the modules that it imports only while reading, so that forks have them."""
    module = importlib.import_module(reader)
    for late in getattr(module, "LATE_IMPORTS", ()):
        importlib.import_module(late)


def limit_self(memory: int, seconds: int) -> None:
    """Limit the address space (bytes) and processor time (seconds) of this process, and let it write no core files."""
    # Beyond the hard limit of processor time the kernel sends SIGKILL, at the soft one a signal that says why.
    limits = (
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_CORE, 0, 0),
    )
    for kind, *wanted in limits:
        _, hard = resource.getrlimit(kind)
        # A limit above the hard one of a batch system is refused by the kernel.
        soft, most = (limit if hard == resource.RLIM_INFINITY else min(limit, hard) for limit in wanted)
        resource.setrlimit(kind, (soft, most))
    # The analysis that waits for this child has a limit of its own, which the child inherits (`limits`).
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def keep_freed_memory() -> None:
    """Let glibc keep memory that this child frees, for its next allocations.

    Without this, glibc returns the memory of large arrays to the system at once, and the next array costs a page fault
    for each of its pages.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_ARRAY)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10  # only macOS counts in bytes


def watch_memory(memory: int, exceeded: Callable[[], object]) -> threading.Event:
    """Start a thread that calls `exceeded` once this process has grown by `memory` bytes; setting the result ends it.

    This is for systems that do not limit memory themselves. The thread checks the memory ten times a second, so one
    large allocation can exceed the limit before the next check.
    """
    limit, ended = _peak_memory() + memory, threading.Event()

    def watch() -> None:
        while not ended.wait(_WATCH_EVERY_S):
            if _peak_memory() > limit:
                exceeded()
                return

    threading.Thread(target=watch, name="limit of memory", daemon=True).start()
    return ended


def _end_for_lack_of_memory() -> NoReturn:
    os.write(1, b"MemoryError")
    os._exit(CRASHED)


def main(reader: str, target: str, memory: str, seconds: str) -> int:
    """Run a task in this new Python process, and return the exit status.

    The arguments are the fields of a `Task`, as texts. The paths are read from stdin, separated by zero bytes.
    """
    prepare(reader)  # before the limit: imports are not the input's fault
    limit_self(int(memory), int(seconds))
    keep_freed_memory()
    if not ENFORCED:
        watch_memory(int(memory), _end_for_lack_of_memory)
    paths = [Path(os.fsdecode(name)) for name in sys.stdin.buffer.read().split(b"\0")]
    status, message = perform(Task(reader, Path(target), paths, int(memory), int(seconds)))
    sys.stdout.buffer.write(message)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
