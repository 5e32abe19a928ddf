"""From paths on the command line to the report that answers them: which room is asked, and with what."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analyzers.errors import InputError
from analyzers.report import Report
from analyzers.run import ANALYSED, TIMED, Kind, Run, discover
from analyzers.store import Options

ROOMS = {
    "memory": (Kind.SNAPSHOT,),
    "hang": (Kind.FLIGHT, Kind.STACKS),
    "trace": (Kind.TRACE,),
    "steps": TIMED,
}
JOINED = "incident"
MODULES = {"memory": "memory", "hang": "hangs", "trace": "traces", "steps": "steps", JOINED: "incident"}
WHOLE_RUN = {"hang", JOINED}
"""Rooms that take the run itself, as they join several kinds."""


def find(paths: Sequence[Path]) -> Run:
    """What lies at the paths, as one run."""
    if len(paths) == 1:
        return discover(paths[0])
    runs = [discover(path) for path in paths]
    return Run(paths[0].parent, tuple(artefact for run in runs for artefact in run.artefacts))


def room_for(run: Run) -> str:
    """The room that answers: that of the only kind there is, or the joined view of several kinds."""
    there = {artefact.kind for artefact in run.artefacts}
    kinds = there.intersection((*ANALYSED, Kind.MANIFEST)) or there
    rooms = [room for room, takes in ROOMS.items() if kinds.intersection(takes)]
    return rooms[0] if len(rooms) == 1 and Kind.MANIFEST not in kinds else JOINED


def ask(room: str, run: Run, options: Options) -> Report[Any]:
    """The report of one room, or of all of them joined.

    Raises:
        InputError: The run holds nothing that this room can read.
    """
    module = importlib.import_module(f"analyzers.{MODULES[room]}")
    if room in WHOLE_RUN:
        require(run, *ROOMS.get(room, ()))
        found: Report[Any] = module.analyze(run, options)
    else:
        found = module.analyze(require(run, *ROOMS[room]), options)
    return found


def require(run: Run, *kinds: Kind) -> Sequence[Any]:
    """The artefacts of these kinds, at least one; all of them where no kind is named."""
    found = run.of(*kinds) if kinds else list(run.artefacts)
    if found:
        return found
    there = sorted({artefact.kind for artefact in run.artefacts if artefact.kind in ANALYSED})
    wanted = " or ".join(kind.replace("_", " ") for kind in kinds)
    has = f"it holds {', '.join(there)}: try `workbench inspect`" if there else "give the folder of a run"
    raise InputError(f"{run.root}: no {wanted} there", has)


def parts(report: Report[Any]) -> dict[str, Any]:
    """What each room found, by the room's name; a face shows a view for each."""
    room = report.schema.removeprefix("workbench.").partition("/")[0]
    if room != JOINED:
        return {room: report.data}
    return {name: part for name in ROOMS if (part := getattr(report.data, name)) is not None}
