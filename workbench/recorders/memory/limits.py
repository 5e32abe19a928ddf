"""Read and change the memory limits of this process, and return how much it may still allocate."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from workbench.recorders.signals import raise_of_script

NAMES = {resource.RLIMIT_DATA: "RLIMIT_DATA", resource.RLIMIT_AS: "RLIMIT_AS"}
LIMITS = tuple(NAMES)


class Room(NamedTuple):
    """The memory limit of this process (`limit`) and the memory that it may still allocate (`free`), in bytes.

    `name` is the name of the limit, `RLIMIT_DATA` or `RLIMIT_AS`. All three are None if no limit is set.
    """

    limit: int | None
    free: int | None
    name: str | None = None


def memory_room() -> Room:
    """Return the limit and the free bytes of this process under the limit that leaves less: RLIMIT_DATA or RLIMIT_AS.

    RLIMIT_DATA limits the data of the process and RLIMIT_AS its address space. Both count all memory, not only tensors.
    """
    soft = {kind: resource.getrlimit(kind)[0] for kind in LIMITS}
    limited = [kind for kind in LIMITS if soft[kind] != resource.RLIM_INFINITY]
    # Each step asks: most processes have no limit, and need not read how much they hold.
    if not limited:
        return Room(None, None)
    try:
        pages = Path("/proc/self/statm").read_text().split()
    except OSError as error:
        raise_of_script(error)
        return Room(None, None)
    # Fields of statm in pages: 0 is the address space, 5 is data and stack. See man 5 proc.
    field, page = {resource.RLIMIT_DATA: 5, resource.RLIMIT_AS: 0}, resource.getpagesize()
    held = {kind: int(pages[field[kind]]) * page for kind in limited}
    rooms = [Room(soft[kind], max(0, soft[kind] - held[kind]), NAMES[kind]) for kind in limited]
    return min(rooms, key=lambda room: room.free or 0)


def soft_limits() -> dict[str, int]:
    """Return {name: bytes} of this process's soft memory limits `data` and `address_space`; unset ones are omitted."""
    limits = {name: resource.getrlimit(kind)[0] for name, kind in zip(("data", "address_space"), LIMITS, strict=True)}
    return {name: limit for name, limit in limits.items() if limit != resource.RLIM_INFINITY}


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes, or None if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError as error:
        raise_of_script(error)
        return None


def raise_soft_limits() -> None:
    """Raise the soft memory limits to the hard limits, so that a snapshot can be written after memory has run out."""
    for kind in LIMITS:
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (hard, hard))


@contextmanager
def soft_limits_kept() -> Iterator[None]:
    """Set the soft memory limits at the end of this context to what they were at its beginning."""
    before = {kind: resource.getrlimit(kind)[0] for kind in LIMITS}
    try:
        yield
    finally:
        for kind, soft in before.items():
            resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))
