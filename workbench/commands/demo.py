"""`workbench demo`: a small real incident on CPU, made and explained."""

import sys
from pathlib import Path

from analyzers.errors import Exit
from analyzers.run import discover
from analyzers.store import Options
from workbench.ask import JOINED, ask
from workbench.commands.analyse import open_folder
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.launch.plan import Request, plan
from workbench.launch.run import launched
from workbench.options import Format, on_terminal
from workbench.present import render

SHORT_NAMES = {"hang": "stuck"}
INCIDENTS = (
    "healthy",
    "oom",
    "leak",
    "stuck",
    "stuck_sleep",
    "stuck_gil",
    "skip",
    "mismatch_shape",
    "mismatch_type",
    "kill",
    "deadlock",
    "straggler",
    "straggler_data",
    "straggler_gc",
    "nan",
)
RECORDERS = (
    "--profiling.enable_profiling",
    "--profiling.enable_memory_snapshot",
    "--profiling.profile_freq",
    "5",
    "--comm.train_timeout_seconds",
    "15",
)
"""Everything on, and a timeout that is soon over."""


def demonstrate(incident: str, nproc: int, folder: Path | None, *, tui: bool, as_json: bool) -> Exit:
    """Make the incident and show what came of it. 0 whatever broke: it was meant to break."""
    name = SHORT_NAMES.get(incident, incident)
    if name not in INCIDENTS:
        raise UsageProblem(f"no incident {incident}", f"one of hang, {', '.join(INCIDENTS)}")
    place = folder or Path("outputs") / f"demo-{incident}"
    outcome = launched(plan(request(name, nproc, place)))
    if outcome.status == "interrupted":
        return Exit.INTERRUPTED
    if tui and on_terminal():
        return open_folder(place)
    run = discover(place)
    note("")
    sys.stdout.write(render(ask(JOINED, run, Options()), Format.JSON if as_json else Format.TEXT, run))
    return Exit.OK


def request(name: str, nproc: int, place: Path) -> Request:
    """A run of the debug model that is short enough to wait for."""
    return Request(
        module="llama3",
        config="llama3_debugmodel",
        incident=name,
        nproc=nproc,
        overrides=("--job.dump_folder", str(place), *RECORDERS),
    )
