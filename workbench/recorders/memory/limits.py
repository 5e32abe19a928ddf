"""How much memory this process may hold, and how much of that is left."""

import resource
from pathlib import Path
from typing import NamedTuple

LIMITS = (resource.RLIMIT_DATA, resource.RLIMIT_AS)


class Room(NamedTuple):
    """Bytes a process may hold, and bytes it may still take; None: no limit is set."""

    limit: int | None
    free: int | None


def room() -> Room:
    """The tighter of the limits on data and on address space. Both count all of the process, not tensors alone."""
    try:
        pages = Path("/proc/self/statm").read_text().split()
    except OSError:
        return Room(None, None)
    size, page = {resource.RLIMIT_DATA: int(pages[5]), resource.RLIMIT_AS: int(pages[0])}, resource.getpagesize()
    limited = [
        Room(soft, max(0, soft - size[kind] * page))
        for kind in LIMITS
        if (soft := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY
    ]
    return min(limited, key=lambda one: one.free or 0, default=Room(None, None))


def resident() -> int | None:
    """Bytes of memory that this process occupies; None where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return None


def lift() -> None:
    """Raise the soft limits to the hard ones, so that what is left to do has memory."""
    for kind in LIMITS:
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (hard, hard))
