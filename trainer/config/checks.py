"""Check a configuration before training starts: sizes must divide evenly among ranks, settings must not conflict."""

import importlib
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

from trainer.config import hf_format
from trainer.config.converters import check_clipping, check_float8, check_precision
from trainer.config.mesh import (
    CONTEXT,
    EXPERT,
    KEYS,
    PIPELINE,
    REPLICATE,
    SHARD,
    TENSOR,
    Degrees,
    WrongWorldSize,
    check_pipeline,
    degrees,
)
from trainer.config.registry import exists, models
from trainer.config.sections import ActivationCheckpoint, Checkpoint, JobConfig, Profiling, Training
from trainer.config.shape import ModelArgs
from trainer.errors import ConfigError

_WITH_BUDGET = ("inductor", "aot_eager_decomp_partition")
"""The backends of torch.compile that choose what to recompute by its cost, and so can keep to a memory budget."""


def validate(config: JobConfig, world_size: int) -> Degrees:
    """Return the parallel degrees of a training job on `world_size` ranks.

    Raises:
        ConfigError: The model does not exist, the mesh does not fit the world size or the model, or the settings
            cannot be combined.
    """
    found = degrees(config.parallelism, world_size, offload=config.training.enable_cpu_offload)
    check_divisions(config, found)
    _check_combinations(config, found)
    check_clipping(config)
    check_precision(config, found)
    check_float8(config, found)
    accumulation_steps(config.training, found)
    recompute_interval(config.activation_checkpoint)
    _check_memory_budget(config)
    _check_trace_schedule(config.profiling)
    _check_seed_checkpoint(config.checkpoint)
    _check_exports(config)
    _check_loading(config.checkpoint)
    _check_validation(config, found)
    _check_local_tensors(config, found)
    if config.debug.deterministic_warn_only and not config.debug.deterministic:
        raise ConfigError(
            "debug.deterministic_warn_only without debug.deterministic: nothing would warn", "add --debug.deterministic"
        )
    if config.faults.rank >= world_size:
        raise ConfigError(
            f"faults.rank {config.faults.rank} is none of {world_size} ranks", f"give -1 to {world_size - 1}"
        )
    return found


def model_shape(config: JobConfig) -> ModelArgs:
    """Return the dimensions of the model that `config` names.

    Raises:
        ConfigError: There is no such model or flavor.
    """
    name, flavor = config.model.name, config.model.flavor
    if not name.isidentifier() or not exists(f"trainer.models.{name}.config_registry"):
        raise ConfigError(f"there is no model {name!r}", f"available models: {', '.join(models())}")
    if flavor == hf_format.FLAVOR:
        return hf_format.read_shape(name, config.model.hf_assets_path)
    flavors = importlib.import_module(f"trainer.models.{name}.config_registry").FLAVORS
    if flavor not in flavors:
        raise ConfigError(f"{name} has no flavor {flavor!r}", f"it has {', '.join(flavors)} and {hf_format.FLAVOR}")
    shape: ModelArgs = flavors[flavor]
    return shape


def check_divisions(config: JobConfig, mesh: Degrees) -> None:
    """Raise ConfigError if the layers, heads, experts or batches cannot be divided evenly among the ranks."""
    shape = model_shape(config)
    check_experts(config, getattr(shape, "n_experts", 0))
    check_pipeline(config, shape.n_layers)
    # The balancer gives each rank two chunks, one from either end of a sequence.
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
        (getattr(shape, "expert_dim", 0), "features of an expert"),
        (shape.vocab_size, "tokens of the vocabulary"),
        # Between the blocks, the ranks of tensor parallelism divide the sequence too.
        (config.training.seq_len // mesh.cp, "the positions of training.seq_len on a rank"),
    ):
        divide(size, mesh, TENSOR, what)


def divide(size: int, mesh: Degrees, name: str, what: str) -> None:
    """Raise ConfigError if `size` is not a multiple of the degree of the mesh dimension `name`.

    `what` is the name of the counted things, such as `heads`, for the error message.
    """
    degree = int(getattr(mesh, name))
    if size % degree:
        raise ConfigError(
            f"parallelism.{KEYS[name]} {degree} does not divide {size} {what}", f"give a divisor of {size}"
        )


def check_experts(config: JobConfig, experts: int) -> None:
    """Raise ConfigError if expert parallelism is on, but its degree does not divide the number `experts`."""
    ranks = config.parallelism.expert_parallel_degree
    if ranks > 1 and (not experts or experts % ranks):
        raise ConfigError(
            f"expert_parallel_degree {ranks}: {config.model.name} {config.model.flavor} has {experts or 'no'} experts",
            f"give a divisor of {experts}" if experts else "set it to 1, or train llama4",
        )


def accumulation_steps(training: Training, degrees: Degrees) -> int:
    """Return the number of local batches that each rank processes in one optimizer step (gradient accumulation).

    Raises:
        ConfigError: global_batch_size is not a multiple of local_batch_size times the number of data-parallel ranks.
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
    """Return (interval, keep_costly) of activation checkpointing.

    With an interval of 3, every third block is recomputed; with 0, no block is. If `keep_costly` is True, a recomputed
    block still keeps the outputs of costly operations such as matrix products.

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


def _check_memory_budget(config: JobConfig) -> None:
    """Raise ConfigError if a memory budget is set without torch.compile, or with a backend that supports no budget."""
    compiling = config.compile
    compiles_blocks = compiling.enable and "model" in compiling.components
    if config.activation_checkpoint.mode != "memory_budget" or (compiles_blocks and compiling.backend in _WITH_BUDGET):
        return
    raise ConfigError(
        "activation_checkpoint.mode memory_budget: the compiler chooses what is recomputed, and blocks are not compiled"
        + (f" by backend {compiling.backend}" if compiles_blocks else ""),
        f"add --compile.enable with model in compile.components and compile.backend {_WITH_BUDGET[0]}, or choose mode"
        " selective",
    )


def _check_trace_schedule(profiling: Profiling) -> None:
    """Raise ConfigError if the warm-up and the recorded steps of a trace take more steps than `profile_freq`."""
    needed = profiling.profiler_warmup + profiling.profiler_active
    if profiling.enable_profiling and profiling.profile_freq < needed:
        raise ConfigError(
            f"profiling.profile_freq {profiling.profile_freq} is less than profiler_warmup {profiling.profiler_warmup}"
            f" + profiler_active {profiling.profiler_active}",
            f"set profile_freq to {needed} or more, or lower the others",
        )


def _check_seed_checkpoint(checkpoint: Checkpoint) -> None:
    """Raise ConfigError if create_seed_checkpoint is set together with settings that prevent saving."""
    if checkpoint.create_seed_checkpoint and not checkpoint.enable:
        raise ConfigError(
            "checkpoint.create_seed_checkpoint without checkpoint.enable would save nothing", "add --checkpoint.enable"
        )
    if checkpoint.create_seed_checkpoint and checkpoint.load_only:
        raise ConfigError(
            "checkpoint.create_seed_checkpoint with checkpoint.load_only: one saves what the other forbids to save",
            "create the seed checkpoint first, then give --checkpoint.load_only to the runs that load it",
        )


def _check_loading(checkpoint: Checkpoint) -> None:
    if "lr_scheduler" in checkpoint.exclude_from_loading:
        raise ConfigError(
            "checkpoint.exclude_from_loading lr_scheduler: the learning rate follows from the step, and is not loaded",
            "leave it out; or exclude train_state, and the run starts again at step 1 of its schedule",
        )


def _check_exports(config: JobConfig) -> None:
    """Raise ConfigError if settings about weights in the format of the transformers package exclude each other.

    Weights to load must also have the shape of the configured model.
    """
    checkpoint = config.checkpoint
    if checkpoint.initial_load_in_hf and not checkpoint.initial_load_path:
        raise ConfigError(
            "checkpoint.initial_load_in_hf without checkpoint.initial_load_path names no weights",
            "give --checkpoint.initial_load_path with a folder of .safetensors files",
        )
    if checkpoint.initial_load_in_hf and not checkpoint.initial_load_model_only:
        raise ConfigError(
            "checkpoint.initial_load_in_hf with checkpoint.no_initial_load_model_only: such a folder has weights alone",
            "leave out no_initial_load_model_only",
        )
    if checkpoint.initial_load_in_hf and checkpoint.initial_load_path:
        name, flavor, path = config.model.name, config.model.flavor, Path(checkpoint.initial_load_path)
        hf_format.check_same_shape(name, flavor, model_shape(config), config.training.seq_len, path)
    if checkpoint.last_save_in_hf and not checkpoint.last_save_model_only:
        raise ConfigError(
            "checkpoint.last_save_in_hf with checkpoint.no_last_save_model_only: a checkpoint to resume from keeps the"
            " names of training",
            "leave out no_last_save_model_only, or checkpoint.last_save_in_hf",
        )


def _check_validation(config: JobConfig, mesh: Degrees) -> None:
    length, longest = config.validation.seq_len or config.training.seq_len, config.training.seq_len
    if not config.validation.enable:
        return
    if length > longest or (mesh.cp * mesh.tp > 1 and length != longest):
        raise ConfigError(
            f"validation.seq_len {length} does not fit training.seq_len {longest}",
            "leave out validation.seq_len: the model is made for sequences of training.seq_len",
        )


_NOT_LOCAL = {
    SHARD: "FSDP2 frees memory that a local tensor does not own",
    REPLICATE: "DDP reads gradients from memory that a local tensor does not have",
    CONTEXT: "each rank has other positions of a sequence",
    PIPELINE: "the ranks of a pipeline run different programs",
    EXPERT: "each rank sends another number of tokens",
}
"""{kind of parallelism: why it is not supported when comm.mode is local_tensor, where one process runs all ranks}."""


def _check_local_tensors(config: JobConfig, mesh: Degrees) -> None:
    """Raise ConfigError if comm.mode is local_tensor together with a setting that this mode does not support."""
    described = mesh.described()
    wrong = [name for name in _NOT_LOCAL if described[name] > 1]
    if config.comm.mode == "local_tensor" and (wrong or mesh.offload or config.compile.enable):
        what = [f"parallelism.{KEYS[name]} {described[name]} ({_NOT_LOCAL[name]})" for name in wrong]
        what += ["training.enable_cpu_offload (FSDP2 does it)"] * mesh.offload
        what += ["compile.enable"] * config.compile.enable
        raise ConfigError(
            f"comm.mode local_tensor cannot run {', '.join(what)}",
            f"set NGPU to tensor_parallel_degree ({mesh.tp}) and the other degrees to 1; or set comm.mode to"
            " fake_backend, or train on processes of a CPU: --nproc N",
        )


def _check_combinations(config: JobConfig, mesh: Degrees) -> None:
    """Raise ConfigError if two settings exclude each other."""
    of_expert = config.parallelism.expert_tensor_parallel_degree
    if of_expert > 1 and mesh.ep > 1:
        raise ConfigError(
            f"parallelism.expert_tensor_parallel_degree {of_expert} with expert_parallel_degree {mesh.ep}: experts are"
            " split, or divided among ranks, but not both",
            "set one of both to 1",
        )
    if of_expert not in (1, mesh.tp):
        raise ConfigError(
            f"parallelism.expert_tensor_parallel_degree {of_expert} is neither 1 nor tensor_parallel_degree {mesh.tp}",
            f"set it to {mesh.tp}",
        )
    if mesh.pp > 1 and config.faults.name == "oom":
        raise ConfigError(
            f"faults.name oom with parallelism.pipeline_parallel_degree {mesh.pp}: a pipeline takes batches of one"
            " size, and this incident gives it a larger one",
            "choose another incident, or set pipeline_parallel_degree to 1",
        )
    if mesh.pp > 1 and model_shape(config).enable_weight_tying:
        raise ConfigError(
            f"parallelism.pipeline_parallel_degree {mesh.pp} with model {config.model.name} {config.model.flavor}: its"
            " output layer has the weight of the embedding, and they would be on different ranks",
            "set pipeline_parallel_degree to 1, or choose a flavor without enable_weight_tying",
        )
    if mesh.tp > 1 and config.debug.detect_anomaly:
        raise ConfigError(
            f"debug.detect_anomaly with parallelism.tensor_parallel_degree {mesh.tp}: PyTorch cannot look for values"
            " that are not finite in DTensors",
            "set --debug.no_detect_anomaly, or tensor_parallel_degree to 1",
        )
    if mesh.tp > 1 and config.activation_checkpoint.mode == "memory_budget":
        raise ConfigError(
            f"activation_checkpoint.mode memory_budget with parallelism.tensor_parallel_degree {mesh.tp}: the compiler"
            " cannot measure what it would keep of split weights",
            'choose activation_checkpoint.mode selective with selective_ac_option "op"',
        )
    _check_compile(config, mesh)
    _check_async_tensor_parallel(config, mesh)


def _check_compile(config: JobConfig, mesh: Degrees) -> None:
    """Raise ConfigError if torch.compile is on for a model or with a setting that cannot be compiled."""
    if config.compile.enable and "model" in config.compile.components and hasattr(model_shape(config), "n_experts"):
        raise ConfigError(
            "compile.enable: blocks with experts cannot be compiled",
            'set --compile.no_enable, or compile.components = ["loss"]',
        )
    recorder = "record_tensors" if config.debug.record_tensors else "record_values"
    if getattr(config.debug, recorder) and config.compile.enable and "model" in config.compile.components:
        raise ConfigError(
            f"debug.{recorder} with compile.enable: the values inside of compiled blocks cannot be recorded",
            'set --compile.no_enable, or compile.components = ["loss"]',
        )
    if config.debug.check_finite and config.compile.enable:
        raise ConfigError(
            "debug.check_finite with compile.enable: the operations of compiled code cannot be seen",
            "set --compile.no_enable to find the operation",
        )
    if mesh.cp > 1 and config.compile.enable and "model" in config.compile.components:
        raise ConfigError(
            f"compile.enable with parallelism.context_parallel_degree {mesh.cp}: blocks that gather keys and values"
            " cannot be compiled",
            'set --compile.no_enable, or compile.components = ["loss"]',
        )


def _check_async_tensor_parallel(config: JobConfig, mesh: Degrees) -> None:
    """Raise ConfigError if asynchronous tensor parallelism is on, but not torch.compile with the inductor backend.

    Asynchronous tensor parallelism is implemented in inductor.
    """
    compiling = config.compile
    compiles = compiling.enable and "model" in compiling.components and compiling.backend == "inductor"
    if config.parallelism.enable_async_tensor_parallel and mesh.tp > 1 and not compiles:
        raise ConfigError(
            "parallelism.enable_async_tensor_parallel: the compiler overlaps products and collectives, and blocks are"
            " not compiled by backend inductor",
            "add --compile.enable with model in compile.components and compile.backend inductor",
        )


_MOST_TRIED = 2000
"""The most meshes that are tried; the nearest one is usually among the first ten."""


def checked_mesh(config: JobConfig, world_size: int) -> Degrees:
    """Return the degrees of a job like `validate`; if they are wrong, the error's hint names the nearest valid mesh.

    Raises:
        ConfigError: As for `validate`.
    """
    try:
        return validate(config, world_size)
    except ConfigError as error:
        # If the mesh fits, the fault is elsewhere, and another mesh would not help.
        if world_size < 1 or fits(config, world_size):
            raise
        raise ConfigError(error.message, _hint_with_mesh(error, config, world_size)) from error


def _hint_with_mesh(error: ConfigError, config: JobConfig, world_size: int) -> str:
    changes = nearest_mesh(config, world_size)
    if changes is None:
        return error.hint
    change = "set " + " and ".join(f"parallelism.{key} to {degree}" for key, degree in changes.items())
    if not isinstance(error, WrongWorldSize):
        return error.hint if change in error.hint else f"{error.hint}, or {change}"
    fitting = error.fitting
    start = f"start {fitting} processes (--nproc {fitting} on one node), or " if fits(config, fitting) else ""
    return f"{start}{change}"


def nearest_mesh(config: JobConfig, world_size: int) -> dict[str, int] | None:
    """Return {key: degree}, the smallest changes after which the mesh fits the ranks and the model.

    As few keys as possible change. Return None if no mesh with this number of ranks fits. Example: tensor 3 on 8 ranks
    becomes tensor 2.
    """
    nearest = sorted(meshes(config, world_size), key=lambda changes: distance(config, changes))
    return next((changes for changes in nearest[:_MOST_TRIED] if fits(with_degrees(config, changes), world_size)), None)


def meshes(config: JobConfig, world_size: int) -> Iterator[dict[str, int]]:
    """Yield {key: degree} for every mesh of `world_size` ranks: the degrees that differ from the configured ones.

    A shard degree of -1 stays.
    """
    divisors = [number for number in range(1, min(world_size, 4096) + 1) if world_size % number == 0]
    names = [name for name in KEYS if name != SHARD]
    asked = {name: int(getattr(config.parallelism, key)) for name, key in KEYS.items()}
    choices = product(*(divisors if name != EXPERT or asked[name] > 1 else [1] for name in names))
    # A bound on the time: large numbers of ranks have many divisors, whose combinations are countless.
    for values in islice(choices, 500_000):
        mesh = dict(zip(names, values, strict=True))
        # Experts are divided among ranks that the other degrees have already counted.
        used = math.prod(degree for name, degree in mesh.items() if name != EXPERT)
        if world_size % used == 0:
            mesh[SHARD] = -1 if asked[SHARD] == -1 else world_size // used
            yield {KEYS[name]: degree for name, degree in mesh.items() if degree != asked[name]}


def distance(config: JobConfig, changes: dict[str, int]) -> tuple[int, float]:
    """Return how far changed degrees are from the configured ones: (number of changes, doublings or halvings).

    The caller looks for the smallest result. Example: tensor 2 to 8 is one change with two doublings, so (1, 2.0).
    """
    before = {key: max(1, int(getattr(config.parallelism, key))) for key in changes}
    return len(changes), sum(abs(math.log2(degree / before[key])) for key, degree in changes.items())


def with_degrees(config: JobConfig, changes: dict[str, int]) -> JobConfig:
    """Return a copy of the configuration with the degrees `changes`, {key: degree}."""
    parallelism = replace(config.parallelism)
    for key, degree in changes.items():
        setattr(parallelism, key, degree)
    return replace(config, parallelism=parallelism)


def fits(config: JobConfig, world_size: int) -> bool:
    """Return whether the mesh fits the number of ranks, and the model and the batch can be divided among them."""
    try:
        check_divisions(config, degrees(config.parallelism, world_size))
    except ConfigError:
        return False
    return True
