"""Read what is new in a node's run folder, as parts of files that are small enough to be sent.

A file has something new if its inode, size or time has changed since it was sent. A rank writes its heartbeat through
mapped memory, which need not change the time of the file. So small files are compared by their content.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from analyzers.files import open_regular
from analyzers.run import SKIPPED_FOLDERS
from workbench.collect.artefact_names import DEEPEST, is_artefact, only_grows, urgency
from workbench.collect.parcel import PART_BYTES, TAIL_BYTES, Part, Result

SMALL_BYTES = 4096
MOST_FILES = 50_000
State = tuple[object, ...]
"""The values that distinguish the present content of a file from an earlier one."""


@dataclass
class Progress:
    """How much of a file has been sent: its first `have` bytes, of the content `version` if it is sent as a whole.

    `sent` is the state of the file when all of it had been sent. `as_whole` says that a file that only grows must be
    sent as a whole once, because the receiver has a different file. `refused` is the reason why the receiver does not
    accept the file.
    """

    have: int = 0
    version: str = ""
    sent: State = ()
    as_whole: bool = False
    refused: str = ""


class Outgoing:
    """The files of a run folder, and how much of each file has been sent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._progress: dict[str, Progress] = {}

    def parts(self) -> Iterator[tuple[Part, State]]:
        """Yield the next part of each file that has something new, with the state of the file; urgent files come first.

        A part counts as sent only after `note` is called with the result.
        """
        for path in sorted(artefacts_below(self._folder), key=urgency):
            progress = self._progress.setdefault(path, Progress())
            try:
                with open_regular(self._folder / path) as file:
                    state = state_of(path, file)
                    if state != progress.sent:
                        yield next_part(path, file, state, progress), state
            except OSError:  # gone, or replaced by something else; the next look will see
                continue

    def note(self, part: Part, state: State, result: Result) -> bool:
        """Remember the result for a part, and return whether more of the file has to be sent."""
        progress = self._progress[part.path]
        progress.refused, progress.have, progress.version = result.refused, result.have, part.version
        if result.differs or result.have > part.size:
            progress.as_whole, progress.have = True, 0
            return True
        # The end of what a receiver had before is compared first.
        is_compared = bool(part.version) or result.have == part.offset + len(part.data)
        if not result.refused and (result.have < part.size or not is_compared):
            return True
        # A file that was refused is tried again when it has changed.
        progress.sent, progress.as_whole = state, False
        return False

    def refused(self) -> dict[str, str]:
        """Return {path: reason} of the files that the receiver did not accept."""
        return {path: progress.refused for path, progress in self._progress.items() if progress.refused}


def state_of(path: str, file: BufferedReader) -> State:
    """Return the state of an open file; if the state changes, the file has new content."""
    status = os.fstat(file.fileno())
    if status.st_size <= SMALL_BYTES and not only_grows(path):
        return status.st_ino, status.st_size, file.read(SMALL_BYTES)
    return status.st_ino, status.st_size, status.st_mtime_ns


def next_part(path: str, file: BufferedReader, state: State, progress: Progress) -> Part:
    """Return the next part of a file that the receiver does not have."""
    status = os.fstat(file.fileno())
    size, mtime_ns = status.st_size, status.st_mtime_ns
    if only_grows(path) and not progress.as_whole and size >= progress.have:
        before = tail_before(file, progress.have)
        data = file.read(min(PART_BYTES, size - progress.have))
        return Part(path, progress.have, size, mtime_ns, "", before, data)
    version = hashlib.sha256(repr(state).encode()).hexdigest()[:16]
    offset = progress.have if progress.version == version else 0
    file.seek(offset)
    return Part(path, offset, size, mtime_ns, version, "", file.read(min(PART_BYTES, size - offset)))


def tail_before(file: BufferedReader, end: int) -> str:
    """Return the checksum of the last bytes before the position `end`; afterwards the file is at this position."""
    start = max(0, end - TAIL_BYTES)
    file.seek(start)
    return hashlib.sha256(file.read(end - start)).hexdigest() if end else ""


def artefacts_below(folder: Path) -> Iterator[str]:
    """Yield the relative paths of the artefacts below a run folder that may be sent; links are left out."""
    seen = 0
    for here, folders, names in os.walk(folder):
        below = Path(here).relative_to(folder)
        folders[:] = sorted(name for name in folders if is_wanted(below / name))
        for path in (str(below / name) for name in sorted(names)):
            seen += 1
            if seen > MOST_FILES:
                return
            if is_artefact(path) and is_file(folder / path):
                yield path


def is_wanted(folder: Path) -> bool:
    """Return whether a folder, relative to the run folder, may contain artefacts."""
    return folder.name not in SKIPPED_FOLDERS and len(folder.parts) < DEEPEST and is_artefact(str(folder / "x"))


def is_file(path: Path) -> bool:
    """Return whether a path is a regular file and not a link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
