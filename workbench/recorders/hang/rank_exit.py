"""Record how a rank ends: its exception, a fatal signal, or an exception in a thread.

After SIGTERM, the end is delayed until dumps have been taken.
"""

import ctypes
import faulthandler
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from workbench.recorders.memory.snapshot import Frame
from workbench.recorders.own_files import OwnFile, remove_file, save_json

EXIT_FRAMES = "workbench_frames"


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
    setattr(error, EXIT_FRAMES, frames)


def error_frames(error: BaseException) -> list[Frame]:
    """Return the frames {name, filename, line} of the error's traceback, innermost first.

    If `remember_stack` has stored frames in the error, these are returned.
    """
    if noted := getattr(error, EXIT_FRAMES, None):
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
        "message": str(error),
        "out_of_memory": is_out_of_memory(error),
        "traceback": error_frames(error),
        "time_ns": time.time_ns(),
    }


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
            faulthandler.enable(self._file.descriptor, all_threads=True)

    def close(self) -> None:
        """Turn off faulthandler at a clean end of the rank, and delete the file, which is still empty."""
        if self._enabled:
            faulthandler.disable()
            self._file.close()
            remove_file(self._path)


class ThreadErrorFile:
    """Writes an exception that ends a thread to a file.

    Such an exception can explain a hang, because other code may wait for that thread forever.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self._path, self._rank = path, rank
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
        if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
            report = exit_report(ended.exc_value, rank=self._rank, step=0, phase="")
            name = ended.thread.name if ended.thread else ""
            save_json(self._path, report | {"schema": "workbench.thread/1", "thread": name})


class TerminationDelay:
    """Keeps a rank alive after SIGTERM until the function `last_act` has returned, even if the main thread is stuck.

    When one rank has died, launchers send SIGTERM to all others. Without the delay, no dumps of these could be taken.
    """

    def __init__(self, last_act: Callable[[], object]) -> None:
        self._last_act = last_act
        self._pipe = (-1, -1)
        self._previous_fd = -1
        self._handler = lambda *_: None

    def install(self) -> None:
        """Install the handler for SIGTERM; do nothing outside the main thread, or if SIGTERM already has a handler."""
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        ):
            return
        self._pipe = os.pipe()
        # `set_wakeup_fd` refuses a blocking descriptor, because a full pipe would block the signal handler.
        os.set_blocking(self._pipe[1], False)
        self._previous_fd = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        # Python writes to the wakeup descriptor only for signals that have a Python handler, even an empty one.
        signal.signal(signal.SIGTERM, self._handler)
        os.register_at_fork(after_in_child=self._forget_in_child)
        threading.Thread(target=self._wait, name="termination-delay", daemon=True).start()

    def remove(self) -> None:
        """Restore the default effect of SIGTERM."""
        if self._pipe[1] >= 0:
            if self._is_installed():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(self._previous_fd)
            # The thread that reads the other end then gets an end of file, and stops.
            os.close(self._pipe[1])
            self._pipe = (-1, -1)

    def _is_installed(self) -> bool:
        return signal.getsignal(signal.SIGTERM) is self._handler

    def _forget_in_child(self) -> None:
        """Restore the default effect of SIGTERM in a forked child, so that the signal ends the child.

        A child shares a pipe with its parent. Otherwise Python would write the signal's number to this pipe, and the
        parent would end instead of the child.
        """
        if self._pipe[1] >= 0:
            signal.set_wakeup_fd(-1)
            if self._is_installed():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _wait(self) -> None:
        """Wait for SIGTERM on a separate thread; when it comes, call `last_act` and then end the process.

        A Python signal handler would not be enough: it runs on the main thread, which may be in C code for minutes.
        """
        pipe = self._pipe[0]
        while received := os.read(pipe, 1):
            # A script that has a handler of its own by now, to save a checkpoint, decides itself when it ends.
            if received[0] == signal.SIGTERM and self._is_installed():
                self._last_act()
                ctypes.CDLL(None).signal(signal.SIGTERM, None)  # Python sets handlers on the main thread only
                os.kill(os.getpid(), signal.SIGTERM)
