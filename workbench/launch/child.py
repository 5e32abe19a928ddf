"""Run the user's command as a child process: pass on its output, forward signals to it, and return how it ended."""

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

from workbench.console import note

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
        return stack.enter_context(path.open("wb", buffering=0))
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
