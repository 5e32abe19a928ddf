"""Find the location of each rank: the operation or function that it is in; ranks at the same line are grouped."""

from typing import NamedTuple

from analyzers.hangs.model import Frame, Job, user_frame
from analyzers.hangs.reading.side_files import SideFiles
from analyzers.words import source_line

MOST_RANKS = 1 << 20
"""The most ranks that are listed; a damaged file may claim any world size, but no job has more."""

_NO_OPERATION = "no recorded operation"
_NO_DUMP = "no dump"


class Location(NamedTuple):
    """The ranks that are at one line. `name` is their operation or function; `line` is empty if no line is known."""

    ranks: list[int]
    name: str
    line: str


def find_locations(job: Job, side: SideFiles) -> list[Location]:
    """Return the ranks grouped by the operation or function and the line that they are in, the largest group first."""
    together: dict[tuple[str, str], list[int]] = {}
    for rank in (rank for rank in range(min(job.world_size, MOST_RANKS)) if rank not in job.unread):
        together.setdefault(_find_location(job, side, rank), []).append(rank)
    every = [Location(ranks, name, line) for (name, line), ranks in together.items()]
    return sorted(every, key=lambda location: (-len(location.ranks), location.name, location.line))


def _find_location(job: Job, side: SideFiles, rank: int) -> tuple[str, str]:
    """Return (operation or function that a rank is in, user's line), as texts; the line is empty if unknown."""
    state, stack = job.ranks.get(rank), side.main_stack(rank)
    current = state.current if state else None
    line = user_frame(stack) or (job.line(current) if current else None)
    if current:
        name = job.operation(current)
    elif line:
        name = line.name if state else _find_python_function(stack, line)
    else:
        name = _NO_OPERATION if state else _NO_DUMP
    return name, source_line(line.filename, line.line) if line else ""


def _find_python_function(stack: list[Frame], line: Frame) -> str:
    """Return the name of the innermost Python function in a stack, or else the function of the frame `line`.

    It is shown in place of the rank's operation if there is no dump.
    """
    return next((frame.name for frame in stack if frame.filename.endswith(".py")), line.name)
