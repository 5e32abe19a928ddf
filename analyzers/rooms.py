"""The rooms of the analyzers: what each reads, and how a run is analysed in one of them.

A room is an analyzer with its report and its views, and is named after what it reads: memory, hang, trace, steps or
logs. The room "incident" joins the answers of all these. The room "parity" compares the runs that `workbench parity`
has recorded.

    from analyzers import rooms
    from analyzers.store import Options

    run = rooms.find_run([Path("outputs")])
    report = rooms.ask(rooms.room_for(run), run, Options())
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzers.errors import InputError
from analyzers.report import Report
from analyzers.run import ANALYSED, TIMED, Artefact, Kind, Run, discover, with_unreadable

if TYPE_CHECKING:
    from analyzers.store import Options

JOINED = "incident"
"""The room that joins the answers of the others."""
PARITY = "parity"
"""The room that compares the runs of `workbench parity`, each of which has a folder of its own."""


@dataclass(frozen=True)
class Room:
    """What the other houses need to know about a room.

    `data` is the type of the field `data` of its reports, and `analyze` the function that makes them; it is empty if
    the room answers no question about a single run. Both are places, see `imported`: a report of one room must not
    wait for the libraries of another. `kinds` are the kinds of files that the room needs. Its function gets these
    files; with `takes_run` it gets the whole run, because it also looks at other files.
    """

    data: str
    analyze: str = ""
    kinds: tuple[Kind, ...] = ()
    takes_run: bool = False


ROOMS: Mapping[str, Room] = {
    "memory": Room("analyzers.memory:MemoryData", "analyzers.memory:analyze", (Kind.SNAPSHOT,)),
    "hang": Room("analyzers.hangs:HangData", "analyzers.hangs:analyze", (Kind.FLIGHT, Kind.STACKS), takes_run=True),
    "trace": Room("analyzers.traces:TraceData", "analyzers.traces:analyze", (Kind.TRACE,)),
    "steps": Room("analyzers.steps:StepsData", "analyzers.steps:analyze", TIMED),
    "logs": Room(
        "analyzers.logs:LogsData", "analyzers.logs:analyze", (Kind.LOG, Kind.TEXT, Kind.ERROR), takes_run=True
    ),
    JOINED: Room("analyzers.incident:IncidentData", "analyzers.incident:analyze", takes_run=True),
    "compare": Room("analyzers.compare:CompareData"),
    PARITY: Room("analyzers.parity:ParityData", "analyzers.parity.report:analyze_folder", takes_run=True),
    "bisect": Room("analyzers.parity:BisectData"),
    "tokens": Room("analyzers.tokens:TokensData"),
}
"""{name of a room: what is known about it}; the schema of its reports is `workbench.NAME/1`."""
_PRINTED = (Kind.LOG, Kind.TEXT, Kind.ERROR, Kind.EXIT)
"""The kinds of file that show how a job ended.

A run with such a file is for the room "incident", unless all of its files are of the kind TEXT.
"""


def imported(place: str) -> Any:
    """Return the object at a place `module:name`; the module is imported now, if it was not before.

    Raises:
        ImportError: There is no such module.
        AttributeError: The module has no such name.
    """
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def find_run(paths: Sequence[Path]) -> Run:
    if len(paths) == 1:
        return discover(paths[0])
    runs = [discover(path) for path in paths]
    artefacts = tuple(artefact for run in runs for artefact in run.artefacts)
    return Run(paths[0].parent, artefacts, tuple(lost for run in runs for lost in run.unreadable))


def room_for(run: Run) -> str:
    """Return the name of the room for a run, such as "memory".

    For a folder of `workbench parity`, which has several runs to compare, this is "parity". Otherwise it is the room
    that reads all kinds of file in the run. It is "incident" if there is no such room, if files say how the job ended
    (`_PRINTED`), or if a recorder found a value that is not finite.
    """
    present = {artefact.kind for artefact in run.artefacts}
    if any(artefact.path.parent == run.root for artefact in run.of(Kind.MESHES)):
        return PARITY
    if Kind.NOT_FINITE in present:
        return JOINED
    if present.intersection(_PRINTED) and present - {Kind.TEXT}:
        return JOINED
    kinds = present.intersection((*ANALYSED, Kind.MANIFEST)) or present
    rooms = [name for name, room in ROOMS.items() if kinds.intersection(room.kinds)]
    return rooms[0] if len(rooms) == 1 and Kind.MANIFEST not in kinds else JOINED


def ask(name: str, run: Run, options: "Options") -> Report[object]:
    """Return the report of the room `name` on a run.

    Raises:
        InputError: The run has no file that this room can read.
        LimitExceeded: The analysis needs too much memory or time.
    """
    room = ROOMS[name]
    with limited_to(options, run):
        files = required_files(run, *room.kinds)
        analyze: Callable[[Run | Sequence[Artefact], Options], Report[object]] = imported(room.analyze)
        return with_unreadable(analyze(run if room.takes_run else files, options), run)


def limited_to(options: "Options", *runs: Run) -> AbstractContextManager[None]:
    from analyzers.limits import limited

    files = [artefact.path for run in runs for artefact in run.artefacts]
    return limited(" and ".join(str(run.root) for run in runs), files, options.max_memory)


def required_files(run: Run, *kinds: Kind) -> Sequence[Artefact]:
    """Return the run's files of these kinds; without kinds, all of its files.

    Raises:
        InputError: The run has no such file.
    """
    artefacts = run.of(*(kinds or Kind))
    if artefacts:
        return artefacts
    present = sorted({artefact.kind for artefact in run.artefacts if artefact.kind in ANALYSED})
    wanted = " or ".join(kind.replace("_", " ") for kind in kinds) or "files of a run"
    hint = f"it holds {', '.join(present)}: try `workbench inspect`" if present else "give the folder of a run"
    raise InputError(f"{run.root}: no {wanted} there", hint)
