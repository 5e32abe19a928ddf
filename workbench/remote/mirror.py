"""The local copies of the files below one URL (a mirror): a folder of the cache, with a list of their versions.

    <cache>/remote/<checksum of the URL>/files/...     the copies, under the names that they have below the URL
    <cache>/remote/<checksum of the URL>/versions      one JSON line for each copy that is complete

A copy gets its line only after it was written completely and renamed into place. If a copy has no line, or a line with
another version, the file is copied again. So an incomplete copy is never used, even after a process was killed.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from analyzers.cache import folders
from analyzers.cache.folders import CacheFailure, failure, is_trusted
from analyzers.files import read_whole
from workbench.remote.listing import RemoteFile
from workbench.remote.urls import without_credentials

REMOTE_FOLDER = "remote"
_LIST_BYTES = 1 << 30


class Copied(msgspec.Struct, array_like=True, frozen=True):
    """A line of the list of copies: relative path of the copy, version of the remote file, and size in bytes."""

    copy: str
    version: str | None
    size: int


class Mirror:
    """The copies of the files below one URL, in a folder of the cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, folder / "files"
        self._list = folder / "versions"
        self._copied = {copied.copy: copied for copied in self._read_list()}

    def _read_list(self) -> Iterator[Copied]:
        """Yield the lines of the list; incomplete lines, which a killed process may have left, are skipped."""
        try:
            lines = read_whole(self._list, _LIST_BYTES).splitlines()
        except OSError:
            return
        for line in lines:
            try:
                yield msgspec.json.decode(line, type=Copied)
            except msgspec.MsgspecError:
                continue

    def path_of(self, file: RemoteFile) -> Path:
        """Return the path of the local copy of a remote file, whether or not there is one."""
        return self.files / file.copy

    def holds(self, file: RemoteFile) -> bool:
        """Return whether there is a complete copy of the current version of a file; False if the version is unknown."""
        copied = self._copied.get(str(file.copy))
        if copied is None or copied.version is None or copied.version != file.version:
            return False
        try:
            return self.path_of(file).stat().st_size == copied.size
        except OSError:
            return False

    def add(self, file: RemoteFile) -> None:
        """Record that the copy of a file is complete, and give it the modification time of the remote file."""
        path = self.path_of(file)
        if file.modified is not None:
            os.utime(path, (file.modified, file.modified))
        copied = Copied(str(file.copy), file.version, path.stat().st_size)
        with self._list.open("ab") as lines:
            # The line break comes first: the line before may be incomplete.
            lines.write(b"\n" + msgspec.json.encode(copied))

    def remove_others(self, files: list[RemoteFile]) -> None:
        """Delete all copies except those of `files`, the remains of killed processes, and empty folders."""
        kept = {self.path_of(file) for file in files}
        for folder, _, names in os.walk(self.files, topdown=False):
            for path in (Path(folder, name) for name in names):
                if path not in kept:
                    path.unlink(missing_ok=True)
            if Path(folder) != self.files:
                with suppress(OSError):  # it is not empty
                    Path(folder).rmdir()


@contextmanager
def opened_mirror(url: str, *, keep: bool) -> Iterator[Mirror]:
    """Yield the mirror of a URL, locked against other processes.

    Without `keep`, the mirror is in a temporary folder, which is deleted when this process ends.

    Raises:
        CacheFailure: No folder can be written, not even a temporary one.
    """
    name = hashlib.sha256(without_credentials(url).encode(errors="surrogateescape")).hexdigest()[:32]
    folder = _usable_folder(name, keep=keep)
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Mirror(folder)
        os.utime(folder)  # the folders used longest ago are deleted first
    folders.prune(folder.parent, folders.limit_bytes(folder.parents[1]))


def _usable_folder(name: str, *, keep: bool) -> Path:
    """Create the folder of a mirror in the first cache folder that can be written, and return it.

    `name` is the name of the new folder. Without `keep`, only temporary folders are used.

    Raises:
        CacheFailure: No cache folder can be written.
    """
    failed = CacheFailure(
        "no folder for the cache can be written to", "set WORKBENCH_CACHE to a folder that you can write to"
    )
    for cache in folders.folders() if keep else folders.temporary_folders():
        folder = cache / REMOTE_FOLDER / name
        try:
            (folder / "files").mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            failed = failure(cache, error)
            continue
        if is_trusted(folder):
            return folder
    raise failed
