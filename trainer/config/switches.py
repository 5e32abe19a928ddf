"""Keys that have an effect only while another key, their switch, is on.

A run prints the keys that its switches disable. Training is refused if such a key would have changed the weights.
"""

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from trainer.config.sections import JobConfig


class Switch(NamedTuple):
    """A key that acts as a switch, how to turn it on, and patterns of the keys that have no effect while it is off."""

    key: str
    turn_on: str
    is_on: Callable[[JobConfig], bool]
    keys: tuple[str, ...]


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
)
WEIGHTS = (
    *("checkpoint.initial_load_path", "checkpoint.initial_load_in_hf", "checkpoint.load_step"),
    *("checkpoint.last_save_in_hf", "checkpoint.load_only"),
)
"""Keys that decide which weights a run starts from or leaves: they are refused without their switch."""


def off_switches(config: JobConfig, written: Mapping[str, bool]) -> Iterator[tuple[str, Switch]]:
    """Yield (key, its switch) for each written key that has no effect because its switch is off.

    `written` maps each key to whether it was written as a flag. A key in a file is not reported if the user also wrote
    the switch itself, because then the file turns it off on purpose.
    """
    for key, is_flag in written.items():
        for switch in SWITCHES:
            counts = key != switch.key and any(fnmatchcase(key, pattern) for pattern in switch.keys)
            if counts and not switch.is_on(config) and (is_flag or switch.key not in written):
                yield key, switch
