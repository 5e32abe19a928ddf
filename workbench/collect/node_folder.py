"""Write the files of one node: assemble whole files from parts, and append to files that grow.

A file of several parts is assembled below `.incoming/` in the node's folder, and renamed into place when it is
complete. So even if the receiver or the node is killed, each file is either complete, or the beginning of a file that
grows.
"""

import errno
import hashlib
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

from analyzers.files import open_regular
from analyzers.words import size as format_size
from analyzers.writing import flush_folder
from workbench.collect.artefact_names import is_artefact, is_plain, only_grows
from workbench.collect.parcel import TAIL_BYTES, Part, Result

INCOMING = ".incoming"
FILE_BYTES = 1 << 30
"""The size in bytes of the longest file that is accepted."""
NODE_BYTES, NODE_FILES = 4 << 30, 20_000
"""The most bytes and files that are accepted from one node."""
FREE_BYTES = 1 << 30
"""The free bytes that must remain on the disk; a file that would leave fewer is not accepted."""
LARGEST = (1 << 63) - 1
HEARTBEAT = "heartbeat_"


class NodeFolder:
    """The folder with the files of one node; `files` and `bytes` are the number and size of the accepted files.

    Hold `lock` while adding parts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self._incoming = folder / INCOMING
        self._sizes = {
            str(path.relative_to(folder)): path.stat().st_size
            for path in folder.rglob("*")
            if path.is_file() and INCOMING not in path.parts
        }
        self.bytes = sum(self._sizes.values())

    @property
    def files(self) -> int:
        """The number of files of the node."""
        return len(self._sizes)

    def add(self, part: Part) -> Result:
        """Write a part of a file if it is acceptable, and return how much of the file is now in this folder."""
        if refused := self._refusal(part):
            return Result(refused=refused)
        try:
            return self._append(part) if not part.version else self._assemble(part)
        except OSError as error:
            return Result(refused=error.strerror or str(error))

    def _refusal(self, part: Part) -> str:
        """Return the reason why a part is not accepted; empty if it is accepted."""
        if not is_artefact(part.path) or (part.version and not is_plain(part.version)):
            return "not the name of an artefact"
        if not (0 <= part.offset <= part.offset + len(part.data) <= part.size and 0 <= part.mtime_ns <= LARGEST):
            return "a part outside of its file"
        if not part.version and not only_grows(part.path):
            return "a file that does not only grow needs a version"
        return self._limit(part)

    def _limit(self, part: Part) -> str:
        """Return a text about the limit that a part exceeds; empty if it exceeds none."""
        if part.size > FILE_BYTES:
            return f"larger than {format_size(FILE_BYTES)}"
        if self.bytes - self._sizes.get(part.path, 0) + part.size > NODE_BYTES:
            return f"a node may send {format_size(NODE_BYTES)}"
        if part.path not in self._sizes and self.files >= NODE_FILES:
            return f"a node may send {NODE_FILES} files"
        if shutil.disk_usage(self.folder).free < FREE_BYTES + part.size:
            return "the disk of the receiver is almost full"
        return ""

    def _append(self, part: Part) -> Result:
        """Append a part to a file that only grows, if the file in this folder is the beginning of the node's file."""
        target = self._parent_of(part.path)
        have = target.stat().st_size if target.exists() else 0
        if part.offset != have:
            # After a restart the sender does not know how much is here.
            return Result(have)
        if part.before != checksum_of_tail(target, have):
            return Result(have, differs=True)
        # O_NOFOLLOW: a link that another program puts there must not lead the write elsewhere.
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644), "wb") as file:
            file.write(part.data)
        self._finish(target, part, have + len(part.data))
        return Result(have + len(part.data))

    def _assemble(self, part: Part) -> Result:
        """Write a part of a file that is replaced as a whole; when all parts are here, replace the file."""
        target = self._parent_of(part.path)
        if is_same(target, part):
            return Result(part.size)
        # A path may be longer than the name of a file, and has slashes.
        name = hashlib.sha256(part.path.encode()).hexdigest()[:32]
        self._incoming.mkdir(exist_ok=True)
        draft = self._incoming / f"{name}.{part.version}"
        have = draft.stat().st_size if draft.exists() else 0
        # A receiver that was killed may have left a whole draft, which was not renamed yet.
        if have not in (part.offset, part.size):
            return Result(have)
        for other in self._incoming.glob(f"{name}.*"):
            if other != draft:
                other.unlink()
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644), "wb") as file:
            if part.offset == have:
                file.write(part.data)
                have += len(part.data)
            if have == part.size and HEARTBEAT not in part.path:
                # Heartbeats are replaced every few seconds: to flush those of many nodes would keep the disk busy.
                file.flush()
                os.fsync(file.fileno())
        if have == part.size:
            draft.replace(target)
            flush_folder(target.parent)
            self._finish(target, part, have)
        return Result(have)

    def _parent_of(self, path: str) -> Path:
        """Create the folder of a file, and return the path of the file.

        Raises:
            OSError: A part of the path is a link or a file; only another program can have made it.
        """
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_symlink() or not target.parent.resolve().is_relative_to(self.folder.resolve()):
            raise OSError(errno.ELOOP, "a link in the folder of the node")
        return target

    def _finish(self, target: Path, part: Part, size: int) -> None:
        os.utime(target, ns=(part.mtime_ns, part.mtime_ns))
        self.bytes += size - self._sizes.get(part.path, 0)
        self._sizes[part.path] = size


def is_same(target: Path, part: Part) -> bool:
    """Return whether a file with the same size and time as the node's file is already in this folder."""
    with suppress(OSError):
        status = target.stat()
        return (status.st_size, status.st_mtime_ns) == (part.size, part.mtime_ns) and HEARTBEAT not in part.path
    return False


def checksum_of_tail(path: Path, end: int) -> str:
    """Return a checksum of the last bytes of a file before the position `end`; empty if `end` is 0."""
    if not end:
        return ""
    with open_regular(path) as file:
        start = max(0, end - TAIL_BYTES)
        file.seek(start)
        return hashlib.sha256(file.read(end - start)).hexdigest()
