"""Write the options of `workbench launch` in the form that the installed torchtitan understands."""

from pathlib import Path
from typing import TYPE_CHECKING

from workbench.errors import UsageProblem
from workbench.launch.torchtitan.installed import Form, Torchtitan

if TYPE_CHECKING:
    from workbench.launch.plan import Request

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


def torchtitan_options(request: "Request", found: Torchtitan) -> tuple[tuple[str, ...], list[str]]:
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


def _file_options(request: "Request", found: Torchtitan) -> tuple[str, ...]:
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


def _registry_options(request: "Request", found: Torchtitan) -> tuple[str, ...]:
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
