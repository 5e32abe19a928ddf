"""Implement `workbench cache`: show, limit or delete what was stored when large files were read."""

import time
from pathlib import Path

from analyzers import cache
from analyzers.cache import Entry
from analyzers.errors import Exit
from analyzers.words import duration, quantity, size
from workbench.errors import UsageProblem
from workbench.remote.copies import REMOTE_FOLDER


def manage(limit: int | None, *, clear: bool) -> Exit:
    """Set the size limit of the cache, if one is given; then print the contents of the cache, or delete them.

    `limit` is in bytes. `clear` deletes everything.

    Raises:
        UsageProblem: There is no folder for a cache, or the limit is too small for a single file.
        CacheFailure: The folder cannot be written.
    """
    folder = cache.cache_folder()
    if folder is None:
        raise UsageProblem("this user has no home folder, so nothing is kept", "set WORKBENCH_CACHE to a folder")
    copies = folder / REMOTE_FOLDER
    if limit is not None:
        cache.set_limit(folder, limit)
        cache.prune(copies, limit)
    print(cleared(folder, copies) if clear else described(folder, copies))
    return Exit.OK


def cleared(folder: Path, copies: Path) -> str:
    deleted = [*cache.clear(folder), *cache.clear(copies)]
    return f"deleted {quantity(len(deleted), 'entry')} ({total(deleted)}) from {folder}"


def described(folder: Path, copies: Path) -> str:
    """Return three or four lines of text about the cache: its folder, its contents, and its limit.

    `copies` is the folder with copies of remote files.
    """
    limit = size(cache.limit_bytes(folder))
    lines = [f"folder  {folder}", f"holds   {contents(cache.entries(folder))}"]
    if runs := cache.entries(copies):
        lines.append(f"copies  {contents(runs)}, of files at URLs")
    return "\n".join(
        [*lines, f"limit   {limit}{' of each' if runs else ''}; the entries used longest ago are deleted first"]
    )


def contents(entries: list[Entry]) -> str:
    kept = f"{quantity(len(entries), 'entry')}, {total(entries)}"
    return f"{kept}, used between {age(entries[-1])} and {age(entries[0])} ago" if entries else kept


def total(entries: list[Entry]) -> str:
    return size(sum(entry.size for entry in entries))


def age(entry: Entry) -> str:
    return duration(max(0.0, time.time() - entry.used))
