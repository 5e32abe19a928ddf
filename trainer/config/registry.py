"""Configurations written as Python functions, as in torchtitan since 0.3: `--module llama3 --config NAME`."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path

from trainer.config.sections import JobConfig
from trainer.errors import ConfigError

MODELS = Path(__file__).parent.parent / "models"
"""Folder with a package for each model."""


def from_registry(module: str, function: str) -> JobConfig:
    """Return the configuration that the function `function` in a model package's config_registry returns.

    The config_registry is the module trainer/models/<module>/config_registry.py, or <module>.config_registry.

    Raises:
        ConfigError: There is no such module or function.
    """
    _search_working_folder_last()
    name = next((name for name in (f"trainer.models.{module}", module) if exists(f"{name}.config_registry")), None)
    if name is None:
        raise ConfigError(
            f"no config registry for module {module!r}",
            f"built in are {', '.join(models())}; give other modules by their dotted path",
        )
    registry = importlib.import_module(f"{name}.config_registry")
    functions = [name for name, value in vars(registry).items() if _is_configuration(value, registry.__name__)]
    if function not in functions:
        raise ConfigError(f"{module} has no configuration {function!r}", f"it has {', '.join(functions)}")
    config = getattr(registry, function)()
    if not isinstance(config, JobConfig):
        raise ConfigError(
            f"{name}.config_registry.{function} does not return a JobConfig", "return a trainer.config.JobConfig"
        )
    return config


def models() -> list[str]:
    return sorted(file.parent.name for file in MODELS.glob("*/config_registry.py"))


def _search_working_folder_last() -> None:
    """Append the working folder to sys.path, so that a user's registry can be imported.

    Because it is last, the user's modules cannot replace ours.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def _is_configuration(value: object, module: str) -> bool:
    """Return whether `value` is a function that was defined in `module` and takes no arguments."""
    return inspect.isfunction(value) and value.__module__ == module and not inspect.signature(value).parameters


def exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    # To find a module, Python imports the packages around it, which may be missing. A name may also be relative.
    except (ImportError, ValueError):
        return False
