"""Implement `workbench demo`: run a small job on the CPU that really fails, and explain the failure."""

import sys
from pathlib import Path

from analyzers.errors import Exit
from analyzers.rooms import JOINED, ask
from analyzers.run import discover
from analyzers.store import Options
from workbench.command_options.options import INCIDENTS, Format, on_terminal
from workbench.commands.analyse import open_folder
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.launch.plan import Request, plan
from workbench.launch.run import launch
from workbench.present import render

_SHORT_NAMES = {"hang": "stuck"}
_RECORDERS = (
    "--profiling.enable_profiling",
    "--profiling.enable_memory_snapshot",
    "--profiling.profile_freq",
    "5",
    "--comm.train_timeout_seconds",
    "15",
)
"""Trainer flags that turn all recorders on, and set a timeout that is short enough to wait for."""
_ABOUT_MEMORY = ("oom", "leak")
_SHORT_WINDOW = ("--profiling.memory_snapshot_window", "2")
"""Trainer flags for incidents that are not `_ABOUT_MEMORY`: only two steps per snapshot are recorded, to save time."""


def demonstrate(incident: str, nproc: int, folder: Path | None, *, tui: bool, as_json: bool) -> Exit:
    """Run a job with the named incident, and explain how it failed.

    The failure is intended, so the exit status is 0 unless the user interrupts the job.
    """
    name = _SHORT_NAMES.get(incident, incident)
    if name not in INCIDENTS:
        raise UsageProblem(f"no incident {incident}", f"choose hang, {', '.join(INCIDENTS)}")
    target = folder or Path("outputs") / f"demo-{incident}"
    outcome = launch(plan(request(name, nproc, target)))
    if outcome.status == "interrupted":
        return Exit.INTERRUPTED
    if tui and on_terminal():
        return open_folder(target)
    run = discover(target)
    note("")
    sys.stdout.write(render(ask(JOINED, run, Options()), Format.JSON if as_json else Format.TEXT, run))
    return Exit.OK


def request(name: str, nproc: int, folder: Path) -> Request:
    """Return the launch request for the incident `name`; the debug model of the job trains within seconds."""
    return Request(
        module="llama3",
        config="llama3_debugmodel",
        incident=name,
        nproc=nproc,
        overrides=("--job.dump_folder", str(folder), *_RECORDERS, *(() if name in _ABOUT_MEMORY else _SHORT_WINDOW)),
    )
