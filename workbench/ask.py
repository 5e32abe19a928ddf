"""Choose the analyzer for the files of a run, and return its report.

An analyzer is named after what it reads: memory, hang, trace, steps or logs. The analyzer "incident" joins the answers
of all these. The analyzer "parity" compares the runs that `workbench parity` has recorded. The code calls such a name a
room.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from analyzers.errors import InputError
from analyzers.limits import limited
from analyzers.report import Report
from analyzers.run import ANALYSED, TIMED, Artefact, Kind, Run, discover, with_unreadable
from analyzers.store import Options

if TYPE_CHECKING:
    from analyzers.hangs import HangData
    from analyzers.incident import IncidentData
    from analyzers.logs import LogsData
    from analyzers.memory import MemoryData
    from analyzers.parity import ParityData
    from analyzers.steps import StepsData
    from analyzers.traces import TraceData

ROOMS = {
    "memory": (Kind.SNAPSHOT,),
    "hang": (Kind.FLIGHT, Kind.STACKS),
    "trace": (Kind.TRACE,),
    "steps": TIMED,
    "logs": (Kind.LOG, Kind.TEXT, Kind.ERROR),
}
"""{name of an analyzer: kinds of file that it reads}."""
_PRINTED = (Kind.LOG, Kind.TEXT, Kind.ERROR, Kind.EXIT)
"""The kinds of file that show how a job ended.

A run with such a file gets the analyzer "incident", unless all of its files are of the kind TEXT.
"""
JOINED = "incident"
"""The name of the analyzer that joins the answers of the others."""
PARITY = "parity"
"""The name of the analyzer that compares the runs of `workbench parity`, each of which has a folder of its own."""


def find_run(paths: Sequence[Path]) -> Run:
    """Return one run with the files found at all of the paths."""
    if len(paths) == 1:
        return discover(paths[0])
    runs = [discover(path) for path in paths]
    artefacts = tuple(artefact for run in runs for artefact in run.artefacts)
    return Run(paths[0].parent, artefacts, tuple(lost for run in runs for lost in run.unreadable))


def room_for(run: Run) -> str:
    """Return the name of the analyzer for a run, such as "memory"; see `ROOMS`.

    For a folder of `workbench parity`, which has several runs to compare, this is "parity". Otherwise it is the
    analyzer that reads all kinds of file in the run. It is "incident" if there is no such analyzer, if files say how
    the job ended (`_PRINTED`), or if a recorder found a value that is not finite.
    """
    present = {artefact.kind for artefact in run.artefacts}
    if any(artefact.path.parent == run.root for artefact in run.of(Kind.MESHES)):
        return PARITY
    if Kind.NOT_FINITE in present:
        return JOINED
    if present.intersection(_PRINTED) and present - {Kind.TEXT}:
        return JOINED
    kinds = present.intersection((*ANALYSED, Kind.MANIFEST)) or present
    rooms = [room for room, read in ROOMS.items() if kinds.intersection(read)]
    return rooms[0] if len(rooms) == 1 and Kind.MANIFEST not in kinds else JOINED


def ask(room: str, run: Run, options: Options) -> Report[object]:
    """Return the report of the analyzer named `room` on a run.

    Raises:
        InputError: The run has no file that this analyzer can read.
        LimitExceeded: The analysis needs too much memory or time.
    """
    with limited_to(options, run):
        return with_unreadable(_ANALYZERS[room](run, options), run)


def limited_to(options: Options, *runs: Run) -> AbstractContextManager[None]:
    """Return a context that limits the memory and the time for analyses of these runs."""
    files = [artefact.path for run in runs for artefact in run.artefacts]
    return limited(" and ".join(str(run.root) for run in runs), files, options.max_memory)


def memory_report(run: Run, options: Options) -> "Report[MemoryData]":
    # Each analyzer is imported when it is asked, so that it need not wait for the libraries of the others.
    from analyzers import memory

    return memory.analyze(required_files(run, *ROOMS["memory"]), options)


def _hang_report(run: Run, options: Options) -> "Report[HangData]":
    from analyzers import hangs

    required_files(run, *ROOMS["hang"])
    return hangs.analyze(run, options)


def trace_report(run: Run, options: Options) -> "Report[TraceData]":
    from analyzers import traces

    return traces.analyze(required_files(run, *ROOMS["trace"]), options)


def steps_report(run: Run, options: Options) -> "Report[StepsData]":
    from analyzers import steps

    return steps.analyze(required_files(run, *ROOMS["steps"]), options)


def _logs_report(run: Run, options: Options) -> "Report[LogsData]":
    from analyzers import logs

    required_files(run, *ROOMS["logs"])
    return logs.analyze(run, options)


def _incident_report(run: Run, options: Options) -> "Report[IncidentData]":
    from analyzers import incident

    if not run.artefacts:
        raise _nothing_to_read(run, ())
    return incident.analyze(run, options)


def _parity_report(run: Run, options: Options) -> "Report[ParityData]":
    from analyzers import parity
    from analyzers.parity.report import read_runs

    runs, tolerance = read_runs(run.root)
    return parity.analyze(runs, options, tolerance)


_ANALYZERS: dict[str, Callable[[Run, Options], Report[object]]] = {
    "memory": memory_report,
    "hang": _hang_report,
    "trace": trace_report,
    "steps": steps_report,
    "logs": _logs_report,
    JOINED: _incident_report,
    PARITY: _parity_report,
}


def required_files(run: Run, *kinds: Kind) -> Sequence[Artefact]:
    """Return the run's files of these kinds.

    Raises:
        InputError: The run has no such file.
    """
    artefacts = run.of(*kinds)
    if artefacts:
        return artefacts
    raise _nothing_to_read(run, kinds)


def _nothing_to_read(run: Run, kinds: Sequence[Kind]) -> InputError:
    """Return the error for a run that has no files of these kinds; its hint names the kinds that the run has."""
    present = sorted({artefact.kind for artefact in run.artefacts if artefact.kind in ANALYSED})
    wanted = " or ".join(kind.replace("_", " ") for kind in kinds) or "files of a run"
    hint = f"it holds {', '.join(present)}: try `workbench inspect`" if present else "give the folder of a run"
    return InputError(f"{run.root}: no {wanted} there", hint)
