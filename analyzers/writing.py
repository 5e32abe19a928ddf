"""Write a file whole or not at all: beside its place, flushed, then renamed."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def replacing(target: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write that replaces `target` when the body of the `with` ends without an error.

    Until then an old file there stays as it is. A link stays a link, and the permissions of an old file stay. A pipe or
    a device is written to directly.

    Raises:
        OSError: The folder cannot be written, or the disk is full; nothing has changed then.
    """
    old = status(target)
    if old is not None and not stat.S_ISREG(old.st_mode):
        with target.open("wb") as file:
            yield file
        return
    # After the check: /dev/stdout leads to a pipe, whose path does not exist.
    target = target.resolve()
    # A short name of its own: that of the target may have as many characters as a name can.
    draft = target.with_name(f".writing-{secrets.token_hex(8)}")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if old is not None:
            draft.chmod(stat.S_IMODE(old.st_mode))
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    flush_folder(target.parent)


def write_whole(target: Path, text: str) -> None:
    """Write a text as UTF-8, completely or not at all; a lone surrogate, as in a path of odd bytes, becomes an escape.

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


def flush_folder(folder: Path) -> None:
    """Flush a folder to the disk, so that a rename in it survives a power cut, where the file system can."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
