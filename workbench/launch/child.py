"""Run the user's command as a child process: pass on its output and our signals, and return how it ended."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import BinaryIO

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_S = 40.0
"""Seconds that the command has to end after a signal, before it is killed; launchers give their own ranks 30 s."""
DRAIN_S = 2.0
"""Seconds to wait for the rest of the output after the command's end; a daemon that it started may keep it open."""


def run_child(words: tuple[str, ...], logs: Path) -> tuple[int, bool]:
    """Run a command to its end; pass its output on to our own, and copy it to files in the folder `logs`.

    Returns (exit status, whether the launcher received a signal meanwhile). The exit status is -N if signal N killed
    the command.
    """
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((logs / name).open("wb")) for name in ("stdout.log", "stderr.log")]
        sinks = (sys.stdout.buffer, sys.stderr.buffer)
        (out, out_end), (err, err_end) = (channel(sink) for sink in sinks)
        # A terminal sends Ctrl-C to its whole foreground group; elsewhere the command gets a group that we can signal.
        group = None if in_foreground() else 0
        process = stack.enter_context(subprocess.Popen(words, process_group=group, stdout=out_end, stderr=err_end))
        # While this process also holds the command's ends open, reading from ours never reaches an end.
        os.close(out_end)
        os.close(err_end)
        copies = [
            threading.Thread(target=copy, args=(source, sink, file), daemon=True)
            for source, sink, file in zip((out, err), sinks, files, strict=True)
        ]
        for thread in copies:
            thread.start()
        with passing_on(process, own_group=group == 0) as received:
            status = wait(process, received)
        for thread in copies:
            thread.join(DRAIN_S)
        return status, bool(received)


def in_foreground() -> bool:
    """Return whether this process is in the foreground of the terminal on stdin.

    Then Ctrl-C in that terminal reaches the command as well as this process.
    """
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def channel(sink: BinaryIO) -> tuple[int, int]:
    """Return (our end, the command's end) of a pipe or pseudo-terminal for the command's output, as file descriptors.

    `sink` is our own output stream, to which we pass the command's output on. If it is a terminal, the command gets a
    pseudo-terminal, so that it prints as it would without us (colours, progress bars).
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


def read_chunk(source: int) -> bytes:
    """Return the next bytes of the file descriptor `source`; empty at its end.

    A pseudo-terminal reports its end as an error.
    """
    try:
        return os.read(source, 1 << 16)
    except OSError:
        return b""


def copy(source: int, sink: BinaryIO, file: BinaryIO) -> None:
    """Copy all bytes from the descriptor `source` to our own output `sink` and to `file`.

    If one of the two can no longer be written, copying to the other continues.
    """
    sinks = [sink, file]
    while chunk := read_chunk(source):
        for each in list(sinks):
            try:
                each.write(chunk)
                each.flush()
            except (OSError, ValueError):
                sinks.remove(each)


@contextlib.contextmanager
def passing_on(process: "subprocess.Popen[bytes]", *, own_group: bool) -> Iterator[list[float]]:
    """Return a context in which SIGINT, SIGTERM and SIGHUP are passed on to the command.

    The context yields a list to which the time of each signal is added, in seconds of the monotonic clock.
    `own_group` says that the command leads a process group of its own; then the whole group gets the signals.
    """
    received: list[float] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            if own_group:
                os.killpg(process.pid, number)
            # In the foreground group, the terminal has already sent Ctrl-C to the command.
            elif number != signal.SIGINT:
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(process: "subprocess.Popen[bytes]", received: list[float]) -> int:
    """Wait for the command and return its exit status.

    `received` has the times of the signals that were passed on to the command. A command that does not end is killed
    `PATIENCE_S` seconds after the first signal, or soon after a third one.
    """
    while True:
        try:
            # A wait without a timeout resumes after a signal (PEP 475), and would never see that patience has run out.
            return process.wait(0.5)
        except subprocess.TimeoutExpired:
            if received and (len(received) > 2 or time.monotonic() - received[0] > PATIENCE_S):
                process.kill()
