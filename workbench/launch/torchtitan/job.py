"""Plan a job of the real torchtitan: its options, its dump folder, and the start-up hook with our recorders."""

import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from analyzers.errors import InputError, MissingExtra
from workbench.launch.plan import IN_ONE_PROCESS, Plan, Request, rank_environment
from workbench.launch.recording import recorder_settings
from workbench.launch.torchtitan.installed import Torchtitan, conflicts, installed_torchtitan
from workbench.launch.torchtitan.options import torchtitan_options
from workbench.launch.torchtitan.preflight import Settings, missing_assets, resolved_settings

MODULE = "torchtitan.train"
_ON_CPU = (
    "no accelerator here: torchtitan trains on the CPU with gloo, by small patches of the start-up hook"
    " (workbench/recorders/startup/torchtitan_on_cpu.py)"
)

_OWN_FILES = ("comm_traces", "profile_trace", "profiling", "structured_logs")
"""The subfolders of its dump folder to which torchtitan writes dumps, traces and step logs."""


def plan_torchtitan(request: Request) -> Plan:
    """Return the plan for a job of the installed torchtitan; its own configuration sets the folder of the run.

    Raises:
        WorkbenchError: torchtitan or a package that it needs is missing, or it does not accept the options.
    """
    found = installed_torchtitan([str(Path.cwd()), *sys.path])
    if found is None:
        raise MissingExtra("--trainer torchtitan: torchtitan is not installed", "pip install torchtitan")
    options, notes = torchtitan_options(request, found)
    notes += _check_packages(found, options)
    settings = resolved_settings(found, options)
    notes += filter(None, [missing_assets(settings), None if settings.device else _ON_CPU])
    simulated = settings.mode in IN_ONE_PROCESS
    return Plan(
        request=request,
        command=options,
        module=MODULE,
        folder=Path(settings.dump_folder),
        environment=environment(request, settings) | (_one_process(request) if simulated else {}),
        starts_ranks=not simulated,
        notes=tuple(notes),
        is_dry_run=simulated,
        earlier_files=_OWN_FILES,
    )


def environment(request: Request, settings: Settings) -> dict[str, str]:
    """Return the environment variables that attach the recorders to the ranks, and that patch torchtitan on a CPU.

    `settings` has the values that torchtitan derives from its options, such as the dump folder. The variables of Flight
    Recorder are not included, because torchtitan sets them itself.
    """
    recorded = {
        "folder": str(Path(settings.dump_folder).resolve()),
        "init_timeout_s": settings.init_timeout_s,
        "train_timeout_s": settings.train_timeout_s,
        "record": request.recorders and settings.mode not in IN_ONE_PROCESS,
        "torchtitan": True,
    }
    return rank_environment(request) | recorder_settings(recorded)


def _one_process(request: Request) -> dict[str, str]:
    """Return the environment variables that make torchtitan simulate all ranks in one process, which acts as rank 0."""
    world_size = str(request.processes_per_node * request.nnodes)
    return {"NGPU": world_size, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": world_size}


def _check_packages(found: Torchtitan, options: tuple[str, ...]) -> list[str]:
    """Return a note on each package that is incompatible with the installed torchtitan.

    Raises:
        InputError: A package prevents training.
    """
    try:
        wrong = conflicts(found, options)
    except PackageNotFoundError:
        wrong = []
    for conflict in wrong:
        if conflict.prevents_training:
            raise InputError(f"{conflict.title}. {conflict.why}", conflict.command)
    return [f"warning: {conflict.title}. {conflict.why}\nnext: {conflict.command}" for conflict in wrong]
