"""Copy the files at a URL into the cache, and print on stderr what was copied."""

import calendar
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from analyzers import cache
from analyzers.cache import failure, is_trusted
from analyzers.errors import InputError
from analyzers.files import read_whole, replacing
from analyzers.kinds import kind_by_name
from analyzers.run import DEEPEST, FILES_AT_MOST, SKIPPED_FOLDERS
from analyzers.words import quantity, size
from workbench.console import note
from workbench.progress import shown_text
from workbench.remote.file_system import BOUNDS, Details, FileSystem, Vanished, asking, open_file_system
from workbench.remote.urls import without_credentials

_NAME_BYTES = 255
"""The most bytes in the name of a file on this machine."""
WEIGHTS = frozenset({".bin", ".ckpt", ".distcp", ".pt", ".pth", ".safetensors"})
_TIMES = ("LastModified", "last_modified", "Last-Modified", "mtime", "modified", "updated", "created", "date_time")
"""The fields in which file systems give the time at which a file was written."""
VERSIONS = (
    *_TIMES,
    *("ETag", "etag", "md5", "md5Hash", "Content-MD5", "content_md5", "crc32c", "CRC", "checksum", "Digest"),
    *("generation", "VersionId", "version_id", "sha", "sha256", "hex"),
)
"""The fields of a listing that change with the content of a file, in any file system."""


@dataclass(frozen=True)
class RemoteFile:
    """A file below a URL: its path in the file system, and the relative path of its local copy (`copy`).

    `version` is a text that changes when the content changes; None if the file system reports nothing of that kind.
    `size` is in bytes, `modified` in Unix seconds; both are None if unknown.
    """

    path: str
    copy: PurePosixPath
    version: str | None
    size: int | None
    modified: float | None


@dataclass
class Listing:
    """The files at a URL, which is a single file (`is_file`) or a folder.

    `refused` has the names that are left out because they are unsafe here.
    """

    files: list[RemoteFile] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    is_file: bool = False


def _list_files(file_system: FileSystem, root: str) -> Listing:
    """Return the files at or below `root`.

    Raises:
        InputError: There are more than FILES_AT_MOST files, or the server takes too long to list them.
        Exception: Any error of the file system, if the files cannot be listed.
    """
    details, listing = file_system.info(root), Listing()
    # The web knows no folders: there, a URL that ends with a slash is a page that lists files.
    if details["type"] != "directory" and not root.endswith("/"):
        name = _last_part(str(details["name"]))
        file = _remote_file(file_system, details, PurePosixPath(name if _is_safe(name) else "artefact"))
        return Listing([file], is_file=True)
    seen = set[PurePosixPath]()
    for found, copy in below(file_system, root, listing.refused):
        # An object store may have a folder and a file of one name.
        if copy in seen:
            listing.refused.append(str(copy))
            continue
        seen.add(copy)
        if found["type"] != "directory" and _is_wanted(copy):
            try:
                listing.files.append(_remote_file(file_system, found, copy))
            except FileNotFoundError:
                # Listed, and not there: deleted since then, or it redirects to another host.
                listing.refused.append(str(copy))
        if len(seen) + len(listing.refused) > FILES_AT_MOST:
            raise InputError(f"more than {FILES_AT_MOST} files", "give the folder of one run")
    return listing


def below(file_system: FileSystem, root: str, refused: list[str]) -> Iterator[tuple[Details, PurePosixPath]]:
    """Yield the details of each file and folder below `root`, and the relative path of its local copy.

    Unsafe names are added to `refused`.

    Raises:
        InputError: The server takes too long to list them.
    """
    folders, deadline = [(root, PurePosixPath())], time.monotonic() + BOUNDS.listing_s

    def require_time() -> None:
        if time.monotonic() > deadline:
            raise InputError(f"not all files are listed after {BOUNDS.listing_s:.0f} s", "give the folder of one run")

    while folders:
        require_time()
        folder, place = folders.pop()
        for details in sorted(file_system.ls(folder, detail=True), key=lambda details: str(details["name"])):
            path, name = str(details["name"]), _last_part(str(details["name"]))
            # An object store lists a folder as an empty file in it.
            if path.rstrip("/") == folder.rstrip("/"):
                continue
            # A page may list the pages above it: to follow these would never end.
            if not _is_safe(name) or _parent_of(path) != _parent_of(f"{folder}/x"):
                refused.append(path)
                continue
            require_time()
            yield details, place / name
            if details["type"] == "directory" and name not in SKIPPED_FOLDERS and len(place.parts) < DEEPEST:
                folders.append((path, place / name))


def _last_part(name: str) -> str:
    return without_credentials(name).rstrip("/").rpartition("/")[2]


def _parent_of(name: str) -> str:
    return without_credentials(name).rstrip("/").rpartition("/")[0].rstrip("/")


def _is_safe(name: str) -> bool:
    """Return whether a name is safe as the name of a single file in a folder, on every file system."""
    return name not in ("", ".", "..") and "\0" not in name and len(name.encode(errors="replace")) <= _NAME_BYTES


def _is_wanted(copy: PurePosixPath) -> bool:
    """Return whether a file may be an artefact: it is neither hidden nor a file of weights."""
    return not copy.name.startswith(".") and (copy.suffix not in WEIGHTS or kind_by_name(Path(copy)) is not None)


def _remote_file(file_system: FileSystem, details: Details, copy: PurePosixPath) -> RemoteFile:
    """Return the `RemoteFile` for the details of a file in a listing.

    If the details have no version, the file system is asked for the details of this single file.
    """
    path = str(details["name"])
    if _version_of(details) is None:
        details = {**details, **file_system.info(path)}
    size = details.get("size")
    return RemoteFile(path, copy, _version_of(details), size if isinstance(size, int) else None, modified(details))


def _version_of(details: Details) -> str | None:
    """Return a checksum of all details that change with a file's content; None if only the size is known."""
    known = [f"{name}={details[name]}" for name in VERSIONS if details.get(name) is not None]
    if not known:
        return None
    return hashlib.sha256("\0".join([*known, f"size={details.get('size')}"]).encode()).hexdigest()[:32]


def modified(details: Details) -> float | None:
    """Return the Unix time, in seconds, at which a file was last written; None if unknown."""
    value = next((details[name] for name in _TIMES if details.get(name) is not None), None)
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value) if value[:4].isdigit() else parsedate_to_datetime(value)
        if isinstance(value, tuple):  # as in a zip archive
            value = calendar.timegm(value)
        if isinstance(value, datetime):
            value = value.timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return float(value) if isinstance(value, int | float) else None


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
        return self.files / file.copy

    def holds(self, file: RemoteFile) -> bool:
        copied = self._copied.get(str(file.copy))
        if copied is None or copied.version is None or copied.version != file.version:
            return False
        try:
            return self.path_of(file).stat().st_size == copied.size
        except OSError:
            return False

    def add(self, file: RemoteFile) -> None:
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
def _opened_mirror(url: str, *, keep: bool) -> Iterator[Mirror]:
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
    cache.prune(folder.parent, cache.limit_bytes(folder.parents[1]))


def _usable_folder(name: str, *, keep: bool) -> Path:
    """Create the folder of a mirror in the first cache folder that can be written, and return it.

    `name` is the name of the new folder. Without `keep`, only temporary folders are used.

    Raises:
        CacheFailure: No cache folder can be written.
    """
    failed = cache.no_folder()
    for parent in cache.folders() if keep else cache.temporary_folders():
        folder = parent / REMOTE_FOLDER / name
        try:
            (folder / "files").mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            failed = failure(parent, error)
            continue
        if is_trusted(folder):
            return folder
    raise failed


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
    return InputError(
        f"{without_credentials(url)}: {size(wanted)} to download, and the cache may hold {size(limit)}",
        "raise it with `workbench cache --limit`, or give one folder or file of the run",
    )


def copied(url: str, *, keep: bool) -> Path:
    """Download the files at a URL that are new or changed since the last copy; return the path of the copies.

    Raises:
        InputError: The URL cannot be read, or has more bytes than the cache may hold.
    """
    file_system, root = open_file_system(url)
    listing = asking(url, lambda: _list_files(file_system, root))
    _report_refused(url, listing)
    if not listing.files:
        raise InputError(f"{without_credentials(url)}: no files there", "give the folder of a run, or a file of it")
    with _opened_mirror(url, keep=keep) as mirror:
        limit = cache.limit_bytes(mirror.folder.parents[1])
        if (wanted := sum(file.size or 0 for file in listing.files)) > limit:
            raise too_large(url, wanted, limit)
        mirror.remove_others(listing.files)
        missing = [file for file in listing.files if not mirror.holds(file)]
        download = Download(url, file_system, mirror, missing, limit)
        download.run()
        _report_copies(url, mirror, download, len(listing.files))
    return mirror.path_of(listing.files[0]) if listing.is_file else mirror.files


def _report_refused(url: str, listing: Listing) -> None:
    if listing.refused:
        count = quantity(len(listing.refused), "name")
        note(f"note: {without_credentials(url)}: left out {count} that cannot be read from there: {listing.refused[0]}")


def _report_copies(url: str, mirror: Mirror, download: Download, count: int) -> None:
    done = f"downloaded {quantity(download.done_files, 'file')} of {count}, {size(download.done_bytes)}"
    note(f"{without_credentials(url)}: {done if download.done_files else 'unchanged'}; read from {mirror.files}")
