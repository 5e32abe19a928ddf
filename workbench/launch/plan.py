"""Plan a launch: from the options of the command line to the command, environment and folder of the job."""

import os
import shlex
import sys
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from analyzers.errors import MissingExtra
from trainer.config import ConfigError, JobConfig, load_for_training
from workbench.errors import UsageProblem
from workbench.options import Scheduler
from workbench.python_path import search_path, search_path_last

OWN_TRAINER = "workbench"
MODULES = {"torchtitan": "torchtitan.train"}
"""What to start where `--trainer` names a package and not a module."""
PROCESSES_WITHOUT_GPU = 2
RING_ENTRIES = 20_000
OUTPUTS = Path("outputs")
"""Where a job that is not our trainer's writes its dumps, in the folder that it is started in."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `workbench launch`."""

    config: str | None = None
    module: str | None = None
    incident: str | None = None
    nproc: int | None = None
    nnodes: int = 1
    rdzv_endpoint: str = "localhost:0"
    max_restarts: int = 0
    trainer: str = OWN_TRAINER
    scheduler: Scheduler = Scheduler.LOCAL
    overrides: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def is_command(self) -> bool:
        """Whether a command follows `--` instead of options of the trainer."""
        return bool(self.overrides) and not self.overrides[0].startswith("--")

    @property
    def processes_per_node(self) -> int:
        """The number of processes on each node: as asked, else one per GPU, else two."""
        return self.nproc or gpu_count() or PROCESSES_WITHOUT_GPU


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A job that is ready to start: `command` holds the arguments of `module`, or a whole command without one."""

    request: Request
    command: tuple[str, ...]
    module: str | None
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def nproc(self) -> int:
        """The number of processes on each node."""
        return self.request.processes_per_node

    @property
    def logs(self) -> Path:
        """The folder of the ranks' output."""
        return self.folder / "logs"

    def shell(self) -> str:
        """Return the same job as a command line without this launcher."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        if self.module is None:
            return " ".join([*settings, shlex.join(self.command)])
        asked = self.request
        nodes = ["--nnodes", str(asked.nnodes), "--nproc_per_node", str(self.nproc)]
        rendezvous = ["--rdzv_backend", "c10d", "--rdzv_endpoint", asked.rdzv_endpoint]
        restarts = ["--max_restarts", str(asked.max_restarts)]
        logs = ["--log_dir", str(self.logs), "--redirects", "3"]
        job = ["-m", self.module, *self.command]
        return " ".join([*settings, shlex.join(["torchrun", *nodes, *rendezvous, *restarts, *logs, *job])])


def plan(request: Request) -> Plan:
    """Return the job that was asked for.

    Raises:
        WorkbenchError: The configuration is wrong, or training is not installed.
    """
    if request.is_command:
        return plan_command(request)
    if find_spec("torch") is None:
        raise MissingExtra("launching needs torch", "pip install 'torch-workbench[train]'")
    return plan_own_trainer(request) if request.trainer == OWN_TRAINER else plan_module(request)


def plan_own_trainer(request: Request) -> Plan:
    """Return the plan of a run of our trainer, whose configuration names the folder."""
    arguments = trainer_arguments(request)
    folder = Path(training_config(arguments).job.dump_folder)
    return Plan(
        request=request, command=arguments, module="trainer", folder=folder, environment=own_environment(request)
    )


def plan_command(request: Request) -> Plan:
    """Return the plan of a command that stays as it is; Flight Recorder is switched on in its environment."""
    settings = flight_recorder_settings(OUTPUTS)
    return Plan(request=request, command=request.overrides, module=None, folder=OUTPUTS, environment=settings)


def plan_module(request: Request) -> Plan:
    """Return the plan of another trainer's module under our agent; its options are its own."""
    module = MODULES.get(request.trainer, request.trainer)
    # The `workbench` script does not look into the working folder, but `python -m MODULE` of the ranks does.
    if PathFinder.find_spec(module.partition(".")[0], [str(Path.cwd()), *sys.path]) is None:
        raise MissingExtra(f"--trainer {request.trainer}: no module {module}", f"install it for {sys.executable}")
    arguments = ("--job.config_file", request.config, *request.overrides) if request.config else request.overrides
    settings = rank_environment(request) | search_path_last() | flight_recorder_settings(OUTPUTS)
    return Plan(request=request, command=arguments, module=module, folder=OUTPUTS, environment=settings)


def trainer_arguments(request: Request) -> tuple[str, ...]:
    """Return the arguments of `python -m trainer` that do what was asked."""
    named = (
        ("--module", request.module, "--config", request.config)
        if request.module
        else ("--job.config_file", request.config)
    )
    configuration = tuple(part for part in named if part) if request.config else ()
    fault = ("--faults.name", request.incident) if request.incident else ()
    return (*configuration, *fault, *request.overrides)


def training_config(arguments: tuple[str, ...]) -> JobConfig:
    """Return the trainer's configuration.

    Raises:
        UsageProblem: The trainer refuses it.
    """
    try:
        return load_for_training(arguments)
    except ConfigError as error:
        raise UsageProblem(error.message, error.hint) from error


def gpu_count() -> int:
    """Return the number of CUDA devices of this machine, without importing torch, which takes seconds."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def own_environment(request: Request) -> dict[str, str]:
    """Return what processes of our trainer need: no module in the user's folder is imported in place of ours."""
    return {**rank_environment(request), **search_path(), "PYTHONSAFEPATH": "1"}


def rank_environment(request: Request) -> dict[str, str]:
    """Return what the ranks need beside the launcher's environment; what the user has set stays."""
    # Each rank would start a thread per core of the whole machine, and they would wait for each other.
    threads = max(1, (os.cpu_count() or 1) // request.processes_per_node)
    wanted = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    if gpu_count():
        wanted["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    return {name: value for name, value in wanted.items() if name not in os.environ}


def flight_recorder_settings(folder: Path) -> dict[str, str]:
    """Return the Flight Recorder settings for a job that sets none itself."""
    # Both spellings: torch before 2.8 knows only the TORCH_NCCL_ ones.
    dumps = str(folder.resolve() / "dumps" / "rank_")
    ring = {"TORCH_FR_BUFFER_SIZE": str(RING_ENTRIES), "TORCH_NCCL_TRACE_BUFFER_SIZE": str(RING_ENTRIES)}
    files = {"TORCH_FR_DUMP_TEMP_FILE": dumps, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": dumps}
    return ring | files | {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
