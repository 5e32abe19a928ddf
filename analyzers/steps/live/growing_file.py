"""Files that others append to, read from where the last look ended."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

AT_ONCE = 1 << 24
"""Bytes that one look takes in; what goes beyond waits for the next."""
LATEST = 1 << 23
"""Of a log that has long been growing only the last bytes are read, and its first line."""

Cut = Callable[[bytes], int]


class Growing:
    """What a file has gained. `cut` says how many of some bytes are whole records; the rest waits for its end.

    `generation` counts the files that were there under this name: a new run puts its own in the place of the old one.
    """

    def __init__(self, path: Path, cut: Cut, latest: int | None = None) -> None:
        self.path, self.generation = path, 0
        self._cut, self._latest = cut, latest
        self._inode, self._offset = 0, 0

    def fresh(self) -> bytes:
        """The whole records since the last look; empty where the file has gone."""
        try:
            with self.path.open("rb") as file:
                head = self._begin(file)
                file.seek(self._offset)
                read = file.read(AT_ONCE)
        except OSError:
            return b""
        whole = self._cut(read)
        # What is longer than a whole look is no record of any writer we know.
        self._offset += len(read) if not whole and len(read) == AT_ONCE else whole
        return head + read[:whole]

    def _begin(self, file: BinaryIO) -> bytes:
        """Where another file lies under the name, or the same one was emptied, start anew: its head, if much is left
        out behind that.
        """
        found = os.fstat(file.fileno())
        if found.st_ino == self._inode and found.st_size >= self._offset:
            return b""
        self.generation += 1
        self._inode, self._offset = found.st_ino, 0
        if self._latest is None or found.st_size <= self._latest:
            return b""
        self._offset = found.st_size - self._latest
        return file.readline(self._latest)


def lines(read: bytes) -> int:
    """Bytes up to the last line feed."""
    return read.rfind(b"\n") + 1
