"""From what was asked on the command line to what will run: command, environment and folder."""

import os
import shlex
import sys
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from analyzers.errors import MissingExtra
from trainer.config import ConfigError, JobConfig, load_for_training
from workbench.errors import UsageProblem
from workbench.options import Scheduler
from workbench.python_path import search_path, search_path_last

OURS = "workbench"
RING_ENTRIES = 20_000


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command line of `workbench launch`."""

    config: str | None = None
    module: str | None = None
    incident: str | None = None
    nproc: int | None = None
    nnodes: int = 1
    rdzv_endpoint: str = "localhost:0"
    max_restarts: int = 0
    trainer: str = OURS
    scheduler: Scheduler = Scheduler.LOCAL
    overrides: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def foreign(self) -> bool:
        """Whether a command follows `--` instead of options of the trainer."""
        return bool(self.overrides) and not self.overrides[0].startswith("--")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will run; `module` None stands for a foreign `command`."""

    command: tuple[str, ...]
    module: str | None
    nproc: int
    nnodes: int
    rdzv_endpoint: str
    max_restarts: int
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def shell(self) -> str:
        """The same job as a command line without this launcher."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        if self.module is None:
            return " ".join([*settings, shlex.join(self.command)])
        meeting = [
            "--rdzv_backend",
            "c10d",
            "--rdzv_endpoint",
            self.rdzv_endpoint,
            "--max_restarts",
            str(self.max_restarts),
        ]
        agent = ["torchrun", "--nnodes", str(self.nnodes), "--nproc_per_node", str(self.nproc), *meeting]
        written = ["--log_dir", str(self.logs), "--redirects", "3"]
        return " ".join([*settings, shlex.join([*agent, *written, "-m", self.module, *self.command])])


def plan(request: Request) -> Plan:
    """What will run.

    Raises:
        WorkbenchError: The configuration does not hold, or training is not installed.
    """
    if request.foreign:
        return foreign(request)
    if find_spec("torch") is None:
        raise MissingExtra("launching needs torch", "pip install 'torch-workbench[train]'")
    if request.trainer != OURS:
        return other_module(request)
    arguments = trainer_arguments(request)
    config = resolved(arguments)
    return Plan(
        command=arguments,
        module="trainer",
        folder=Path(config.job.dump_folder),
        environment=own_environment(request),
        **shape(request),
    )


def trainer_arguments(request: Request) -> tuple[str, ...]:
    """The command line of `python -m trainer` that does what was asked."""
    named = (
        ("--module", request.module, "--config", request.config)
        if request.module
        else ("--job.config_file", request.config)
    )
    chosen = tuple(part for part in named if part) if request.config else ()
    broken = ("--faults.name", request.incident) if request.incident else ()
    return (*chosen, *broken, *request.overrides)


def resolved(arguments: tuple[str, ...]) -> JobConfig:
    """The trainer's configuration; what is wrong with it is told as this house tells errors."""
    try:
        return load_for_training(arguments)
    except ConfigError as error:
        raise UsageProblem(error.message, error.hint) from error


def shape(request: Request) -> dict[str, Any]:
    """How many processes meet where."""
    return {
        "nproc": request.nproc or devices() or 2,
        "nnodes": request.nnodes,
        "rdzv_endpoint": request.rdzv_endpoint,
        "max_restarts": request.max_restarts,
    }


def devices() -> int:
    """CUDA devices of this machine, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def own_environment(request: Request) -> dict[str, str]:
    """Return what processes of our trainer need: no module in the user's folder is imported in place of ours."""
    return {**rank_environment(request), **search_path(), "PYTHONSAFEPATH": "1"}


def rank_environment(request: Request) -> dict[str, str]:
    """Return what the ranks need beside the launcher's environment; what the user has set stays."""
    threads = max(1, (os.cpu_count() or 1) // (request.nproc or devices() or 2))
    wanted = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    if devices():
        wanted["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    return {name: value for name, value in wanted.items() if name not in os.environ}


def recorders(folder: Path) -> dict[str, str]:
    """Flight Recorder settings for a job that sets none itself; both spellings, as their age is not known."""
    dumps = str(folder.resolve() / "dumps" / "rank_")
    ring = {"TORCH_FR_BUFFER_SIZE": str(RING_ENTRIES), "TORCH_NCCL_TRACE_BUFFER_SIZE": str(RING_ENTRIES)}
    files = {"TORCH_FR_DUMP_TEMP_FILE": dumps, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": dumps}
    return ring | files | {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


def foreign(request: Request) -> Plan:
    """Any other command: it runs as it is, with Flight Recorder on."""
    folder = Path("outputs")
    return Plan(command=request.overrides, module=None, folder=folder, environment=recorders(folder), **shape(request))


def other_module(request: Request) -> Plan:
    """Another trainer's module under our agent; its options are its own."""
    module = {"torchtitan": "torchtitan.train"}.get(request.trainer, request.trainer)
    # The `workbench` script does not look into the working folder, but `python -m MODULE` of the ranks does.
    if PathFinder.find_spec(module.partition(".")[0], [str(Path.cwd()), *sys.path]) is None:
        raise MissingExtra(f"--trainer {request.trainer}: no module {module}", f"install it for {sys.executable}")
    arguments = ("--job.config_file", request.config, *request.overrides) if request.config else request.overrides
    folder = Path("outputs")
    settings = rank_environment(request) | search_path_last() | recorders(folder)
    return Plan(command=arguments, module=module, folder=folder, environment=settings, **shape(request))
