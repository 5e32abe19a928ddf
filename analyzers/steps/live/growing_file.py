"""Read files to which other processes append: each read begins where the last read ended."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from analyzers.files import open_regular

_LOOK_BYTES = 1 << 24
"""The most bytes that one call reads; the rest is read by the next call."""
LATEST_BYTES = 1 << 23
"""The number of bytes at the end of a log that are read if the log is longer than that when it is first followed.

The first line of such a log is read too, because it may be a header.
"""

WholeBytes = Callable[[bytes], int]
"""A function that returns how many of the given bytes are complete records; the rest is an unfinished one."""


class GrowingFile:
    """A file to which another process appends: each read returns the complete records added since the last read.

    `generation` counts the files that had this name so far: a new run replaces the file of the previous run.
    """

    def __init__(self, path: Path, whole_bytes: WholeBytes, latest: int | None = None) -> None:
        self.path, self.generation = path, 0
        self._whole_bytes, self._latest = whole_bytes, latest
        self._inode, self._offset = 0, 0

    def fresh(self) -> bytes:
        """Return the complete records that were added since the last call; empty if the file does not exist."""
        try:
            with open_regular(self.path) as file:
                head = self._restart_if_replaced(file)
                file.seek(self._offset)
                content = file.read(_LOOK_BYTES)
        except OSError:
            return b""
        whole = self._whole_bytes(content)
        # A record longer than a whole look comes from no known writer: skip it, or it would block the file for ever.
        self._offset += len(content) if not whole and len(content) == _LOOK_BYTES else whole
        return head + content[:whole]

    def _restart_if_replaced(self, file: IO[bytes]) -> bytes:
        """Start again from the beginning if the file was replaced or truncated.

        If the new file is long, `fresh` reads only its last part. In this case the result is the first line of the
        file, which may be a header; in all other cases the result is empty.
        """
        stat = os.fstat(file.fileno())
        # A new file may get the inode number of a deleted one, but is shorter at first.
        if stat.st_ino == self._inode and stat.st_size >= self._offset:
            return b""
        self.generation += 1
        self._inode, self._offset = stat.st_ino, 0
        if self._latest is None or stat.st_size <= self._latest:
            return b""
        self._offset = stat.st_size - self._latest
        return file.readline(self._latest)


def whole_lines(content: bytes) -> int:
    """Return the number of bytes up to and including the last line feed."""
    return content.rfind(b"\n") + 1
