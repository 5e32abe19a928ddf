"""Implement `workbench cache`: show, limit or delete the stored results of reading large files."""

import time
from pathlib import Path

from analyzers.cache import locations, pruning
from analyzers.cache.pruning import Entry
from analyzers.errors import Exit
from analyzers.words import duration, quantity, size
from workbench.errors import UsageProblem


def manage(limit: int | None, *, clear: bool) -> Exit:
    """Set the size limit of the cache in bytes if one is given; then delete its entries (`clear`) or describe them.

    Raises:
        UsageProblem: There is no folder for a cache, or the limit is too small for a single file.
        CacheFailure: The folder cannot be written.
    """
    folder = locations.cache_folder()
    if folder is None:
        raise UsageProblem("this user has no home folder, so nothing is kept", "set WORKBENCH_CACHE to a folder")
    if limit is not None:
        pruning.set_limit(folder, limit)
    print(cleared(folder) if clear else described(folder, pruning.entries(folder)))
    return Exit.OK


def cleared(folder: Path) -> str:
    """Delete all entries of the cache, and return a sentence with their number and total size."""
    deleted = pruning.clear(folder)
    return f"deleted {quantity(len(deleted), 'entry')} ({total(deleted)}) from {folder}"


def described(folder: Path, entries: list[Entry]) -> str:
    """Return three lines of text about the cache: its folder, the number and size of its entries, and its limit."""
    kept = f"{quantity(len(entries), 'entry')}, {total(entries)}"
    if entries:
        kept += f", used between {age(entries[-1])} and {age(entries[0])} ago"
    limit = size(pruning.limit_bytes(folder))
    return f"folder  {folder}\nholds   {kept}\nlimit   {limit}; the entries used longest ago are deleted first"


def total(entries: list[Entry]) -> str:
    return size(sum(entry.size for entry in entries))


def age(entry: Entry) -> str:
    return duration(max(0.0, time.time() - entry.used))
