"""Keys of torchtitan that this trainer refuses, and keys that have no effect here.

`REFUSED` has the keys that would change a run: its results, files, devices or cost. Each comes with the values that are
accepted. `WITHOUT_EFFECT` has the keys that would change none of these.
"""

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from trainer.config.checks import model_shape
from trainer.config.converters import FLOAT8, RegisteredNames, is_installed
from trainer.config.hf_format import FLAVOR, has_file
from trainer.config.mesh import degrees
from trainer.config.sections import JobConfig
from trainer.errors import ConfigError


class Refusal(NamedTuple):
    """Why this trainer refuses a key: the supported values, why other values are refused, and what to do instead.

    `beside` names another key. While that other key has its default, the refused key has no effect and is accepted.
    """

    possible: tuple[object, ...]
    why: str
    hint: str = ""
    beside: str = ""


_OFF: tuple[object, ...] = (False, None)
NOTHING: tuple[object, ...] = (None, "", [], False)
_UNSET: tuple[object, ...] = ()
TENSOR, CONTEXT = "parallelism.tensor_parallel_degree", "parallelism.context_parallel_degree"
PIPELINE, EXPERT = "parallelism.pipeline_parallel_degree", "parallelism.expert_parallel_degree"

_HUGGING_FACE = Refusal(
    (*_OFF, True) if is_installed("safetensors") else _OFF,
    "the package safetensors is not installed",
    "install safetensors (pip install safetensors), or use a checkpoint of PyTorch",
)
_DIVISION = "layers are divided evenly, and microbatches follow one of PyTorch's schedules"
_LAYERS = "divide the layers with parallelism.pipeline_parallel_layers_per_stage"
_NO_CONVERTER = "no converter of this name is registered, there is no mx training" + (
    "" if is_installed("torchao") else ", and float8 needs the package torchao, which is not installed"
)
_OWN_CONVERTER = (
    "set model.converters to [], pip install torchao for float8, or register one in a config_registry of your own:"
    " trainer.config.converters.register"
)
_OWN_MODULE = (
    "give a module with a config_registry of your own, whose functions may return a subclass of JobConfig with more"
    " sections and keys: --module MODULE --config FUNCTION"
)
TRACES = "the schedule of traces is profile_freq, profiler_warmup and profiler_active"
_ONE_GROUP = "all parameters are in one group"

_GROUPED = "the products of experts stay in their own type"

NO_DATA = (
    "give --{section}.dataset_path with local files (.txt, .jsonl, .json.gz, .parquet, or a folder of the datasets"
    " package), or use seeded synthetic text instead: --training.allow_synthetic"
)

REFUSED: dict[str, Refusal] = {
    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns": Refusal(
        ([], ["moe.router.gate"]), "which products are recomputed is fixed"
    ),
    "checkpoint.initial_load_in_hf": _HUGGING_FACE,
    "checkpoint.initial_load_in_hf_quantized": Refusal(_OFF, "weights are loaded in the type that they are trained in"),
    "checkpoint.interval_type": Refusal(
        ("steps",), "intervals are counted in steps", "give checkpoint.interval in steps"
    ),
    "checkpoint.last_save_in_hf": _HUGGING_FACE,
    "comm.mode": Refusal(
        ("default", "fake_backend", "local_tensor"),
        "the trainer has only the modes default, fake_backend and local_tensor",
        "set comm.mode to default to train, on a GPU or on processes of a CPU (--nproc N), or to fake_backend to"
        " try one step without values in a single process",
    ),
    "debug.batch_invariant": Refusal(
        _OFF, "there are no batch-invariant kernels", "set debug.deterministic: equal batches give equal results"
    ),
    "experimental.custom_import": Refusal(NOTHING, "no module is imported by name", _OWN_MODULE),
    "experimental.custom_model_path": Refusal(NOTHING, "no model is imported from a path", _OWN_MODULE),
    "experimental.pipeline_parallel_split_mode": Refusal(("manual",), "parts are not found by tracing", _LAYERS),
    "float8.moe_fqns*": Refusal(NOTHING, _GROUPED),
    "float8.scaling_type_*": Refusal(("dynamic",), "scales follow from the values that are scaled"),
    "fault_tolerance.enable": Refusal(_OFF, "there is no torchft", "restart failed jobs with --max-restarts N"),
    "job.custom_config_module": Refusal(NOTHING, "a configuration cannot be extended so", _OWN_MODULE),
    "memory_estimation.enable": Refusal(_OFF, "training does not estimate", "run workbench estimate --config FILE"),
    "metrics.enable_wandb": Refusal(
        (*_OFF, True) if is_installed("wandb") else _OFF,
        "the package wandb is not installed",
        "install wandb (pip install wandb), or set metrics.enable_tensorboard, which writes the same values",
    ),
    "model.attn_mask_type": Refusal(("causal",), "attention is causal"),
    "model.converters": Refusal(RegisteredNames(([],)), _NO_CONVERTER, _OWN_CONVERTER),
    "model.norm_type": Refusal(("rmsnorm", "fused_rmsnorm", "compiled_rmsnorm"), "norms are RMSNorm"),
    "model.use_flex_attn": Refusal(_OFF, "attention is scaled_dot_product_attention"),
    "model_spec": Refusal(_UNSET, "it is an object of torchtitan", "choose the model with --module and --config"),
    "optimizer.early_step_in_backward": Refusal(_OFF, "the optimizer steps after the backward pass"),
    "optimizer.implementation": Refusal(("for-loop", "foreach", "fused"), "there is no such implementation"),
    "optimizer.optimizer_factory_kwargs_by_name*": Refusal(_UNSET, _ONE_GROUP),
    "optimizer.param_groups": Refusal(([],), _ONE_GROUP),
    "override.imports": Refusal(([],), "nothing is overridden by import", _OWN_MODULE),
    "parallelism.context_parallel_load_balancer": Refusal(("headtail", None), "sequences cannot be divided so"),
    "parallelism.context_parallel_ptrr_mask_key": Refusal((None,), "sequences cannot be divided so"),
    "parallelism.context_parallel_rotate_method": Refusal(
        ("allgather",), "ranks that share a sequence gather its keys and values at once", beside=CONTEXT
    ),
    "parallelism.disable_loss_parallel": Refusal(
        _OFF, "with tensor parallelism the loss is computed on logits that are split by the vocabulary", beside=TENSOR
    ),
    "parallelism.enable_compiled_autograd": Refusal(_OFF, "there is no compiled autograd"),
    "parallelism.enable_fsdp_symm_mem": Refusal(_OFF, "FSDP uses ordinary memory"),
    "parallelism.enable_sequence_parallel": Refusal(
        (True,), "with tensor parallelism sequences are always split between the blocks", beside=TENSOR
    ),
    "parallelism.expert_parallel_comm_backend": Refusal(
        ("standard",), "experts exchange tokens by all_to_all", beside=EXPERT
    ),
    "parallelism.hybridep_*": Refusal((None,), "experts exchange tokens by all_to_all", beside=EXPERT),
    "parallelism.module_fqns_per_model_part": Refusal((None,), _DIVISION, _LAYERS, beside=PIPELINE),
    "parallelism.pipeline_parallel_schedule_csv": Refusal(NOTHING, _DIVISION, beside=PIPELINE),
    "parallelism.pipeline_parallel_split_points": Refusal(([],), _DIVISION, _LAYERS, beside=PIPELINE),
    "profiling.memory_snapshot_max_entries": Refusal((1000000,), "the length of a snapshot's history is fixed"),
    "profiling.profiler_repeat": Refusal((None, 0), TRACES),
    "profiling.profiler_skip_*": Refusal((None, 0), TRACES),
    "profiling.trace_post_processor*": Refusal((None,), "traces are written as they are"),
}
"""{key or pattern of keys: the `Refusal` with the values that are supported}."""

_TOKENIZER = "a tokenizer of bytes, which needs no files, replaces it: there is no tokenizer.json"
_ASSETS = "model.hf_assets_path"
_SHARDING = "there is one way to shard"
_NO_MX = "it belongs to a conversion that model.converters turns on, of which there is float8 for linear layers alone"
_FLUX = "it belongs to an image model"
_DUMPS = "Flight Recorder dumps always lie in dumps/rank_R"
_ESTIMATE = "there is one way to estimate memory: workbench estimate"
_IN_PROCESS = "data are made in the training process"
_OWN_TESTS = "only torchtitan's own tests use it"

WITHOUT_EFFECT = {
    "checkpoint.enable_ft_dataloader_checkpoints": "it belongs to torchft",
    "comm.save_traces_file_prefix": _DUMPS,
    "comm.save_traces_folder": _DUMPS,
    "data.*": "it belongs to a vision model",
    "debug.enable_structured_logging": "steps/rank_R.jsonl is always written",
    "debug.spmd_typechecking": "there is no such check",
    "encoder.*": _FLUX,
    "estimate.mode": _ESTIMATE,
    "eval.*": _FLUX,
    "experimental.torch_spmd": _SHARDING,
    "fault_tolerance.*": "it belongs to torchft",
    "float8.force_recompute_fp8_weight_in_bwd": "torchao recomputes where recomputation is on",
    "hf_transformers.*": "it belongs to models of the transformers package",
    "inference.*": _FLUX,
    "job.save_config_folder": "job.save_config_file names the file",
    "job.use_for_integration_test": _OWN_TESTS,
    "memory_estimation.disable_fake_mode": _ESTIMATE,
    "metrics.disable_logging_from_checkpoint": "loading a checkpoint logs one line",
    "metrics.use_for_integration_test": _OWN_TESTS,
    _ASSETS: _TOKENIZER,
    "model.print_after_conversion": _NO_MX,
    "model_converters.*": _NO_MX,
    "mx.*": _NO_MX,
    "parallelism.full_dtensor": _SHARDING,
    "parallelism.pipeline_parallel_expert_parallel_overlap": "experts exchange tokens in one fixed way",
    "parallelism.spmd_backend": _SHARDING,
    "quantize.*": _NO_MX,
    "training.*_free_guidance_prob": _FLUX,
    "training.dataloader.*": _IN_PROCESS,
    "training.disable_cuda_graphs": "there are no CUDA graphs",
    "training.gc_debug": "garbage is collected without debugging",
    "training.guidance": _FLUX,
    "training.img_size": _FLUX,
    # The first pattern that fits counts.
    "validation.dataloader.*": _IN_PROCESS,
    "validation.*": _FLUX,
}
"""{key or pattern of keys: why}, for keys that change nothing in a run."""
_ON_BY_DEFAULT = ("debug.enable_structured_logging", "checkpoint.enable_ft_dataloader_checkpoints")
"""The keys without effect whose default in torchtitan is true, so that only the value False asks for a change."""


def is_without_assets(key: str, value: object, values: Mapping[str, object]) -> bool:
    """Return whether `key` names a folder of model assets that has neither a tokenizer.json nor a config.json.

    The caller then ignores the key. `values` is {key: value} of all keys that the user wrote. If the shape of the model
    is to be read from this folder, the result is False, because then the missing file is an error.
    """
    files = ("tokenizer.json", "config.json")
    is_needed = values.get("model.flavor") == FLAVOR or any(has_file(Path(str(value)), file) for file in files)
    return key == _ASSETS and value is not None and not is_needed


def reason_without_effect(key: str) -> str | None:
    return WITHOUT_EFFECT.get(key) or next(
        (why for name, why in WITHOUT_EFFECT.items() if fnmatchcase(key, name)), None
    )


def refusal_of(key: str) -> Refusal | None:
    return REFUSED.get(key) or next((refusal for name, refusal in REFUSED.items() if fnmatchcase(key, name)), None)


def asks_for_something(key: str, value: object) -> bool:
    """Return whether `value` of an ignored key would change what torchtitan does, so that the user must be told.

    This is so if the value turns a feature on, or turns off a feature that is on by default (`_ON_BY_DEFAULT`).
    """
    refusal = refusal_of(key)
    if refusal and value in refusal.possible:
        return False
    return not value if key in _ON_BY_DEFAULT else bool(value)


# Find keys that have no effect because another key, their switch, is off.
#
# A run prints these keys. Training is refused if one of them would have changed which weights are loaded or saved.


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
_SHARDING_SWITCH = Switch(
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
    switches = SWITCHES if world_size is None or _uses_fsdp(config, world_size) else (*SWITCHES, _SHARDING_SWITCH)
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
