"""How much memory may this process hold, and how much of that is left?"""

import resource
from pathlib import Path
from typing import NamedTuple

LIMITS = (resource.RLIMIT_DATA, resource.RLIMIT_AS)


class Room(NamedTuple):
    """Bytes that a process may hold, and bytes that it may still take; None: no limit is set."""

    limit: int | None
    free: int | None


def memory_room() -> Room:
    """Return the tighter of the limits on data and on address space.

    Both count the whole process, not its tensors alone.
    """
    try:
        pages = Path("/proc/self/statm").read_text().split()
    except OSError:
        return Room(None, None)
    # Fields of statm in pages: 0 is the address space, 5 is data and stack. See man 5 proc.
    size, page = {resource.RLIMIT_DATA: int(pages[5]), resource.RLIMIT_AS: int(pages[0])}, resource.getpagesize()
    limited = [
        Room(soft, max(0, soft - size[kind] * page))
        for kind in LIMITS
        if (soft := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY
    ]
    return min(limited, key=lambda room: room.free or 0, default=Room(None, None))


def resident_bytes() -> int | None:
    """Return the bytes of memory that this process occupies, or None if the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return None


def raise_soft_limits() -> None:
    """Raise the soft limits to the hard ones, so that a snapshot can be written after memory ran out."""
    for kind in LIMITS:
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (hard, hard))
