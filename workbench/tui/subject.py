"""What the app can show, called its subject: a run and its report, or a comparison of runs."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from analyzers import compare, parity
from analyzers.report import Report
from analyzers.rooms import JOINED, ROOMS, ask, limited_to
from analyzers.run import Run
from analyzers.store import Options
from workbench.rooms import FACES


@dataclass(frozen=True)
class Subject:
    """A run, some of its files, or two runs to compare (`runs`), and the room that is asked about them.

    The view of the room is shown first. The room `incident` has no view of its own, as it joins all others; then the
    home view is shown first. `ask` computes the report, which may take minutes. `command` is the command line of
    `workbench` that shows the same.
    """

    room: str
    runs: tuple[Run, ...]
    options: Options
    ask: Callable[[], Report[object]]
    command: str

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views, in order."""
        rooms = [name for name, room in ROOMS.items() if room.kinds and FACES[name].pane]
        if self.room not in (JOINED, *rooms):
            return ("home", *([self.room] if FACES[self.room].pane else []))
        # Logs come last, so that the numbers of the other views stay.
        return ("home", *(name for name in rooms if name != "logs"), "config", "logs")


def subject_of(run: Run, room: str, options: Options) -> Subject:
    """Return what the app shows of a run, or of a folder that `workbench parity` has written, in a room."""
    name = FACES[room].command if ROOMS[room].kinds else ""
    return Subject(
        room, (run,), options, partial(ask, room, run, options), f"workbench {name or 'inspect'} {_quoted(run)}"
    )


def comparison(a: Run, b: Run, options: Options) -> Subject:
    """Return two runs, or two files of the same kind, to compare."""

    def answer() -> Report[object]:
        with limited_to(options, a, b):
            return compare.analyze(a, b, options)

    return Subject("compare", (a, b), options, answer, f"workbench compare {_quoted(a, b)}")


def bisection(a: Run, b: Run, options: Options, tolerance: float | None = None) -> Subject:
    """Return two recorded runs whose first difference the app shows.

    `tolerance` is the largest difference that is ignored; None means a tolerance that depends on the dtype.
    """

    def answer() -> Report[object]:
        with limited_to(options, a, b):
            return parity.bisect(a, b, options, tolerance)

    allowed = "" if tolerance is None else f" --tolerance {tolerance}"
    return Subject("bisect", (a, b), options, answer, f"workbench bisect {_quoted(a, b)}{allowed}")


def _quoted(*runs: Run) -> str:
    """Return the folders of runs as words of a command line."""
    return " ".join(shlex.quote(str(run.root)) for run in runs)
