"""Converters: functions that change a model before it is parallelised. `model.converters` lists them by name.

Users add their own: a package given with `--module` has a module `config_registry`, which every rank imports before it
reads the configuration. The names registered there can be used in a file, in a flag or in a configuration function:

    from trainer.config import converters

    @converters.register("freeze_embeddings")
    def freeze(model, config):
        model.tok_embeddings.weight.requires_grad_(False)

A converter gets the model on the meta device, where no memory is allocated. Parameters that it adds are initialised
like all others, by their names.
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
    """Return a decorator that registers a model converter under `name`, replacing an earlier one of that name."""

    def add(function: Function) -> Function:
        REGISTERED[name] = function
        return function

    return add


class RegisteredNames(tuple[object, ...]):
    """The accepted values of `model.converters`, tested with `in`: every list of registered names."""

    __slots__ = ()

    def __contains__(self, value: object) -> bool:
        return isinstance(value, list) and all(name in REGISTERED for name in value)


def convert(model: object, config: "JobConfig") -> None:
    """Apply the model converters to `model` in the order in which the configuration names them."""
    for name in config.model.converters:
        REGISTERED[name](model, config)
