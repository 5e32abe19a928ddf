"""Find keys that have no effect because another key, their switch, is off.

A run prints these keys. Training is refused if one of them would have changed which weights are loaded or saved.
"""

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from trainer.config.checks import model_shape
from trainer.config.converters import FLOAT8
from trainer.config.mesh import degrees
from trainer.config.sections import JobConfig
from trainer.errors import ConfigError


class Switch(NamedTuple):
    key: str
    turn_on: str
    is_on: Callable[[JobConfig], bool]
    keys: tuple[str, ...]
    is_always_reported: bool = False
    """Whether keys without effect are reported even if the same file turns the switch off."""


def _has_experts(config: JobConfig) -> bool:
    try:
        return hasattr(model_shape(config), "n_experts")
    except ConfigError:
        return True


SWITCHES = (
    Switch("checkpoint.enable", "--checkpoint.enable", lambda c: c.checkpoint.enable, ("checkpoint.*",)),
    Switch("validation.enable", "--validation.enable", lambda c: c.validation.enable, ("validation.*",)),
    Switch("compile.enable", "--compile.enable", lambda c: c.compile.enable, ("compile.*",)),
    Switch(
        "profiling.enable_profiling",
        "--profiling.enable_profiling",
        lambda c: c.profiling.enable_profiling,
        ("profiling.save_traces_folder", "profiling.profiler_*"),
    ),
    Switch(
        "profiling.enable_memory_snapshot",
        "--profiling.enable_memory_snapshot",
        lambda c: c.profiling.enable_memory_snapshot or c.debug.memory_breakdown,
        ("profiling.save_memory_snapshot_folder", "profiling.memory_snapshot_*"),
    ),
    Switch(
        "profiling.enable_profiling",
        "--profiling.enable_profiling or --profiling.enable_memory_snapshot",
        lambda c: c.profiling.enable_profiling or c.profiling.enable_memory_snapshot or c.debug.memory_breakdown,
        ("profiling.profile_freq",),
    ),
    Switch(
        "metrics.enable_tensorboard",
        "--metrics.enable_tensorboard",
        lambda c: c.metrics.enable_tensorboard,
        ("metrics.save_tb_folder",),
    ),
    Switch(
        "metrics.enable_tensorboard",
        "--metrics.enable_tensorboard or --metrics.enable_wandb",
        lambda c: c.metrics.enable_tensorboard or c.metrics.enable_wandb,
        ("metrics.save_for_all_ranks",),
    ),
    Switch(
        "debug.timing_breakdown",
        "--debug.timing_breakdown",
        lambda c: c.debug.timing_breakdown,
        ("debug.timing_breakdown_freq",),
    ),
    Switch(
        "parallelism.pipeline_parallel_degree",
        "--parallelism.pipeline_parallel_degree N",
        lambda c: c.parallelism.pipeline_parallel_degree > 1,
        ("parallelism.pipeline_parallel_*",),
    ),
    Switch(
        "parallelism.context_parallel_degree",
        "--parallelism.context_parallel_degree N",
        lambda c: c.parallelism.context_parallel_degree > 1,
        ("parallelism.context_parallel_load_balancer",),
    ),
    Switch(
        "activation_checkpoint.mode",
        "--activation_checkpoint.mode selective",
        lambda c: c.activation_checkpoint.mode == "selective",
        ("activation_checkpoint.selective_ac_option",),
    ),
    Switch(
        "activation_checkpoint.mode",
        "--activation_checkpoint.mode selective or full",
        lambda c: c.activation_checkpoint.mode in ("selective", "full"),
        (
            *("activation_checkpoint.preserve_rng_state", "activation_checkpoint.determinism_check"),
            *("activation_checkpoint.early_stop", "activation_checkpoint.debug"),
        ),
    ),
    Switch(
        "activation_checkpoint.mode",
        "--activation_checkpoint.mode memory_budget",
        lambda c: c.activation_checkpoint.mode == "memory_budget",
        ("activation_checkpoint.memory_budget", "activation_checkpoint.visualize_memory_budget_pareto"),
    ),
    Switch(
        "faults.name",
        "--faults.name NAME",
        lambda c: c.faults.name != "healthy",
        ("faults.*",),
    ),
    Switch(
        "faults.name",
        "--faults.name straggler, straggler_data or straggler_gc",
        # Without any fault, the switch before this one reports the keys.
        lambda c: c.faults.name.startswith("straggler") or c.faults.name == "healthy",
        ("faults.seconds", "faults.every"),
        is_always_reported=True,
    ),
    Switch(
        "checkpoint.initial_load_path",
        "--checkpoint.initial_load_path FOLDER",
        lambda c: bool(c.checkpoint.initial_load_path),
        ("checkpoint.initial_load_model_only",),
    ),
    Switch(
        "checkpoint.load_only",
        "--checkpoint.no_load_only",
        lambda c: not c.checkpoint.load_only,
        (
            *("checkpoint.interval", "checkpoint.async_mode", "checkpoint.keep_latest_k", "checkpoint.export_dtype"),
            *("checkpoint.enable_first_step_checkpoint", "checkpoint.last_save_*"),
        ),
        is_always_reported=True,
    ),
    Switch(
        "checkpoint.last_save_model_only",
        "--checkpoint.last_save_model_only, as a checkpoint to resume from keeps the types of training",
        lambda c: c.checkpoint.last_save_model_only,
        ("checkpoint.export_dtype",),
        is_always_reported=True,
    ),
    Switch(
        "lr_scheduler.decay_ratio",
        "--lr_scheduler.decay_ratio SHARE",
        lambda c: c.lr_scheduler.decay_ratio != 0,
        ("lr_scheduler.decay_type", "lr_scheduler.min_lr_factor"),
        is_always_reported=True,
    ),
    Switch(
        "model.converters",
        "--model.converters float8",
        lambda c: FLOAT8 in c.model.converters,
        ("float8.*",),
    ),
    Switch(
        "model.name",
        "--model.name llama4, which has experts",
        _has_experts,
        ("parallelism.expert_tensor_parallel_degree", "debug.moe_force_load_balance"),
        is_always_reported=True,
    ),
    Switch(
        "parallelism.tensor_parallel_degree",
        "--parallelism.tensor_parallel_degree N",
        lambda c: c.parallelism.tensor_parallel_degree > 1,
        ("parallelism.enable_async_tensor_parallel",),
    ),
    Switch(
        "comm.mode",
        "--comm.mode default, as now one step runs in one process",
        lambda c: c.comm.mode == "default",
        (
            *("training.steps", "checkpoint.*", "validation.*", "profiling.*", "metrics.*", "faults.*"),
            *("debug.memory_breakdown", "debug.timing_breakdown*", "debug.record_*", "debug.check_finite"),
        ),
        is_always_reported=True,
    ),
    Switch(
        "comm.mode",
        "--comm.mode default, as now no values are computed",
        lambda c: c.comm.mode != "fake_backend",
        ("compile.*", "float8.*", "training.enable_cpu_offload", "training.dataset*"),
        is_always_reported=True,
    ),
)
_SHARDING = Switch(
    "parallelism.data_parallel_shard_degree",
    "--parallelism.data_parallel_shard_degree N, as FSDP shards no weight on this mesh",
    lambda c: c.training.enable_cpu_offload,
    ("parallelism.fsdp_reshard_after_forward", "training.mixed_precision_reduce"),
    is_always_reported=True,
)
"""The switch of keys that only FSDP uses.

It is not in `SWITCHES`, because the number of ranks decides whether it is on.
"""
WEIGHTS = (
    *("checkpoint.initial_load_path", "checkpoint.initial_load_in_hf", "checkpoint.load_step"),
    *("checkpoint.last_save_in_hf", "checkpoint.load_only"),
)
"""The keys that decide which weights a run loads or saves.

If one of them is set while its switch is off, the training is refused.
"""


def off_switches(
    config: JobConfig, written: Mapping[str, bool], world_size: int | None = None
) -> Iterator[tuple[str, Switch]]:
    """Yield (key, its switch) for each written key that has no effect because its switch is off.

    `written` is {key: whether a command-line flag set it}. A configuration file may turn a feature off and keep the
    settings of the feature. So such keys are reported only if a flag set them. `world_size` is the number of ranks;
    without it, keys that only FSDP uses are not reported.
    """
    switches = SWITCHES if world_size is None or _uses_fsdp(config, world_size) else (*SWITCHES, _SHARDING)
    for key, is_flag in written.items():
        for switch in switches:
            counts = key != switch.key and any(fnmatchcase(key, pattern) for pattern in switch.keys)
            is_reported = is_flag or switch.is_always_reported or switch.key not in written
            if counts and not switch.is_on(config) and is_reported:
                yield key, switch


def _uses_fsdp(config: JobConfig, world_size: int) -> bool:
    """Return whether FSDP, and not DDP, is used for the weights of a job on `world_size` ranks.

    Raises:
        ConfigError: The degrees do not multiply to the number of ranks.
    """
    return degrees(config.parallelism, world_size, offload=config.training.enable_cpu_offload).uses_fsdp
