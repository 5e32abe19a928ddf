"""Configurations written as Python functions, as torchtitan has them since 0.3: `--module llama3 --config NAME`."""

import importlib
import importlib.util

from trainer.config.sections import JobConfig
from trainer.errors import ConfigError


def from_registry(module: str, function: str) -> JobConfig:
    """What `function` in trainer/models/<module>/config_registry.py returns, or in <module>.config_registry elsewhere.

    Raises:
        ConfigError: There is no such module or function.
    """
    name = next((name for name in (f"trainer.models.{module}", module) if exists(f"{name}.config_registry")), None)
    if name is None:
        raise ConfigError(f"no config registry for module {module!r}", "llama3 is built in; others need a dotted path")
    registry = importlib.import_module(f"{name}.config_registry")
    functions = [name for name in vars(registry) if not name.startswith("_") and callable(getattr(registry, name))]
    if function not in functions:
        raise ConfigError(f"{module} has no configuration {function!r}", f"it has {', '.join(functions)}")
    config = getattr(registry, function)()
    if not isinstance(config, JobConfig):
        raise ConfigError(f"{name}.config_registry.{function} returned no JobConfig", "return trainer.config.JobConfig")
    return config


def exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
