"""Where the ranks stand: those in the same operation at the same line together."""

from typing import NamedTuple

from analyzers.hangs.model import Frame, Job, user_frame
from analyzers.hangs.reading.side_files import Side
from analyzers.words import source_line

MOST_RANKS = 1 << 20


class Crowd(NamedTuple):
    """Ranks in one place; `place` is empty where no line is known."""

    ranks: list[int]
    name: str
    place: str

    def said(self) -> str:
        """A line such as `62 ranks in all_gather at job/model.py:212`."""
        them = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"{len(self.ranks)} ranks"
        return f"{them} in {self.name}" + (f" at {self.place}" if self.place else "")


def crowds(job: Job, side: Side) -> list[Crowd]:
    """All ranks, the most frequent place first."""
    standing: dict[tuple[str, str], list[int]] = {}
    for rank in range(min(job.world_size, MOST_RANKS)):
        standing.setdefault(spot(job, side, rank), []).append(rank)
    found = [Crowd(ranks, name, where) for (name, where), ranks in standing.items()]
    return sorted(found, key=lambda one: (-len(one.ranks), one.name, one.place))


def spot(job: Job, side: Side, rank: int) -> tuple[str, str]:
    """The operation or function that a rank is in, and the user's line."""
    state, stack = job.ranks.get(rank), side.main_stack(rank)
    front = state.front if state else None
    line = user_frame(stack) or (job.line(front) if front else None)
    if front:
        name = job.operation(front)
    elif line:
        name = line.name if state else called(stack, line)
    else:
        name = "no recorded operation" if state else "no dump"
    return name, source_line(line.filename, line.line) if line else ""


def called(stack: list[Frame], line: Frame) -> str:
    """The innermost Python function of a stack: where no dump names the operation it does."""
    return next((frame.name for frame in stack if frame.filename.endswith(".py")), line.name)
