"""Check that the settings of data types (float8, mixed precision) and of gradient clipping can be combined."""

from trainer.config.converters import FLOAT8
from trainer.config.mesh.degrees import Degrees
from trainer.config.sections import JobConfig
from trainer.errors import ConfigError


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
