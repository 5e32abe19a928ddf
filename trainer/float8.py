"""Compute matrix products in float8 with torchao: linear layers scale their operands and round them to 8 bits."""

import importlib
from dataclasses import replace
from typing import Any

from torch import nn

from trainer.config import ConfigError, JobConfig
from trainer.config.checks import model_shape

_MULTIPLE = 16
"""Both sides of a weight must be multiples of this number for a product in float8."""


def convert(model: nn.Module, config: JobConfig) -> None:
    """Replace the linear layers of `model` by layers that multiply in float8, except layers in float8.filter_fqns.

    Layers whose dimensions are not multiples of 16 do not change. The names of weights do not change either.

    Raises:
        ConfigError: No layer is left to convert.
    """
    # The weight of a tied output layer is an embedding, too, which is looked up in its own type.
    tied = ["output"] * model_shape(config).enable_weight_tying
    filtered = [*config.float8.filter_fqns, *tied]
    names = [name for name, module in model.named_modules() if is_converted(module, name, filtered)]
    if not names:
        raise ConfigError(
            "model.converters float8: there is no linear layer to convert whose sides are multiples of"
            f" {_MULTIPLE} and whose name has none of float8.filter_fqns {config.float8.filter_fqns}",
            "name fewer layers in float8.filter_fqns",
        )
    package = torchao()
    package.convert_to_float8_training(
        model, config=recipe(package, config), module_filter_fn=lambda _, name: name in names
    )


def is_converted(module: nn.Module, name: str, filtered: list[str]) -> bool:
    """Return whether to convert a module: it is a linear layer that float8 supports, and is not excluded.

    A module is excluded if its `name` contains one of the texts in `filtered`.
    """
    return (
        isinstance(module, nn.Linear)
        and module.in_features % _MULTIPLE == module.out_features % _MULTIPLE == 0
        and not any(part in name for part in filtered)
    )


def recipe(package: Any, config: JobConfig) -> Any:
    settings = config.float8
    return replace(
        package.Float8LinearConfig.from_recipe_name(settings.recipe_name or "tensorwise"),
        emulate=settings.emulate,
        enable_fsdp_float8_all_gather=settings.enable_fsdp_float8_all_gather,
    )


def precompute_scales(model: nn.Module) -> None:
    torchao().precompute_float8_dynamic_scale_for_fsdp(model)


def torchao() -> Any:
    """Return the module torchao.float8, imported only here because torchao is an optional dependency."""
    return importlib.import_module("torchao.float8")
