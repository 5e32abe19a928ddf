"""What can a job not do? Everything that is known before its first process starts."""

import importlib
from typing import Protocol

from trainer.config.degrees import KEYS, TENSOR, Degrees, degrees
from trainer.config.registry import exists
from trainer.config.sections import ActivationCheckpoint, Checkpoint, JobConfig, Profiling, Training
from trainer.config.stages import check_pipeline
from trainer.errors import ConfigError

WITH_BUDGET = ("inductor", "aot_eager_decomp_partition")
"""Backends of the compiler that divide a graph into a forward and a backward pass by their cost."""


class Shape(Protocol):
    """What the checks need of a model's shape."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int

    @property
    def hidden_dim(self) -> int: ...


def validate(config: JobConfig, world_size: int) -> Degrees:
    """Return the degrees of a training job on `world_size` ranks.

    Raises:
        ConfigError: There is no such model, the mesh does not fit the world size or the model, or training cannot
            combine what is asked for.
    """
    found = degrees(config.parallelism, world_size, offload=config.training.enable_cpu_offload)
    check_divisions(config, found)
    check_combinations(config, found)
    accumulation_steps(config.training, found)
    recompute_interval(config.activation_checkpoint)
    check_memory_budget(config)
    check_trace_schedule(config.profiling)
    check_seed_checkpoint(config.checkpoint)
    check_validation(config, found)
    if config.debug.deterministic_warn_only and not config.debug.deterministic:
        raise ConfigError(
            "debug.deterministic_warn_only without debug.deterministic: nothing would warn", "add --debug.deterministic"
        )
    if config.faults.rank >= world_size:
        raise ConfigError(
            f"faults.rank {config.faults.rank} is none of {world_size} ranks", f"give -1 to {world_size - 1}"
        )
    return found


def model_shape(config: JobConfig) -> Shape:
    """Return the shape of the model that `config` names.

    Raises:
        ConfigError: There is no such model or flavor.
    """
    name, flavor = config.model.name, config.model.flavor
    if not name.isidentifier() or not exists(f"trainer.models.{name}.flavors"):
        raise ConfigError(f"there is no model {name!r}", "available models: llama3, llama4")
    flavors = importlib.import_module(f"trainer.models.{name}.flavors").FLAVORS
    if flavor not in flavors:
        raise ConfigError(f"{name} has no flavor {flavor!r}", f"it has {', '.join(flavors)}")
    shape: Shape = flavors[flavor]
    return shape


def check_divisions(config: JobConfig, mesh: Degrees) -> None:
    """Raise ConfigError if a part of the model or of the data cannot be divided evenly among its ranks."""
    shape = model_shape(config)
    check_experts(config, getattr(shape, "n_experts", 0))
    check_pipeline(config, shape.n_layers)
    chunks = mesh.cp * (1 if config.parallelism.context_parallel_load_balancer is None else 2)
    if mesh.cp > 1 and config.training.seq_len % chunks:
        raise ConfigError(
            f"parallelism.context_parallel_degree {mesh.cp}: training.seq_len {config.training.seq_len} cannot be cut"
            f" into {chunks} equal chunks",
            f"give a seq_len that is a multiple of {chunks}",
        )
    for size, what in (
        (shape.n_heads, "attention heads"),
        (shape.n_kv_heads, "key-value heads"),
        (shape.hidden_dim, "features of a hidden layer"),
        (shape.vocab_size, "tokens of the vocabulary"),
        (config.training.seq_len // mesh.cp, "the positions of training.seq_len on a rank"),
    ):
        divide(size, mesh, TENSOR, what)


def divide(size: int, mesh: Degrees, name: str, what: str) -> None:
    """Raise ConfigError if a dimension of the mesh does not divide `size` evenly."""
    degree = int(getattr(mesh, name))
    if size % degree:
        raise ConfigError(
            f"parallelism.{KEYS[name]} {degree} does not divide {size} {what}", f"give a divisor of {size}"
        )


def check_experts(config: JobConfig, experts: int) -> None:
    """Raise ConfigError if expert parallelism cannot divide the experts evenly."""
    ranks = config.parallelism.expert_parallel_degree
    if ranks > 1 and (not experts or experts % ranks):
        raise ConfigError(
            f"expert_parallel_degree {ranks}: {config.model.name} {config.model.flavor} has {experts or 'no'} experts",
            f"give a divisor of {experts}" if experts else "set it to 1, or train llama4",
        )


def accumulation_steps(training: Training, degrees: Degrees) -> int:
    """Return how many batches each rank takes in one step.

    Raises:
        ConfigError: global_batch_size is not a multiple of what all ranks take at once.
    """
    at_once = training.local_batch_size * degrees.data_parallel
    global_batch = at_once if training.global_batch_size < 0 else training.global_batch_size
    if global_batch < at_once or global_batch % at_once:
        raise ConfigError(
            f"training.global_batch_size {global_batch} is not a multiple of {at_once}, the sequences of one pass on"
            " all ranks",
            "change global_batch_size, local_batch_size or the data-parallel degrees",
        )
    return global_batch // at_once


def recompute_interval(config: ActivationCheckpoint) -> tuple[int, bool]:
    """Return (interval, keep_costly): every how many blocks one is recomputed, and whether costly operations are kept.

    The interval 0 stands for no recomputation.

    Raises:
        ConfigError: selective_ac_option is neither a positive number nor "op".
    """
    if config.mode != "selective":
        return int(config.mode == "full"), False
    option = config.selective_ac_option
    if option == "op":
        return 1, True
    if not option.isdecimal() or int(option) == 0:
        raise ConfigError(
            f"activation_checkpoint.selective_ac_option = {option!r} is neither a number from 1 nor op",
            'give "op", or N to recompute every Nth block',
        )
    return int(option), False


def check_memory_budget(config: JobConfig) -> None:
    """Raise ConfigError if a memory budget is given to a compiler that does not run, or that takes none."""
    compiling = config.compile
    compiles_blocks = compiling.enable and "model" in compiling.components
    if config.activation_checkpoint.mode != "memory_budget" or (compiles_blocks and compiling.backend in WITH_BUDGET):
        return
    raise ConfigError(
        "activation_checkpoint.mode memory_budget: the compiler chooses what is recomputed, and blocks are not compiled"
        + (f" by backend {compiling.backend}" if compiles_blocks else ""),
        f"add --compile.enable with model in compile.components and compile.backend {WITH_BUDGET[0]}, or choose mode"
        " selective",
    )


def check_trace_schedule(profiling: Profiling) -> None:
    """Raise ConfigError if a trace (warm-up and recorded steps) takes more steps than the interval between traces."""
    needed = profiling.profiler_warmup + profiling.profiler_active
    if profiling.enable_profiling and profiling.profile_freq < needed:
        raise ConfigError(
            f"profiling.profile_freq {profiling.profile_freq} is less than profiler_warmup {profiling.profiler_warmup}"
            f" + profiler_active {profiling.profiler_active}",
            f"set profile_freq to {needed} or more, or lower the others",
        )


def check_seed_checkpoint(checkpoint: Checkpoint) -> None:
    """Raise ConfigError if a seed checkpoint is asked for that would not be saved."""
    if checkpoint.create_seed_checkpoint and not checkpoint.enable:
        raise ConfigError(
            "checkpoint.create_seed_checkpoint without checkpoint.enable would save nothing", "add --checkpoint.enable"
        )
    if checkpoint.create_seed_checkpoint and checkpoint.load_only:
        raise ConfigError(
            "checkpoint.create_seed_checkpoint with checkpoint.load_only: one saves what the other forbids to save",
            "create the seed checkpoint first, then give --checkpoint.load_only to the runs that load it",
        )


def check_validation(config: JobConfig, mesh: Degrees) -> None:
    """Raise ConfigError if the validation that is asked for does not fit the mesh or the model."""
    length, longest = config.validation.seq_len or config.training.seq_len, config.training.seq_len
    if not config.validation.enable:
        return
    if mesh.pp > 1:
        raise ConfigError(
            f"validation.enable with parallelism.pipeline_parallel_degree {mesh.pp}: a pipeline only trains",
            "set --validation.no_enable, or pipeline_parallel_degree to 1",
        )
    if length > longest or (mesh.cp * mesh.tp > 1 and length != longest):
        raise ConfigError(
            f"validation.seq_len {length} does not fit training.seq_len {longest}",
            "leave out validation.seq_len: the model is made for sequences of training.seq_len",
        )


def check_combinations(config: JobConfig, mesh: Degrees) -> None:
    """Raise ConfigError if training cannot do two things at once that can be asked for."""
    if mesh.tp > 1 and hasattr(model_shape(config), "n_experts"):
        raise ConfigError(
            f"parallelism.tensor_parallel_degree {mesh.tp}: experts cannot be trained with tensor parallelism",
            "share the experts with parallelism.expert_parallel_degree instead, or train llama3",
        )
    if config.compile.enable and "model" in config.compile.components and hasattr(model_shape(config), "n_experts"):
        raise ConfigError(
            "compile.enable: blocks with experts cannot be compiled",
            'set --compile.no_enable, or compile.components = ["loss"]',
        )
    if config.debug.record_values and config.compile.enable and "model" in config.compile.components:
        raise ConfigError(
            "debug.record_values with compile.enable: the values inside of compiled blocks cannot be recorded",
            'set --compile.no_enable, or compile.components = ["loss"]',
        )
    if mesh.pp > 1 and config.faults.name == "oom":
        raise ConfigError(
            f"faults.name oom with parallelism.pipeline_parallel_degree {mesh.pp}: a pipeline takes batches of one"
            " size, and this incident gives it a larger one",
            "choose another incident, or set pipeline_parallel_degree to 1",
        )
    if mesh.cp > 1 and config.compile.enable and "model" in config.compile.components:
        raise ConfigError(
            f"compile.enable with parallelism.context_parallel_degree {mesh.cp}: blocks that gather keys and values"
            " cannot be compiled",
            'set --compile.no_enable, or compile.components = ["loss"]',
        )
    if mesh.tp > 1 and config.compile.enable:
        raise ConfigError(
            f"compile.enable with parallelism.tensor_parallel_degree {mesh.tp}: torch.compile cannot do the backward"
            " pass of DTensors",
            "set --compile.no_enable, or tensor_parallel_degree to 1",
        )
