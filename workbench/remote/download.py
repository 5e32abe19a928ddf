"""Download files into a mirror (a folder of local copies), several at a time, each completely or not at all."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import IO

from analyzers.errors import InputError
from analyzers.words import quantity, size
from analyzers.writing import replacing
from workbench.progress import shown_text
from workbench.remote.file_system import FileSystem, Vanished, asking
from workbench.remote.listing import RemoteFile
from workbench.remote.mirror import Mirror
from workbench.remote.urls import without_credentials

_CONNECTIONS = 8
CHUNK = 1 << 20


@dataclass
class Download:
    """A download of files into a mirror, and its progress; `limit` is the number of bytes that it may receive."""

    url: str
    file_system: FileSystem
    mirror: Mirror
    files: list[RemoteFile]
    limit: int
    done_files: int = 0
    done_bytes: int = 0
    _stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Download all files.

        Raises:
            InputError: A file cannot be read, or the files are larger than the limit. Files that are already complete
                stay in the mirror.
        """
        with shown_text(self.describe):
            if self.file_system.async_impl:
                self._run_threads()
                return
            # One connection, and no thread: this process can go on to fork its readers.
            for file in self.files:
                self._fetch(file)

    def describe(self) -> str:
        """Return a text on the progress of the download."""
        total = size(sum(file.size or 0 for file in self.files))
        count = quantity(len(self.files), "file")
        return f"downloading {self.done_files} of {count}, {size(self.done_bytes)} of {total}"

    def _run_threads(self) -> None:
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            try:
                for _ in pool.map(self._fetch, self.files):
                    pass
            except BaseException:
                # Ctrl-C, too: the threads stop at their next chunk.
                self._stopped.set()
                raise

    def _fetch(self, file: RemoteFile) -> None:
        """Copy a file into the mirror; if it cannot be read to its end, an older copy stays unchanged."""
        path = self.mirror.path_of(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(path) as target:
                for chunk in self._chunks(file):
                    target.write(chunk)
        except Vanished:
            return
        with self._lock:
            self.mirror.add(file)
            self.done_files += 1

    def _chunks(self, file: RemoteFile) -> Iterator[bytes]:
        """Yield the content of a remote file in chunks.

        Raises:
            Vanished: The file no longer exists.
            InputError: The file cannot be read, ends early, or exceeds the limit.
        """
        url = f"{without_credentials(self.url)} ({file.copy})"
        received = 0
        with asking(url, lambda: self._opened(file)) as source:
            while chunk := asking(url, lambda: source.read(CHUNK)):
                received += len(chunk)
                self._count(len(chunk))
                yield chunk
        if received < (file.size or 0):
            raise InputError(f"{url}: the download ended early", "try again: complete files are kept")

    def _opened(self, file: RemoteFile) -> AbstractContextManager[IO[bytes]]:
        try:
            return self.file_system.open(file.path, "rb")
        except FileNotFoundError:
            raise Vanished from None

    def _count(self, received: int) -> None:
        """Add to the number of received bytes.

        Raises:
            InputError: The download was stopped, or more bytes came than the limit allows, whatever the listing said.
        """
        with self._lock:
            self.done_bytes += received
        if self._stopped.is_set():
            raise InputError("the download was stopped", "start it again")
        if self.done_bytes > self.limit:
            raise too_large(self.url, self.done_bytes, self.limit)


def too_large(url: str, wanted: int, limit: int) -> InputError:
    """Return the error for files with more bytes (`wanted`) than the cache may hold (`limit`)."""
    return InputError(
        f"{without_credentials(url)}: {size(wanted)} to download, and the cache may hold {size(limit)}",
        "raise it with `workbench cache --limit`, or give one folder or file of the run",
    )
