"""Record how a rank ends: its exception, a fatal signal, or an exception in a thread.

After SIGTERM, the end is delayed until dumps have been taken.
"""

import contextlib
import faulthandler
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from workbench.recorders import signals
from workbench.recorders.memory.snapshot import Frame
from workbench.recorders.own_files import OwnFile, high_descriptor, remove_file, save_json

_EXIT_FRAMES = "workbench_frames"
_open_files: list[OwnFile] = []
"""The files to which faulthandler writes; it keeps only their descriptors, which another file could get."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error reports a failed allocation: on CUDA, in the CPU allocator, or in Python itself."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def remember_stack(error: BaseException) -> None:
    """Store function names and lines of the current call stack as an attribute of `error`, a SystemExit.

    The traceback of the SystemExit does not yet contain the outer frames. Only names and lines are stored: frame
    objects would keep all local variables alive if the script catches the SystemExit and continues.
    """
    calls = reversed(traceback.extract_stack()[:-2])  # without this function and the one that wraps `sys.exit`
    frames = [{"name": call.name, "filename": call.filename, "line": call.lineno or 0} for call in calls]
    setattr(error, _EXIT_FRAMES, frames)


def error_frames(error: BaseException) -> list[Frame]:
    """Return the frames {name, filename, line} of the error's traceback, innermost first.

    If `remember_stack` has stored frames in the error, these are returned.
    """
    if noted := getattr(error, _EXIT_FRAMES, None):
        return list(noted)
    frames = traceback.extract_tb(error.__traceback__)
    return [{"name": frame.name, "filename": frame.filename, "line": frame.lineno or 0} for frame in reversed(frames)]


def exit_report(error: BaseException, *, rank: int, step: int, phase: str) -> dict[str, object]:
    """Return the content of `exit_R.json` or `thread_R.json`: the exception that ended rank R or one of its threads.

    `step` and `phase` say where the rank was. The traceback in the result has the innermost frame first.
    """
    return {
        "schema": "workbench.exit/1",
        "rank": rank,
        "pid": os.getpid(),
        "step": step,
        "phase": phase,
        "error": type(error).__name__,
        "message": _message_of(error),
        "out_of_memory": is_out_of_memory(error),
        "traceback": error_frames(error),
        "time_ns": time.time_ns(),
    }


def _message_of(error: BaseException) -> str:
    """Return the text of an exception, which is code of the script and may fail itself."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001
        return "<exception str() failed>"


class FatalSignalFile:
    """Makes faulthandler write all stacks to a file when a fatal signal such as SIGSEGV or SIGABRT ends this rank.

    If the script has enabled faulthandler itself, nothing changes: faulthandler keeps writing to the script's file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        remove_file(path)
        self._enabled = not faulthandler.is_enabled()
        if self._enabled:
            self._file = OwnFile(path)
            self._enabled = self._file.descriptor >= 0
        if self._enabled:
            signals.enable_faulthandler(self._file.descriptor)

    def close(self) -> None:
        """Delete the file, which is still empty, at a clean end of the rank.

        faulthandler stays enabled, because the script may have enabled it for a file of its own meanwhile.
        """
        if self._enabled:
            remove_file(self._path)
            _open_files.append(self._file)


class ThreadErrorFile:
    """Writes an exception that ends a thread to a file.

    Such an exception can explain a hang, because other code may wait for that thread forever.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self._path, self._rank, self._pid = path, rank, os.getpid()
        remove_file(path)
        self._previous_hook = threading.excepthook
        threading.excepthook = self._uncaught

    def close(self) -> None:
        """Restore the previous `threading.excepthook`."""
        if threading.excepthook == self._uncaught:
            threading.excepthook = self._previous_hook

    def _uncaught(self, ended: threading.ExceptHookArgs) -> None:
        self._previous_hook(ended)
        # A SystemExit ends a thread on purpose.
        if ended.exc_value and not isinstance(ended.exc_value, SystemExit) and os.getpid() == self._pid:
            report = exit_report(ended.exc_value, rank=self._rank, step=0, phase="")
            name = ended.thread.name if ended.thread else ""
            save_json(self._path, report | {"schema": "workbench.thread/1", "thread": name})


_UNTIL_READ_S = 1.0


class TerminationDelay:
    """Keeps a rank alive after SIGTERM until the function `last_act` has returned, even if the main thread is stuck.

    When one rank has died, launchers send SIGTERM to all others. Without the delay, no dumps of these could be taken.
    """

    def __init__(self, last_act: Callable[[], object]) -> None:
        self._last_act = last_act
        self._pipe = (-1, -1)
        self._received = b""
        self._has_read = threading.Event()

    def install(self) -> None:
        """Install the handler for SIGTERM; do nothing if the process does not end by SIGTERM, such as with a handler.

        A handler that the script installs later replaces it, and decides itself when the process ends.
        """
        if not signals.is_free(signal.SIGTERM):
            return
        ends = os.pipe()
        self._pipe = (high_descriptor(ends[0]), high_descriptor(ends[1]))
        # A full pipe must not block the signal handler.
        os.set_blocking(self._pipe[1], False)
        # Of all threads: if none of Python's gets the signal, faulthandler has no stack of this one to write.
        signals.write_stacks_on(signal.SIGTERM, self._pipe[1])
        signals.call_in_children(self._forget_in_child)
        signals.start_thread(self._wait)

    def remove(self) -> None:
        """Restore the default effect of SIGTERM; if it has come before, the process ends by it now."""
        if self._pipe[1] >= 0:
            signals.release(signal.SIGTERM)
            # The thread that reads the other end then gets an end of file, and stops.
            with signals.ignoring(OSError):
                os.close(self._pipe[1])
            self._pipe = (-1, -1)
            self._has_read.wait(_UNTIL_READ_S)
            if self._received:
                signals.die_of(signal.SIGTERM)

    def _forget_in_child(self) -> None:
        """Restore the default effect of SIGTERM in a forked child, which shares the pipe with its parent."""
        if self._pipe[1] >= 0:
            signals.release(signal.SIGTERM)
            self._pipe = (-1, -1)

    def _wait(self) -> None:
        """Wait for SIGTERM on a separate thread; when it comes, call `last_act` and then end the process.

        A Python signal handler would not be enough: it runs on the main thread, which may be in C code for minutes.
        """
        with contextlib.suppress(OSError):  # the script has closed our descriptors
            self._received = os.read(self._pipe[0], 1)
        self._has_read.set()
        if self._received:
            with contextlib.suppress(Exception):
                self._last_act()
        if self._received or self._pipe[1] >= 0:
            signals.release(signal.SIGTERM)
        if self._received:
            signals.die_of(signal.SIGTERM)
