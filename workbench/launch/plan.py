"""Plan a launch: derive the command, environment variables and folder of a job from the command-line options."""

import os
import shlex
import sys
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from analyzers.errors import InputError, MissingExtra
from trainer.config import JobConfig, checked_mesh, load_for_training, startup_notes
from trainer.config.converters import check_devices
from trainer.config.local_data import check_initial_checkpoint, check_local_data
from trainer.config.mesh import smallest_world
from trainer.errors import DataError
from workbench.command_options.options import Scheduler
from workbench.errors import UsageProblem, trainer_errors_as_ours
from workbench.launch.job_command import Form, JobCommand, job_command
from workbench.launch.recording import recorder_settings, recording, recording_config
from workbench.python_path import search_path, search_path_last

OWN_TRAINER = "workbench"
IN_ONE_PROCESS = ("fake_backend", "local_tensor")
"""The values of the configuration key `comm.mode` for which one process simulates all ranks."""
_TORCHTITAN = ("torchtitan", "torchtitan.train")
"""The values of `--trainer` that mean the real torchtitan, whose launch is planned in `launch/torchtitan.py`."""
_PROCESSES_WITHOUT_GPU = 2
_KEYS_INSTEAD = {
    "--timeout": "the trainer has --comm.train_timeout_seconds",
    "--find-holders": "it is for a command after --: workbench launch --find-holders -- python train.py",
    "--profile-step": "the trainer has --profiling.enable_profiling --profiling.profile_freq",
}
# torchtitan's default for comm.trace_buf_size.
_RING_ENTRIES = 20_000
_FR_NAMES_SINCE = (2, 8)
"""The first version of torch that reads environment variables named TORCH_FR_...

Older versions read only the names TORCH_NCCL_..., for which newer ones print a warning on each rank.
"""
_LAUNCHER_OPTIONS = {"torchrun": "--nproc-per-node N", "accelerate": "--num_processes N", "deepspeed": "--num_gpus N"}
"""{launcher: its option for the number of ranks}."""
OUTPUTS = Path("outputs")
"""The folder of the recorded files if another trainer's module is launched, relative to the working folder."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `workbench launch`, as given on the command line."""

    config: str | None = None
    module: str | None = None
    incident: str | None = None
    nproc: int | None = None
    nnodes: int = 1
    rdzv_endpoint: str = "localhost:0"
    max_restarts: int = 0
    collect: str | None = None
    """The address HOST:PORT of the receiver of all nodes' files; without a host, it is that of the rendezvous."""
    image: str | None = None
    """The container image of a job for Kubernetes."""
    trainer: str = OWN_TRAINER
    scheduler: Scheduler = Scheduler.LOCAL
    overrides: tuple[str, ...] = ()
    command: tuple[str, ...] | None = None
    """The words after `--`; None if there is no `--`."""
    timeout: float | None = None
    """The seconds after which a collective times out; None leaves it to the script."""
    profile_step: int | None = None
    find_holders: bool = False
    recorders: bool = True
    watch: bool = True
    dry_run: bool = False

    @property
    def processes_per_node(self) -> int:
        """The number of processes on each node: the requested number; without one, one per GPU; without GPUs, two."""
        return self.nproc or gpu_count() or _PROCESSES_WITHOUT_GPU


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A job that is ready to start: its command, its environment variables and the folder that it writes to.

    If `module` is set, the job runs that Python module, and `command` has only the arguments. If `starts_ranks` is set,
    torchrun's elastic agent in this process starts each rank. Otherwise the command runs once, and may itself start
    ranks.
    """

    request: Request
    command: tuple[str, ...]
    module: str | None
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    starts_ranks: bool = True
    notes: tuple[str, ...] = ()
    """Notes on the configuration, which the launcher prints once so that not every rank prints them."""
    is_dry_run: bool = False
    """Whether the job is a single process that simulates all ranks, runs one step, and prints what it finds."""
    earlier_files: tuple[str, ...] | None = None
    """The files and folders that the job's own program writes into `folder`.

    Those of an earlier job are moved away, and so are those of the recorders. With None the launcher moves nothing.
    """

    @property
    def nproc(self) -> int:
        """The number of processes on each node."""
        return self.request.processes_per_node

    @property
    def logs(self) -> Path:
        """The folder for the output of the ranks."""
        return self.folder / "logs"

    @property
    def words(self) -> tuple[str, ...]:
        """The full command line as a list of words; it starts one rank if `starts_ranks` is set, else the whole job."""
        return self.command if self.module is None else (sys.executable, "-u", "-m", self.module, *self.command)

    def shell(self) -> str:
        """Return a shell command line that starts the same job without this launcher."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        if not self.starts_ranks:
            return " ".join([*settings, shlex.join(self.command)])
        asked = self.request
        nodes = ["--nnodes", str(asked.nnodes), "--nproc_per_node", str(self.nproc)]
        rendezvous = ["--rdzv_backend", "c10d", "--rdzv_endpoint", asked.rdzv_endpoint]
        restarts = ["--max_restarts", str(asked.max_restarts)]
        logs = ["--log_dir", str(self.logs), "--redirects", "3"]
        job = ["-m", self.module, *self.command] if self.module else ["--no-python", *self.command]
        return " ".join([*settings, shlex.join(["torchrun", *nodes, *rendezvous, *restarts, *logs, *job])])


def plan(request: Request) -> Plan:
    """Return the plan for a launch request.

    Raises:
        WorkbenchError: The configuration is wrong, or the packages for training are not installed.
    """
    if request.command is not None:
        return _plan_command(request, job_command(request.command))
    _refuse_options_of_commands(request)
    # Looked up and not imported, because importing torch takes seconds.
    if find_spec("torch") is None:
        raise MissingExtra("launching needs torch", "pip install 'torch-workbench[train]'")
    if request.trainer in _TORCHTITAN:
        from workbench.launch.torchtitan import plan_torchtitan

        return plan_torchtitan(request)
    return _plan_own_trainer(request) if request.trainer == OWN_TRAINER else _plan_module(request)


def _refuse_options_of_commands(request: Request) -> None:
    """Raise an error if options need a command after `--`, but the request has none.

    Raises:
        UsageProblem: An option has no effect on our trainer, or a command was written without `--`.
    """
    if request.overrides and not request.overrides[0].startswith("--"):
        word = request.overrides[0]
        hint = (
            f"give it as --config {word}" if word.endswith(".toml") else "put a command behind --: -- python train.py"
        )
        raise UsageProblem(f"launch: {word!r} is not an option", hint)
    given = {
        "--timeout": request.timeout,
        "--profile-step": request.profile_step,
        "--find-holders": request.find_holders or None,
    }
    for name, value in given.items():
        if value is not None:
            raise UsageProblem(f"{name} has no effect without a command after --", _KEYS_INSTEAD[name])


def _plan_own_trainer(request: Request) -> Plan:
    """Return the plan for our trainer; its configuration names the folder of the run.

    Raises:
        UsageProblem: The configuration is wrong, or needs a device that is missing.
        InputError: The configured data are missing.
    """
    arguments = trainer_arguments(request)
    request, size_notes = _with_simulated_ranks(request, arguments)
    world_size = request.processes_per_node * request.nnodes
    config = _training_config(arguments, world_size)
    if request.scheduler is Scheduler.LOCAL and not gpu_count():
        refuse_without_device(config)
    # The data of a dry run are made up, and those of a scheduler's nodes may lie there alone.
    if request.scheduler is Scheduler.LOCAL and config.comm.mode != "fake_backend":
        _refuse_missing_data(config)
    folder, notes = Path(config.job.dump_folder), (*size_notes, *startup_notes(arguments, world_size))
    environment = own_environment(request)
    if config.comm.mode in IN_ONE_PROCESS:
        return Plan(
            request=request,
            command=(sys.executable, "-u", "-m", "trainer", *arguments),
            module=None,
            folder=folder,
            environment=environment | {"NGPU": str(world_size)},
            starts_ranks=False,
            # That process prints the other notes here itself.
            notes=tuple(size_notes),
            is_dry_run=True,
        )
    return Plan(
        request=request, command=arguments, module="trainer", folder=folder, environment=environment, notes=notes
    )


def _with_simulated_ranks(request: Request, arguments: tuple[str, ...]) -> tuple[Request, list[str]]:
    """Return the request with a number of ranks, if one process simulates all ranks and the user gave no number.

    The number is the smallest that the configured degrees of parallelism need. If it is not the usual number, also
    return a note about it.
    """
    config = loaded(arguments)
    if request.nproc is not None or request.nnodes > 1 or config.comm.mode not in IN_ONE_PROCESS:
        return request, []
    ranks = smallest_world(config.parallelism, request.processes_per_node)
    note = [f"{ranks} ranks, as the degrees ask for (--nproc N for another number)"]
    return replace(request, nproc=ranks), note if ranks != request.processes_per_node else []


def _plan_command(request: Request, command: JobCommand) -> Plan:
    """Return the plan for a command after `--`: a Python program to run once per rank, or any program to run once.

    Raises:
        UsageProblem: An option has no effect on this command.
    """
    if request.nproc and command.form is Form.LAUNCHER:
        hint = f"give it the number, such as: {command.name} {_LAUNCHER_OPTIONS.get(command.name, '')}".rstrip(" :")
        raise UsageProblem(f"{command.name} starts the ranks itself: --nproc has no effect", hint)
    config = recording_config(request)
    folder = Path(config.job.dump_folder)
    starts_ranks = bool(request.nproc) or (request.nnodes > 1 and command.form is not Form.LAUNCHER)
    starts_ranks = starts_ranks or (command.form is Form.PYTHON and command.needs_ranks)
    # The ranks of a launcher share one stream: without a buffer they would mix within a line.
    settings = _rank_settings(request) if starts_ranks else {}
    # The recorders write dumps of the same names to `dumps`.
    dumps = folder / "dumps" / "watchdog" if request.recorders else folder / "dumps"
    settings |= flight_recorder_settings(dumps, config.comm.trace_buf_size)
    if request.recorders:
        settings |= recorder_settings(recording(request, config))
    return Plan(
        request=request,
        command=command.words,
        module=None,
        folder=folder,
        environment=settings,
        starts_ranks=starts_ranks,
        earlier_files=(),
    )


def _plan_module(request: Request) -> Plan:
    """Return the plan to run the Python module of another trainer on each rank; options are passed to it unchanged."""
    module = request.trainer
    # The `workbench` script does not look into the working folder, but `python -m MODULE` of the ranks does.
    if PathFinder.find_spec(module.partition(".")[0], [str(Path.cwd()), *sys.path]) is None:
        raise MissingExtra(f"--trainer {request.trainer}: no module {module}", f"install it for {sys.executable}")
    arguments = ("--job.config_file", request.config, *request.overrides) if request.config else request.overrides
    settings = (
        rank_environment(request) | search_path_last() | flight_recorder_settings(OUTPUTS / "dumps", _RING_ENTRIES)
    )
    return Plan(request=request, command=arguments, module=module, folder=OUTPUTS, environment=settings)


def trainer_arguments(request: Request) -> tuple[str, ...]:
    """Return the arguments for `python -m trainer` that correspond to the request."""
    named = (
        ("--module", request.module, "--config", request.config)
        if request.module
        else ("--job.config_file", request.config)
    )
    configuration = tuple(part for part in named if part) if request.config else ()
    fault = ("--faults.name", request.incident) if request.incident else ()
    return (*configuration, *fault, *request.overrides)


def _training_config(arguments: tuple[str, ...], world_size: int) -> JobConfig:
    """Return the trainer's configuration for these arguments, checked for `world_size` ranks.

    Raises:
        UsageProblem: The trainer does not support the configuration, or it does not fit this number of ranks.
    """
    config = loaded(arguments)
    with trainer_errors_as_ours():
        checked_mesh(config, world_size)
    return config


def loaded(arguments: tuple[str, ...]) -> JobConfig:
    """Return the trainer's configuration for these arguments.

    Raises:
        UsageProblem: The trainer does not support the configuration.
    """
    with trainer_errors_as_ours():
        return load_for_training(arguments)


def refuse_without_device(config: JobConfig) -> None:
    """Raise UsageProblem if the configuration needs a CUDA device; the caller knows that this machine has none."""
    with trainer_errors_as_ours():
        check_devices(config, None)


def _refuse_missing_data(config: JobConfig) -> None:
    """Raise InputError if the configured data are missing, or need a package that is not installed."""
    try:
        check_local_data(config)
    except DataError as error:
        raise InputError(error.message, error.hint) from error


def refuse_missing_checkpoint(job: Plan) -> None:
    """Raise InputError if our trainer shall load a checkpoint that is not on this machine.

    This is checked just before the start, and not in `plan`: an earlier job may still write the checkpoint.
    """
    if job.module != "trainer" or job.request.scheduler is not Scheduler.LOCAL:
        return
    try:
        check_initial_checkpoint(loaded(trainer_arguments(job.request)))
    except DataError as error:
        raise InputError(error.message, error.hint) from error


def gpu_count() -> int:
    """Return the number of CUDA devices of this machine; torch is not imported, because this takes seconds."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def own_environment(request: Request) -> dict[str, str]:
    """Return the environment variables for ranks of our trainer.

    They make the ranks import our modules, even if the user has modules with the same names.
    """
    return {**rank_environment(request), **search_path(), "PYTHONSAFEPATH": "1"}


def _rank_settings(request: Request) -> dict[str, str]:
    """Return the environment variables that any rank needs; variables that the user has set are left out.

    They limit a rank's threads and turn off Python's output buffer.
    """
    # Each rank would start a thread per core of the whole machine, and they would wait for each other.
    threads = max(1, (os.cpu_count() or 1) // request.processes_per_node)
    wanted = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    if request.max_restarts:
        # The agent's store keeps the addresses of the attempt before, which ranks of the next one would connect to.
        wanted["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return {name: value for name, value in wanted.items() if name not in os.environ}


def rank_environment(request: Request) -> dict[str, str]:
    """Return the environment variables for ranks that run a trainer's module; those set by the user are left out.

    They are the variables of `_rank_settings` and, on a machine with GPUs, a setting of PyTorch's allocator.
    """
    wanted = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"} if gpu_count() else {}
    return _rank_settings(request) | {name: value for name, value in wanted.items() if name not in os.environ}


def _torch_version() -> tuple[int, ...]:
    """Return (major, minor) of the installed torch; (0, 0) if there is none."""
    try:
        return tuple(int(part) for part in version("torch").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return 0, 0


def flight_recorder_settings(dumps: Path, entries: int) -> dict[str, str]:
    """Return the environment variables for PyTorch's Flight Recorder; variables that the user has set are left out.

    They set the size of its ring buffer to `entries`, and make NCCL's watchdog write dumps into the folder `dumps`.
    """
    prefix = str(dumps.resolve() / "rank_")
    wanted = {"TORCH_FR_BUFFER_SIZE": str(entries), "TORCH_FR_DUMP_TEMP_FILE": prefix}
    if _torch_version() < _FR_NAMES_SINCE:
        wanted |= {"TORCH_NCCL_TRACE_BUFFER_SIZE": str(entries), "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix}
    wanted["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "1"
    return {name: value for name, value in wanted.items() if name not in os.environ}
