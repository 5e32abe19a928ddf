"""Read and check the configuration of a training run.

This package does not import torch, because launchers use it too and must start quickly.
"""

from trainer.config.checks import checked_mesh, validate
from trainer.config.load import KeyReport, explain, load, load_for_training, startup_notes
from trainer.config.schema import as_dict, options
from trainer.config.sections import JobConfig
from trainer.errors import ConfigError

__all__ = [
    "ConfigError",
    "JobConfig",
    "KeyReport",
    "as_dict",
    "checked_mesh",
    "explain",
    "load",
    "load_for_training",
    "options",
    "startup_notes",
    "validate",
]
