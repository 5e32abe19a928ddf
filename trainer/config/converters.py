"""Converters change a model before it is parallelised: names for `model.converters`, registered by a module of a user.

A module that `--module` names has a `config_registry`, which is imported on every rank before the configuration is
read. What it registers can be named in a file, on the command line, or in its own functions:

    from trainer.config import converters

    @converters.register("freeze_embeddings")
    def freeze(model, config):
        model.tok_embeddings.weight.requires_grad_(False)

A converter gets the model on the meta device, on which nothing is allocated; parameters that it adds are initialised by
their names like all others.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from trainer.config.sections import JobConfig

Converter = Callable[..., None]
"""Called with the model and the configuration."""
Function = TypeVar("Function", bound=Converter)
REGISTERED: dict[str, Converter] = {}


def register(name: str) -> Callable[[Function], Function]:
    """Return a decorator that registers a model converter under `name`, in place of an earlier one of that name."""

    def add(function: Function) -> Function:
        REGISTERED[name] = function
        return function

    return add


class RegisteredNames(tuple[object, ...]):
    """The values that `model.converters` can have, tested with `in`: any list of registered names."""

    __slots__ = ()

    def __contains__(self, value: object) -> bool:
        return isinstance(value, list) and all(name in REGISTERED for name in value)


def convert(model: object, config: "JobConfig") -> None:
    """Apply the model converters to `model` in the order in which the configuration names them."""
    for name in config.model.converters:
        REGISTERED[name](model, config)
