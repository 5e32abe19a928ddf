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
from typing import TypeVar

from trainer.config.mesh import Degrees
from trainer.config.sections import JobConfig
from trainer.errors import ConfigError

Converter = Callable[..., None]
"""A function that changes a model in place; it is called with the model and the configuration."""
Function = TypeVar("Function", bound=Converter)
_REGISTERED: dict[str, Converter] = {}
FLOAT8 = "float8"
BUILT_IN = {FLOAT8: ("trainer.step", "torchao")}
"""{name of a converter that comes with the trainer: (its module, the optional package that it needs)}."""


def is_installed(package: str) -> bool:
    """Return whether an optional package can be imported; an empty folder with its name does not count."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def is_available(name: object) -> bool:
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


Capability = tuple[int, int]
"""The compute capability of a CUDA device as (major, minor), such as (9, 0)."""
_WITH_FLOAT8: Capability = (8, 9)


def check_devices(config: JobConfig, capability: Capability | None) -> None:
    """Raise ConfigError if the configuration needs a CUDA device that is missing or too old.

    `capability` is the compute capability of this rank's CUDA device, or None without a device. A dry run (comm.mode
    fake_backend) needs no device, because its tensors have no values.
    """
    if config.comm.mode == "fake_backend":
        return
    where = f"a device of compute capability {capability[0]}.{capability[1]}" if capability else "a CPU"
    if FLOAT8 in config.model.converters and not config.float8.emulate and (capability or (0, 0)) < _WITH_FLOAT8:
        raise ConfigError(
            f"model.converters float8 on {where}: float8 products need compute capability 8.9 (H100, L40) or more",
            "add --float8.emulate, which rounds to float8 and computes in float32, or leave float8 out",
        )
    overlaps = config.parallelism.enable_async_tensor_parallel and config.parallelism.tensor_parallel_degree > 1
    if overlaps and not capability:
        raise ConfigError(
            f"parallelism.enable_async_tensor_parallel on {where}: it copies between the memories of CUDA devices",
            "leave it out, and ranks wait for their collectives",
        )


def check_float8(config: JobConfig, mesh: Degrees) -> None:
    """Raise ConfigError if settings of float8 exclude each other or cannot be used on this mesh."""
    float8 = config.float8
    by_rows = float8.recipe_name not in (None, "tensorwise")
    if FLOAT8 not in config.model.converters:
        return
    if by_rows and float8.enable_fsdp_float8_all_gather:
        raise ConfigError(
            f"float8.enable_fsdp_float8_all_gather with float8.recipe_name {float8.recipe_name}: weights can be"
            " gathered in float8 only where each has one scale",
            "choose recipe_name tensorwise, or leave out enable_fsdp_float8_all_gather",
        )
    if float8.precompute_float8_dynamic_scale_for_fsdp and not float8.enable_fsdp_float8_all_gather:
        raise ConfigError(
            "float8.precompute_float8_dynamic_scale_for_fsdp without float8.enable_fsdp_float8_all_gather: no weight is"
            " gathered in float8",
            "add --float8.enable_fsdp_float8_all_gather",
        )
    if float8.enable_fsdp_float8_all_gather and not mesh.uses_fsdp:
        raise ConfigError(
            "float8.enable_fsdp_float8_all_gather: no weight is sharded by FSDP on this mesh",
            "leave it out, or set parallelism.data_parallel_shard_degree",
        )
    if float8.recipe_name == "rowwise_with_gw_hp" and uses_autocast(config, mesh):
        raise ConfigError(
            "float8.recipe_name rowwise_with_gw_hp without FSDP: under autocast its operands have different types",
            "set training.mixed_precision_param to float32, or shard the weights with FSDP",
        )


def uses_autocast(config: JobConfig, mesh: Degrees) -> bool:
    """Return whether autocast casts the operands of matrix products to bfloat16.

    Autocast is not used if mixed precision is off, or under FSDP, which casts the weights itself.
    """
    return not mesh.uses_fsdp and config.training.mixed_precision_param != "float32"


def check_clipping(config: JobConfig) -> None:
    """Raise ConfigError if training.max_norm is 0, because clipping would set all gradients to zero."""
    if config.training.max_norm == 0:
        raise ConfigError(
            "training.max_norm 0 would clip every gradient to 0, so that nothing is learned",
            "give a positive norm; one that is never reached, such as 1e9, clips nothing",
        )


def check_precision(config: JobConfig, mesh: Degrees) -> None:
    """Raise ConfigError if weights are bfloat16 but computations float32 without FSDP; only FSDP can cast weights."""
    training = config.training
    if training.dtype == "bfloat16" and training.mixed_precision_param == "float32" and not mesh.uses_fsdp:
        raise ConfigError(
            "training.mixed_precision_param float32 with training.dtype bfloat16: without FSDP weights compute in their"
            " own type",
            "set training.mixed_precision_param to bfloat16, or training.dtype to float32",
        )
