"""Write a file completely or not at all.

It is written to a temporary file in the same folder, which is flushed to the disk and then renamed.
"""

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def replacing(target: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Yield a file to write to; it replaces `target` if the body of the `with` ends without an error.

    Until then an existing file is not changed. A link stays a link, and the permissions of an existing file are kept; a
    new file has the permissions `mode`, less those that the umask removes. A pipe or a device is written to directly.

    Raises:
        OSError: The folder cannot be written, or the disk is full; the existing file is then unchanged.
    """
    old = status(target)
    if old is not None and not stat.S_ISREG(old.st_mode):
        with os.fdopen(_open_special(target), "wb") as file:
            yield file
        return
    # After the check: /dev/stdout leads to a pipe, whose path does not exist.
    target = target.resolve()
    # A short name of its own: that of the target may have as many characters as a name can.
    draft = target.with_name(f".writing-{secrets.token_hex(8)}")
    # Before the `try`: a file that is there already is not ours to remove.
    opened = os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb")
    try:
        with opened as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if old is not None:
            draft.chmod(stat.S_IMODE(old.st_mode))
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    _flush_folder(target.parent)


READER_S = 10.0
"""The seconds to wait until another process opens a pipe for reading."""


def _open_special(path: Path) -> int:
    """Open a pipe or a device for writing, and return its file descriptor.

    Raises:
        OSError: The pipe or device cannot be written to, or no process reads from the pipe.
    """
    deadline = time.monotonic() + READER_S
    while True:
        try:
            # A plain open of a pipe that nobody reads from never returns.
            number = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or not path.is_fifo() or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            # Without this, a write to a full pipe would fail instead of waiting.
            os.set_blocking(number, True)
            return number


def private_opener(path: str, flags: int) -> int:
    """Open a file as `open` does with this as its `opener`: a new file is for its owner alone."""
    return os.open(path, flags, 0o600)


def write_whole(target: Path, text: str) -> None:
    """Write a text as UTF-8, completely or not at all.

    A lone surrogate, as in a path that is not valid UTF-8, is written as an escape sequence.

    Raises:
        OSError: As for `replacing`.
    """
    with replacing(target) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def status(path: Path) -> os.stat_result | None:
    """Return the status of a file; None if it does not exist."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _flush_folder(folder: Path) -> None:
    """Flush a folder to the disk, if the file system supports it, so that a rename in it survives a power cut."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
