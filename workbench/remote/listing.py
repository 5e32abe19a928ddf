"""List the files below a URL that may be artefacts, with safe names for their local copies.

A listing comes from another machine and may be hostile. So only the last part of each name is used, and parts such as
`..` are left out. Checkpoints and weights are not listed, because they are large and not artefacts.
"""

import calendar
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath

from analyzers.errors import InputError
from analyzers.kinds import kind_by_name
from analyzers.run import DEEPEST, FILES_AT_MOST, SKIPPED_FOLDERS
from workbench.remote.file_system import Details, FileSystem
from workbench.remote.urls import without_credentials

_LISTING_S = 300
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


def list_files(file_system: FileSystem, root: str) -> Listing:
    """Return the files at or below `root`.

    Raises:
        InputError: There are more than FILES_AT_MOST files, or the server takes too long to list them.
        Exception: Any error of the file system, if the files cannot be listed.
    """
    deadline = time.monotonic() + _LISTING_S
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
        if time.monotonic() > deadline:
            raise InputError(f"not all files are listed after {_LISTING_S} s", "give the folder of one run")
    return listing


def below(file_system: FileSystem, root: str, refused: list[str]) -> Iterator[tuple[Details, PurePosixPath]]:
    """Yield the details of each file and folder below `root`, and the relative path of its local copy.

    Unsafe names are added to `refused`.
    """
    folders = [(root, PurePosixPath())]
    while folders:
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
