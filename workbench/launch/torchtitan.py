"""Plan a job of the real torchtitan: which version is installed, its options and settings, and our recorders in it."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

import msgspec
from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from analyzers.errors import InputError, MissingExtra
from workbench.errors import UsageProblem
from workbench.launch.plan import IN_ONE_PROCESS, Plan, Request, rank_environment
from workbench.launch.recording import recorder_settings
from workbench.launch.torchtitan_config import MARK
from workbench.python_path import command, environment

_PACKAGE = "torchtitan"
UNKNOWN = "of unknown version"
_UNDECLARED = ("torch", "triton")
"""The modules that torchtitan imports at its start without naming them in its requirements."""
_TORCH_SINCE = {(0, 3): (2, 14)}
"""{version of torchtitan: the oldest version of torch with which it trains}, for versions that need a newer torch."""
BACKEND_OPTION = "parallelism.spmd_backend"
BACKEND_OF_OLDER_TORCH = "partial_dtensor"
"""The value of the option `parallelism.spmd_backend` with which torchtitan 0.3 trains with torch 2.13 as well."""


class Form(StrEnum):
    """How a version of torchtitan is configured."""

    TOML = "toml"
    """Up to torchtitan 0.2: a TOML file, and `--job.dump_folder`."""
    REGISTRY = "registry"
    """Since 0.3: a Python function, named by `--module llama3 --config llama3_debugmodel`, and `--dump_folder`."""


@dataclass(frozen=True)
class Torchtitan:
    """An installed torchtitan: its version (`UNKNOWN` for a folder without metadata) and the `Form` of its options."""

    version: str
    form: Form

    @property
    def name(self) -> str:
        """The name to print, such as `torchtitan 0.2.2`."""
        return f"torchtitan {self.version}"


@dataclass(frozen=True)
class Conflict:
    """A package whose version is incompatible with the installed torchtitan, and the command that installs another.

    `prevents_training` says that training cannot even begin with this package.
    """

    title: str
    why: str
    command: str
    prevents_training: bool = False


def installed_torchtitan(path: list[str]) -> Torchtitan | None:
    """Return the torchtitan that Python finds in the search path `path`; None if there is none.

    The form of its options is found in its files, because a source checkout may have an old version number.
    """
    spec = PathFinder.find_spec(_PACKAGE, path)
    if spec is None or not spec.origin:
        return None
    has_registry = (Path(spec.origin).parent / "models" / "llama3" / "config_registry.py").is_file()
    return Torchtitan(package_version(_PACKAGE) or UNKNOWN, Form.REGISTRY if has_registry else Form.TOML)


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def conflicts(found: Torchtitan, options: tuple[str, ...] = ()) -> list[Conflict]:
    """Return a `Conflict` for each package that is incompatible with the installed torchtitan.

    `options` are torchtitan's command-line options; one of them lets torchtitan 0.3 train with an older torch.
    """
    declared = requires(_PACKAGE) or [] if found.version != UNKNOWN else []
    missing = list(missing_packages(declared))
    wrong = list(wrong_packages(found, declared))
    return [*old_torch(found, options), *([missing_conflict(found, missing)] if missing else []), *wrong]


def missing_conflict(found: Torchtitan, missing: list[str]) -> Conflict:
    """Return the `Conflict` for packages that are not installed; `missing` has requirements like `torchdata>=0.8.0`."""
    names = ", ".join(Requirement(each).name for each in missing)
    return Conflict(f"{found.name} lacks {names}", "Its import fails, or a part of it does not work.", pip(missing))


def missing_packages(declared: list[str]) -> Iterator[str]:
    """Yield the requirement, such as `datasets>=3.6`, of each missing package that torchtitan needs.

    `declared` has all requirements in torchtitan's metadata.
    """
    for needed in required(declared):
        if package_version(needed.name) is None:
            yield f"{needed.name}{needed.specifier}"
    yield from (name for name in _UNDECLARED if find_spec(name) is None)


def wrong_packages(found: Torchtitan, declared: list[str]) -> Iterator[Conflict]:
    """Yield a `Conflict` for each installed package with a version that torchtitan's metadata exclude.

    `declared` has the requirements in these metadata.
    """
    for needed in required(declared):
        have = package_version(needed.name)
        # By default no pre-release fits, and so no nightly version.
        if have is not None and not needed.specifier.contains(have, prereleases=True):
            wanted = f"{needed.name}{needed.specifier}"
            yield Conflict(
                f"{found.name} is incompatible with {needed.name} {have}", f"It asks for {wanted}.", pip([wanted])
            )


def old_torch(found: Torchtitan, options: tuple[str, ...]) -> Iterator[Conflict]:
    """Yield a `Conflict` if the installed torch is too old for this torchtitan.

    torchtitan's own metadata do not contain this requirement.
    """
    have = package_version("torch")
    needed = max((torch for since, torch in _TORCH_SINCE.items() if release(found.version)[:2] >= since), default=None)
    if have is None or needed is None or release(have) >= needed or _uses_older_backend(options):
        return
    least = ".".join(map(str, needed))
    title = f"{found.name} needs torch {least} or newer; this is torch {have}"
    why = f"With an older one its model dies at the start; only --{BACKEND_OPTION} {BACKEND_OF_OLDER_TORCH} trains."
    yield Conflict(title, why, pip([f"torch>={least}"]), prevents_training=True)


def _uses_older_backend(options: tuple[str, ...]) -> bool:
    """Return whether torchtitan's options choose the backend that works with older versions of torch."""
    words = " ".join(options).replace("=", " ").replace("-", "_")
    return f"__{BACKEND_OPTION} {BACKEND_OF_OLDER_TORCH}" in words


def pip(requirements: list[str]) -> str:
    """Return the command that installs the given requirements.

    >>> pip(["torch>=2.14", "triton"])
    "pip install 'torch>=2.14' triton"
    """
    return shlex.join(["pip", "install", *requirements])


def required(declared: list[str]) -> Iterator[Requirement]:
    """Yield the requirements that apply to this machine, out of `declared`, the requirements in a package's metadata.

    Requirements of optional extras are left out.

    >>> [str(each) for each in required(["datasets<4.8.0,>=3.6.0", "pytest; extra == 'dev'"])]
    ['datasets<4.8.0,>=3.6.0']
    """
    found = (Requirement(text) for text in declared)
    yield from (each for each in found if each.marker is None or each.marker.evaluate({"extra": ""}))


def release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, such as (2, 13, 0) for `2.13.0+cpu`; empty if the text is not a version."""
    try:
        return Version(text).release
    except InvalidVersion:
        return ()


_REGISTRY_EXAMPLE = "--module llama3 --config llama3_debugmodel"
_FILE_OPTION = "job.config_file"
_SINCE_0_3 = {
    "job.dump_folder": "dump_folder",
    "job.print_config": "debug.print_config",
    "job.save_config_file": "debug.save_config_file",
    "model.hf_assets_path": "hf_assets_path",
    "training.dataset": "dataloader.dataset",
    "training.dataset_path": "dataloader.dataset_path",
    **{
        f"profiling.{name}": f"profiler.{name}"
        for name in (
            *("enable_profiling", "save_traces_folder", "profile_freq", "profiler_active", "profiler_warmup"),
            *("enable_memory_snapshot", "save_memory_snapshot_folder"),
        )
    },
}
"""{name of an option in torchtitan 0.2: its name in 0.3}, for options whose values mean the same in both."""


def torchtitan_options(request: Request, found: Torchtitan) -> tuple[tuple[str, ...], list[str]]:
    """Return the command-line options for the installed torchtitan, and a note on each option that was renamed.

    Raises:
        UsageProblem: The configuration is for another version, or an option applies only to our trainer.
    """
    if request.incident:
        raise UsageProblem(
            f"--incident {request.incident} breaks our own trainer, not torchtitan", "leave out --trainer or --incident"
        )
    overrides, notes = renamed(request.overrides, found)
    configuration = _file_options(request, found) if found.form is Form.TOML else _registry_options(request, found)
    return (*configuration, *overrides), notes


def _file_options(request: Request, found: Torchtitan) -> tuple[str, ...]:
    """Return the options that name the TOML file, for versions up to 0.2; empty if no file is given.

    Raises:
        UsageProblem: A module is given, or the file does not exist.
    """
    if request.module:
        hint = "give it a file, --config FILE.toml, or install a newer one: pip install 'torchtitan>=0.3'"
        raise UsageProblem(f"{found.name} has no --module: it is configured by a TOML file", hint)
    if request.config and not Path(request.config).is_file():
        raise UsageProblem(f"--config {request.config}: no such file", f"{found.name} reads a TOML file")
    return (f"--{_FILE_OPTION}", request.config) if request.config else ()


def _registry_options(request: Request, found: Torchtitan) -> tuple[str, ...]:
    """Return the options that name the configuration function, for versions since 0.3.

    Raises:
        UsageProblem: A TOML file is given, or the module or its function is missing.
    """
    files = [request.config] if request.config and request.config.endswith(".toml") else []
    files += [word for word in request.overrides if normal(word).partition("=")[0] == f"--{_FILE_OPTION}"]
    if files:
        hint = f"name a function, {_REGISTRY_EXAMPLE}, or install an older one: pip install 'torchtitan<0.3'"
        raise UsageProblem(f"{found.name} reads no TOML file: {files[0]}", hint)
    if not request.module or not request.config:
        raise UsageProblem(f"{found.name} needs --module and --config", f"such as {_REGISTRY_EXAMPLE}")
    return "--module", request.module, "--config", request.config


def renamed(overrides: tuple[str, ...], found: Torchtitan) -> tuple[tuple[str, ...], list[str]]:
    """Return the overrides with the option names of the installed version, and a note on each that was renamed."""
    names = _SINCE_0_3 if found.form is Form.REGISTRY else {new: old for old, new in _SINCE_0_3.items()}
    words, notes = [], []
    for word in overrides:
        option, equals, value = word.partition("=")
        name = names.get(normal(option).removeprefix("--")) if option.startswith("--") else None
        if name:
            notes.append(f"{option} is --{name} in {found.name}")
        words.append(f"--{name}{equals}{value}" if name else word)
    return tuple(words), notes


def normal(option: str) -> str:
    """Return an option with underscores instead of hyphens; torchtitan treats both as equal."""
    return "--" + option[2:].replace("-", "_") if option.startswith("--") else option


_PATIENCE_S = 300.0
_BOX = "│╭╰─╮╯ "
_TESTED_TORCH = "2.13"
"""The version of torch with which torchtitan 0.2.2 is known to work."""


class Settings(msgspec.Struct):
    """The settings of a torchtitan job that the launcher needs.

    `mode` is torchtitan's `comm.mode`, and `assets` the folder of the tokenizer. `device` is the type of the
    accelerator that torchtitan finds on this machine; None if it finds only the CPU.
    """

    dump_folder: str
    init_timeout_s: float
    train_timeout_s: float
    mode: str = "default"
    assets: str | None = None
    device: str | None = None


class Failure(msgspec.Struct):
    """Why torchtitan did not return a configuration: `failed` names the step, "import", "options" or "config".

    `name` is the module that could not be imported, if known.
    """

    failed: str
    message: str = ""
    name: str | None = None


def _resolved_settings(found: Torchtitan, options: tuple[str, ...]) -> Settings:
    """Return the settings that torchtitan itself derives from its options, its TOML file and its defaults.

    They are read in a child process, which imports torchtitan.

    Raises:
        UsageProblem: torchtitan does not accept the options.
        InputError: torchtitan cannot be imported, or gave no answer.
    """
    words = command("workbench.launch.torchtitan_config", *options)
    # Columns: the messages of a narrow terminal would be cut into lines.
    settings = environment() | {"COLUMNS": "1000", "NO_COLOR": "1"}
    try:
        ended = subprocess.run(
            words, env=settings, capture_output=True, text=True, check=False, timeout=_PATIENCE_S, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        why = f"{found.name} did not read its configuration within {_PATIENCE_S:.0f} s"
        raise InputError(why, "try it alone: python -c 'import torchtitan.train'") from error
    line = next((line for line in ended.stdout.splitlines() if line.startswith(MARK)), None)
    if line is None:
        tail = ended.stderr.strip().splitlines()[-1:] or [f"exit status {ended.returncode}"]
        raise InputError(f"{found.name} ended while it was imported: {tail[0]}", "python -c 'import torchtitan.train'")
    return converted(found, line.removeprefix(MARK), ended.stderr + ended.stdout)


def converted(found: Torchtitan, answer: str, output: str) -> Settings:
    """Return the settings in `answer`, the JSON line that the child process prints; `output` is its other output.

    Raises:
        WorkbenchError: The JSON line says that a step failed.
    """
    if '"failed"' not in answer:
        return msgspec.json.decode(answer, type=Settings)
    failure = msgspec.json.decode(answer, type=Failure)
    if failure.failed == "import":
        raise import_error(found, failure)
    if failure.failed == "options":
        what, *advice = [*_box_lines(output), f"{found.name} does not accept these options"]
        raise UsageProblem(f"{found.name}: {what}", _hint_of(advice))
    hint = "correct the option that the message names; --dry-run checks the options without starting the job"
    raise UsageProblem(f"{found.name} made no configuration: {failure.message}", hint)


def import_error(found: Torchtitan, failure: Failure) -> InputError:
    """Return the error for a torchtitan that cannot be imported: a missing package, or the wrong torch."""
    if failure.message.startswith("No module named") and failure.name:
        package = failure.name.partition(".")[0]
        return InputError(f"{found.name} cannot be imported: {failure.message}", pip([package]))
    torch = package_version("torch")
    fit = f"{pip([f'torch=={_TESTED_TORCH}.*'])} fits to torchtitan 0.2.2"
    return InputError(f"{found.name} cannot be imported with torch {torch}: {failure.message}", fit)


def _box_lines(output: str) -> Iterator[str]:
    """Yield the lines of the first error message in `output`; torchtitan's option parser (tyro) prints it in a box."""
    rows = [line for line in output.splitlines() if line.startswith(("│", "╭", "╰"))]
    for row in rows:
        if row.startswith("╰"):
            return
        text = row.strip(_BOX).strip()
        if row.startswith("│") and text:
            yield text


def _hint_of(advice: list[str]) -> str:
    """Return the hint for an option that torchtitan does not know: a similar option, or where to find all options.

    `advice` has the lines of the error message of tyro, torchtitan's option parser.
    """
    options = [line.split()[0] for line in advice if line.startswith("--")]
    return f"did you mean {options[0]}?" if options else "list its options: python -m torchtitan.train --help"


def _missing_assets(settings: Settings) -> str | None:
    """Return a warning if the tokenizer folder in `settings` does not exist, else None.

    The torchtitan package from PyPI does not contain such a folder.
    """
    if settings.assets is None or Path(settings.assets).exists():
        return None
    return f"warning: hf_assets_path {settings.assets} does not exist: torchtitan needs a folder with a tokenizer.json"


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
    settings = _resolved_settings(found, options)
    notes += filter(None, [_missing_assets(settings), None if settings.device else _ON_CPU])
    simulated = settings.mode in IN_ONE_PROCESS
    return Plan(
        request=request,
        command=options,
        module=MODULE,
        folder=Path(settings.dump_folder),
        environment=_environment(request, settings) | (_one_process(request) if simulated else {}),
        starts_ranks=not simulated,
        notes=tuple(notes),
        is_dry_run=simulated,
        earlier_files=_OWN_FILES,
    )


def _environment(request: Request, settings: Settings) -> dict[str, str]:
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
