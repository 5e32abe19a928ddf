"""Find and end all processes of a job on this machine; they inherit an environment variable with the job's id."""

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from analyzers.files import private_opener
from workbench.console import note

MARK = "WORKBENCH_JOB"
"""The environment variable with the id of the job; all processes of the job inherit it."""
_END_BY_THEMSELVES = {b"workbench.recorders.hang.collector", b"analyzers.reader_server", b"analyzers.child"}
"""The modules whose processes inherit the job's id but are not ended with the job.

Dump collectors end when they have taken the dumps of the ranks. Readers of files end with the launcher, which started
them.
"""
_GRACE_S = 30.0
POLL_S = 0.2


def _processes_of(job: str, session: int | None = None) -> Iterator[int]:
    """Yield the ids of the processes of a job on this machine, except this process and those in `_END_BY_THEMSELVES`.

    `job` is the job's id, which the environment variable `MARK` of its processes contains. With `session`, only the
    processes of that session are yielded. Linux only.
    """
    mark = f"{MARK}={job}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid != os.getpid() and mark in read(entry / "environ").split(b"\0"):
            words = set(read(entry / "cmdline").split(b"\0")) - {b""}
            # A zombie has no command line.
            if words and not words & _END_BY_THEMSELVES and session in (None, _session_of(pid)):
                yield pid


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def end_processes(job: str, *, session: int | None = None) -> int:
    """End the processes of a job with SIGTERM; after `_GRACE_S` seconds, end the remaining ones with SIGKILL.

    With `session`, only the processes of that session are ended: a daemon, which has its own, is to live on. Return the
    number of processes that were running at first.
    """
    first = set(_processes_of(job, session))
    send(first, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while (left := set(_processes_of(job, session))) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    send(left, signal.SIGKILL)
    return len(first)


def send(pids: set[int], number: signal.Signals) -> None:
    """Send a signal to the processes `pids`; ignore processes that have ended or belong to another user."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def has_handler(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, or ignores it."""
    lines = read(Path("/proc", str(pid), "status")).splitlines()
    masks = [line.split()[1] for line in lines if line.startswith((b"SigIgn:", b"SigCgt:"))]
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def read(path: Path) -> bytes:
    """Return the content of a file in /proc; empty if the process has ended or belongs to another user."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


# Run the user's command as a child process: pass on its output, forward signals to it, and return how it ended.

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MESSAGES = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
"""The signals that mean what the command says: save a checkpoint, or print the stacks."""
_PATIENCE_S = 40.0
"""The seconds that the command has to end after a signal, before it is killed; launchers give their own ranks 30 s."""
_DRAIN_S = 2.0
"""The seconds to wait for the rest of the output after the command's end; a daemon that it started may keep it open."""


def run_child(words: tuple[str, ...], logs: Path, on_end: Callable[[], None]) -> tuple[int, bool, list[OSError]]:
    """Run a command to its end; copy its output to our own output, and to files in the folder `logs`.

    Return (exit status, whether the launcher received a signal meanwhile, why our stdout could not be written). The
    exit status is -N if signal N killed the command. The list is empty if all that the command printed was passed on.
    `on_end` is called before a signal that ends the command is passed on to it.
    """
    lost: list[OSError] = []
    with contextlib.ExitStack() as stack:
        files = [_opened(stack, logs / name) for name in ("stdout.log", "stderr.log")]
        sinks = (sys.stdout.buffer, sys.stderr.buffer)
        (out, out_end), (err, err_end) = (channel(sink) for sink in sinks)
        # A terminal sends Ctrl-C to its whole foreground group; elsewhere the command gets a group that we can signal.
        group = None if _in_foreground() else 0
        process = stack.enter_context(subprocess.Popen(words, process_group=group, stdout=out_end, stderr=err_end))
        # While this process also holds the command's ends open, reading from ours never reaches an end.
        os.close(out_end)
        os.close(err_end)
        copies = [
            threading.Thread(target=copy, args=(source, sink, file, failures), daemon=True)
            for source, sink, file, failures in zip((out, err), sinks, files, (lost, []), strict=True)
        ]
        for thread in copies:
            thread.start()
        with _passing_on(process, on_end, own_group=group == 0) as received:
            status = wait(process, received)
        for thread in copies:
            thread.join(_DRAIN_S)
        return status, bool(received), lost


def _opened(stack: contextlib.ExitStack, path: Path) -> BinaryIO | None:
    """Open a log file for the lifetime of `stack`; return None if it cannot be written."""
    try:
        # Without a buffer: what a full disk does not take would be written again when the file is closed, and fail.
        return stack.enter_context(open(path, "wb", buffering=0, opener=private_opener))
    except OSError as error:
        note(f"the output is not kept in {path}: {error.strerror}")
        return None


def _in_foreground() -> bool:
    """Return whether this process is in the foreground of the terminal on stdin.

    If so, Ctrl-C in that terminal reaches both the command and this process.
    """
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def channel(sink: BinaryIO) -> tuple[int, int]:
    """Return (our end, the command's end) of a pipe or pseudo-terminal for the command's output, as file descriptors.

    `sink` is our own output stream, to which the output is copied. If `sink` is a terminal, the command gets a
    pseudo-terminal. So it prints colours and progress bars, as it would without the launcher.
    """
    if not sink.isatty():
        return os.pipe()
    ours, theirs = os.openpty()
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST  # the real terminal turns line ends into its own
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    # A new pseudo-terminal has no size, but progress bars fit their width to it.
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, fcntl.ioctl(sink.fileno(), termios.TIOCGWINSZ, bytes(8)))
    return ours, theirs


def _read_chunk(source: int) -> bytes:
    """Return the next bytes of the file descriptor `source`; empty at its end.

    A pseudo-terminal reports its end as an error, which also gives an empty result.
    """
    try:
        return os.read(source, 1 << 16)
    except OSError:
        return b""


def copy(source: int, sink: BinaryIO, file: BinaryIO | None, lost: list[OSError]) -> None:
    """Copy all bytes from the descriptor `source` to our own output `sink` and to `file`, if there is one.

    If one of the two can no longer be written, continue with the other; if that is `sink`, add the error to `lost`. But
    if the reader of our output has gone, as `head` does, `source` is closed: the command learns of it as it would
    without the launcher.
    """
    sinks = [sink] if file is None else [sink, file]
    while chunk := _read_chunk(source):
        for each in list(sinks):
            try:
                each.write(chunk)
                each.flush()
            except BrokenPipeError:
                os.close(source)
                return
            except (OSError, ValueError) as error:
                sinks.remove(each)
                if each is sink:
                    lost.append(as_system_error(error))


def as_system_error(error: OSError | ValueError) -> OSError:
    """Return the error of a write; a stream that is closed raises a ValueError, which becomes that of the system."""
    return error if isinstance(error, OSError) else OSError(errno.EBADF, os.strerror(errno.EBADF))


@contextlib.contextmanager
def _passing_on(
    process: "subprocess.Popen[bytes]", on_end: Callable[[], None], *, own_group: bool
) -> Iterator[list[float]]:
    """Return a context in which signals are passed on to the command.

    The context yields a list; the time of each SIGINT, SIGTERM and SIGHUP is added to it, in seconds of the monotonic
    clock. `own_group` says that the command leads its own process group. Then all processes of the group get these
    signals, and stop and continue with this process. SIGUSR1, SIGUSR2 and SIGQUIT are for the command alone.
    """
    received: list[float] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(time.monotonic())
        on_end()
        with contextlib.suppress(ProcessLookupError):
            if own_group:
                os.killpg(process.pid, number)
            # In the foreground group, the terminal has already sent Ctrl-C to the command.
            elif number != signal.SIGINT:
                process.send_signal(number)

    def tell(number: int, _frame: FrameType | None) -> None:
        # In the foreground group, the terminal has already sent what its keys mean to the command.
        if own_group or number != signal.SIGQUIT:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def stop_or_continue(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)

    handlers = dict.fromkeys(_SIGNALS, pass_on) | dict.fromkeys(_MESSAGES, tell)
    if own_group and signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
        handlers |= dict.fromkeys((signal.SIGTSTP, signal.SIGCONT), stop_or_continue)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(process: "subprocess.Popen[bytes]", received: list[float]) -> int:
    """Wait for the command and return its exit status.

    `received` has the times of the signals that were passed on to the command. If the command does not end, it is
    killed `_PATIENCE_S` seconds after the first signal, or soon after the third.
    """
    while True:
        try:
            # A wait without a timeout resumes after a signal (PEP 475), and would never see that patience has run out.
            return process.wait(0.5)
        except subprocess.TimeoutExpired:
            if received and (len(received) > 2 or time.monotonic() - received[0] > _PATIENCE_S):
                process.kill()
