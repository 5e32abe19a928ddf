"""Measure how much the cache holds, and delete the least recently used entries above its limit."""

import math
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from analyzers.cache.entry_folders import SCRATCH, CacheFailure, discard, failure
from analyzers.files import read_whole

DEFAULT_LIMIT = 10 << 30
"""The bytes that the cache may hold unless the user sets another limit."""
LIMIT_FILE = "limit"
"""The name of the file in the cache's folder with the limit that the user set, in bytes."""
ENTRY = re.compile(r"[0-9a-f]{32}")
"""Matches the names of cache entries; files with other names in the folder are not deleted."""
_ABANDONED_S = 86_400.0
"""The age in seconds after which a scratch folder counts as left by a killed process: no file takes a day to read."""
_LIMIT_BYTES = 32
"""The largest number of bytes that are read of the file with the limit."""


class Entry(NamedTuple):
    """An entry of the cache: when it was last used (seconds since the epoch), its size in bytes, and its folder."""

    used: float
    size: int
    folder: Path


def entries(folder: Path) -> list[Entry]:
    """Return the entries of a cache folder, the most recently used first.

    An entry that another process deletes at the same time is left out.
    """
    try:
        names = [path for path in folder.iterdir() if ENTRY.fullmatch(path.name)]
    except OSError:
        return []
    return sorted((known for path in names if (known := _entry_of(path))), reverse=True)


def _entry_of(path: Path) -> Entry | None:
    """Return the cache entry in the folder `path`; None if another process has just deleted it."""
    try:
        files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names] or [path]
        return Entry(path.stat().st_mtime, sum(file.stat().st_size for file in files), path)
    except OSError:
        return None


GROWN: dict[Path, float] = {}
"""{cache folder: number of bytes that this process has added to it since it last pruned it}."""
_PARTS_OF_LIMIT = 64


def prune_if_grown(entry: Path) -> None:
    """Prune the cache if this process has added enough to it since the last pruning; `entry` is the newest entry.

    Enough is a fixed part of the cache's limit. Pruning looks at every file of the cache, so pruning after each of many
    small entries would cost more than everything else. The first entry of a process always counts as enough, so that
    the cache cannot grow beyond this part.
    """
    added, limit = _entry_of(entry), limit_bytes(entry.parent)
    grown = GROWN.get(entry.parent, math.inf) + (added.size if added else 0)
    GROWN[entry.parent] = 0 if grown > limit // _PARTS_OF_LIMIT else grown
    if not GROWN[entry.parent]:
        prune(entry.parent, limit)


def prune(folder: Path, limit: int) -> None:
    """Delete the least recently used entries until the rest fits into `limit` bytes; the newest entry always stays.

    Abandoned scratch folders are deleted, too.
    """
    total = 0
    for number, entry in enumerate(entries(folder)):
        total += entry.size
        if total > limit and number:
            discard(entry.folder)
    _remove_scratch(folder, older_than_s=_ABANDONED_S)


def clear(folder: Path) -> list[Entry]:
    """Delete all entries of a cache and return them; entries that another process is writing stay.

    Raises:
        CacheFailure: An entry could not be deleted.
    """
    found = entries(folder)
    for entry in found:
        discard(entry.folder)
    _remove_scratch(folder, older_than_s=_ABANDONED_S)
    # Another process may have written an entry again in the meantime: that one is as new as its time says.
    if left := sum(_entry_of(entry.folder) == entry for entry in found):
        raise CacheFailure(f"{folder}: {left} of {len(found)} entries cannot be deleted", "check whose folder it is")
    return found


def _remove_scratch(folder: Path, older_than_s: float) -> None:
    """Delete the scratch folders in a cache folder that have not changed for more than `older_than_s` seconds.

    Their processes were killed before they could delete them. Only the age is checked, so `older_than_s` must be longer
    than the reading of any file takes.
    """
    for path in folder.glob(f"{SCRATCH}*"):
        try:
            if time.time() - path.stat().st_mtime > older_than_s:
                discard(path)
        except OSError:
            # Another process was faster.
            continue


def limit_bytes(folder: Path) -> int:
    """Return how many bytes a cache may hold: the limit set by `workbench cache --limit`, or 10 GiB."""
    try:
        return int(read_whole(folder / LIMIT_FILE, _LIMIT_BYTES))
    except (OSError, ValueError):
        return DEFAULT_LIMIT


def set_limit(folder: Path, limit: int) -> None:
    """Set how many bytes the cache may hold, and delete the least recently used entries that do not fit.

    Raises:
        CacheFailure: The folder cannot be written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / LIMIT_FILE).write_text(f"{limit}\n")
    except OSError as error:
        raise failure(folder, error) from error
    prune(folder, limit)
