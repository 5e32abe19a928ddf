"""Converters: functions that change a model before it is parallelised. `model.converters` lists them by name.

Users can add converters: a package given with `--module` has a module `config_registry`, and every rank imports this
module before it reads the configuration. The names registered there can be used in a file, in a flag or in a
configuration function:

    from trainer.config import converters

    @converters.register("freeze_embeddings")
    def freeze(model, config):
        model.tok_embeddings.weight.requires_grad_(False)

A converter gets the model on the meta device, where no memory is allocated. If a converter adds parameters, they are
initialised like all others, by their names.
"""

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from trainer.config.sections import JobConfig

Converter = Callable[..., None]
"""A function that changes a model in place; it is called with the model and the configuration."""
Function = TypeVar("Function", bound=Converter)
_REGISTERED: dict[str, Converter] = {}
FLOAT8 = "float8"
BUILT_IN = {FLOAT8: ("trainer.float8", "torchao")}
"""{name of a converter that comes with the trainer: (its module, the optional package that it needs)}."""


def is_installed(package: str) -> bool:
    """Return whether an optional package can be imported; an empty folder with its name does not count."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def is_available(name: object) -> bool:
    """Return whether a converter can be used: it is registered, or it is built in and its package is installed."""
    return name in _REGISTERED or (isinstance(name, str) and name in BUILT_IN and is_installed(BUILT_IN[name][1]))


def register(name: str) -> Callable[[Function], Function]:
    """Return a decorator that registers a model converter under `name`, in place of an earlier one with this name."""

    def add(function: Function) -> Function:
        _REGISTERED[name] = function
        return function

    return add


class RegisteredNames(tuple[object, ...]):
    """The possible values of `model.converters`, for use with `in`.

    `value in RegisteredNames()` is true if `value` is a list of names of available converters.
    """

    __slots__ = ()

    def __contains__(self, value: object) -> bool:
        # Looked up on each call: a user's module registers its converters only after this object was made.
        return isinstance(value, list) and all(map(is_available, value))


def convert(model: object, config: "JobConfig") -> None:
    """Apply the configured model converters to `model`, in the order of `model.converters`."""
    for name in config.model.converters:
        if function := _REGISTERED.get(name):
            function(model, config)
        else:
            importlib.import_module(BUILT_IN[name][0]).convert(model, config)
