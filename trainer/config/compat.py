"""torchtitan's older and newer names, and what this trainer leaves out, with the reason.

Three tables say it all: `RENAMED` and `CONVERTED` lead to a key of ours, `LEFT_OUT` names what has no effect here.
`REFUSED` are values that would change the result if they were ignored in silence.
"""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple


class Translation(NamedTuple):
    """A key of ours in place of the one that was written."""

    key: str
    value: Any
    reason: str = ""


Values = Mapping[str, Any]
"""All that was written, to read one key in the light of another."""

RENAMED = {
    "activation_checkpoint.force_recompute_mm_shapes_by_fqns":
        "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "checkpoint.initial_load_model_weights_only": "checkpoint.initial_load_model_only",
    "checkpoint.last_save_in_safetensors_format": "checkpoint.last_save_in_hf",
    "checkpoint.last_save_model_weights_only": "checkpoint.last_save_model_only",
    "checkpoint.model_weights_only": "checkpoint.last_save_model_only",
    "comm.timeout_seconds": "comm.train_timeout_seconds",
    "dataloader.dataset": "training.dataset",
    "dataloader.dataset_path": "training.dataset_path",
    "debug.print_config": "job.print_config",
    "debug.save_config_file": "job.save_config_file",
    "dump_folder": "job.dump_folder",
    "estimate.memory": "memory_estimation.enable",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "global.dump_folder": "job.dump_folder",
    "hf_assets_path": "model.hf_assets_path",
    "job.print_args": "job.print_config",
    "lr_scheduler.lr_min": "lr_scheduler.min_lr_factor",
    "memory_estimation.enabled": "memory_estimation.enable",
    "model.tokenizer_path": "model.hf_assets_path",
    "model_converters.converters": "model.converters",
    "profiler.enable_memory_snapshot": "profiling.enable_memory_snapshot",
    "profiler.enable_profiling": "profiling.enable_profiling",
    "profiler.profile_freq": "profiling.profile_freq",
    "profiler.profiler_active": "profiling.profiler_active",
    "profiler.profiler_warmup": "profiling.profiler_warmup",
    "profiler.save_memory_snapshot_folder": "profiling.save_memory_snapshot_folder",
    "profiler.save_traces_folder": "profiling.save_traces_folder",
    "profiling.profile_every_x_iter": "profiling.profile_freq",
    "profiling.run_profiler": "profiling.enable_profiling",
    "training.batch_size": "training.local_batch_size",
    "training.checkpoint_folder": "checkpoint.folder",
    "training.checkpoint_interval": "checkpoint.interval",
    "training.checkpoint_interval_type": "checkpoint.interval_type",
    "training.compile": "compile.enable",
    "training.debug_moe_force_load_balance": "debug.moe_force_load_balance",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.deterministic": "debug.deterministic",
    "training.fsdp_reshard_after_forward": "parallelism.fsdp_reshard_after_forward",
    "training.max_context_length": "training.seq_len",
    "training.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "training.seed": "debug.seed",
    "training.sequence_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "validation.enabled": "validation.enable",
    "validator.enable": "validation.enable",
}  # fmt: skip


def negate(key: str) -> Callable[[Any, Values], Translation]:
    return lambda value, _: Translation(key, not value, "the other way round")


def data_parallel(value: Any, written: Values) -> Translation:
    kind = "replicate" if written.get("training.data_parallel_type") == "ddp" else "shard"
    return Translation(f"parallelism.data_parallel_{kind}_degree", value)


def data_parallel_type(value: Any, _: Values) -> Translation:
    """DDP shards nothing; FSDP leaves the degree to `data_parallel`."""
    if value == "ddp":
        return Translation("parallelism.data_parallel_shard_degree", 1, "ddp shards nothing")
    return Translation("parallelism.data_parallel_replicate_degree", 1, "fsdp replicates nothing")


def warmup(value: Any, written: Values) -> Translation:
    steps = written.get("training.steps", 10000)
    return Translation("lr_scheduler.warmup_steps", int(value * steps), f"{value} of {steps} steps")


def sequences(key: str) -> Callable[[Any, Values], Translation]:
    """Tokens counted as sequences of training.seq_len."""

    def convert(value: Any, written: Values) -> Translation:
        length = written.get("training.seq_len") or written.get("training.max_context_length") or 2048
        return Translation(key, value if value < 0 else value // length, f"in sequences of {length} tokens")

    return convert


def float8(value: Any, _: Values) -> Translation:
    return Translation("model.converters", ["float8"] if value else [], "float8 is a converter of the model")


def synthetic(value: Any, written: Values) -> Translation | None:
    if value in ("c4", "c4_mini", "c4_test", "alpaca") and not written.get("training.dataset_path"):
        return Translation("training.dataset", "synthetic", f"{value} is not shipped; seeded synthetic text stands in")
    return None


def listed(value: Any, _: Values) -> Translation | None:
    if isinstance(value, str):
        names = [name.strip() for name in value.split(",") if name.strip()]
        return Translation("model.converters", names, "commas separate the names")
    return None


def unpinned(value: Any, _: Values) -> Translation | None:
    if value == "async_with_pinned_mem":
        return Translation("checkpoint.async_mode", "async", "staged in ordinary memory")
    return None


CONVERTED: dict[str, Callable[[Any, Values], Translation | None]] = {
    "checkpoint.async_mode": unpinned,
    "float8.enable_float8_linear": float8,
    "metrics.enable_color_printing": negate("metrics.disable_color_printing"),
    "metrics.rank_0_only": negate("metrics.save_for_all_ranks"),
    "model.converters": listed,
    "optimizer.fused": lambda value, _: Translation("optimizer.implementation", "fused" if value else "for-loop"),
    "training.data_parallel_degree": data_parallel,
    "training.data_parallel_type": data_parallel_type,
    "training.dataset": synthetic,
    "training.enable_float8_linear": float8,
    "training.enable_fp8_linear": float8,
    "training.enable_selective_ac": lambda value, _: Translation(
        "activation_checkpoint.mode", "selective" if value else "none"
    ),
    "training.fp8_linear": float8,
    "training.num_tokens_per_microbatch_per_dp_rank": sequences("training.local_batch_size"),
    "training.num_tokens_per_train_step": sequences("training.global_batch_size"),
    "training.warmup_pct": warmup,
}
"""Keys that became others. None: the value needs no translation."""

PIPELINE = "there is no pipeline parallelism"
TENSOR = "there is no tensor parallelism"
EXPERT = "experts have one way to exchange tokens and to be recomputed"
CONTEXT = "there is no context parallelism"
FLOAT8 = "there is no float8 or mx training"
FLUX = "it belongs to an image model"
DUMPS = "Flight Recorder dumps always lie in dumps/rank_R"

LEFT_OUT = {
    "activation_checkpoint.memory_budget": "there is no budget mode of activation checkpointing",
    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns": EXPERT,
    "activation_checkpoint.visualize_memory_budget_pareto": "there is no budget mode of activation checkpointing",
    "checkpoint.create_seed_checkpoint": "weights are equal on every mesh without one",
    "checkpoint.enable_ft_dataloader_checkpoints": "there is no torchft",
    "checkpoint.initial_load_in_hf": "Hugging Face checkpoints are neither read nor written",
    "checkpoint.initial_load_in_hf_quantized": "Hugging Face checkpoints are neither read nor written",
    "checkpoint.interval_type": "intervals are counted in steps",
    "checkpoint.last_save_in_hf": "Hugging Face checkpoints are neither read nor written",
    "comm.mode": "only real process groups are used",
    "comm.save_traces_file_prefix": DUMPS,
    "comm.save_traces_folder": DUMPS,
    "compile.enable_async_tensor_parallel": TENSOR,
    "data.*": "it belongs to a vision model",
    "debug.batch_invariant": "there are no batch-invariant kernels",
    "debug.enable_structured_logging": "steps/rank_R.jsonl is always written",
    "debug.spmd_typechecking": "there is no such check",
    "encoder.*": FLUX,
    "estimate.mode": "there is one way to estimate memory: `workbench estimate`",
    "eval.*": FLUX,
    "experimental.custom_*": "modules of one's own are given by --module",
    "experimental.context_*": CONTEXT,
    "experimental.enable_async_tensor_parallel": TENSOR,
    "experimental.enable_compiled_autograd": "there is no compiled autograd",
    "experimental.pipeline_*": PIPELINE,
    "experimental.torch_spmd": "it was an experiment",
    "fault_tolerance.*": "there is no torchft",
    "float8.*": FLOAT8,
    "hf_transformers.*": "models of the transformers package cannot be trained",
    "inference.*": FLUX,
    "job.custom_config_module": "modules of one's own are given by --module",
    "job.save_config_folder": "job.save_config_file names the file",
    "job.use_for_integration_test": "it steered torchtitan's own tests",
    "memory_estimation.disable_fake_mode": "there is one way to estimate memory: `workbench estimate`",
    "metrics.disable_logging_from_checkpoint": "loading a checkpoint logs one line",
    "metrics.enable_wandb": "metrics go to the console, TensorBoard and steps/rank_R.jsonl",
    "metrics.use_for_integration_test": "it steered torchtitan's own tests",
    "model.attn_mask_type": "attention is causal",
    "model.hf_assets_path": "the tokenizer is made of bytes and needs no files",
    "model.norm_type": "norms are RMSNorm",
    "model.print_after_conversion": FLOAT8,
    "model.use_flex_attn": "attention is scaled_dot_product_attention",
    "model_converters.*": FLOAT8,
    "model_spec": "--module and --config choose the model",
    "mx.*": FLOAT8,
    "optimizer.early_step_in_backward": "the optimizer steps after the backward pass",
    "optimizer.optimizer_factory_kwargs_by_name*": "all parameters are in one group",
    "optimizer.param_groups": "all parameters are in one group",
    "override.*": "nothing is overridden by import",
    "parallelism.context_*": CONTEXT,
    "parallelism.disable_loss_parallel": TENSOR,
    "parallelism.enable_async_tensor_parallel": TENSOR,
    "parallelism.enable_compiled_autograd": "there is no compiled autograd",
    "parallelism.enable_fsdp_symm_mem": "FSDP uses ordinary memory",
    "parallelism.enable_sequence_parallel": TENSOR,
    "parallelism.expert_parallel_comm_backend": EXPERT,
    "parallelism.expert_tensor_parallel_degree": TENSOR,
    "parallelism.full_dtensor": "there is one way to shard",
    "parallelism.hybridep_*": EXPERT,
    "parallelism.module_fqns_per_model_part": PIPELINE,
    "parallelism.num_pp_microbatches": PIPELINE,
    "parallelism.pipeline_*": PIPELINE,
    "parallelism.spmd_backend": "there is one way to shard",
    "profiler.*": "the schedule is profile_freq, profiler_warmup and profiler_active",
    "profiling.memory_snapshot_*": "a snapshot is taken every profile_freq steps",
    "profiling.profiler_repeat": "the schedule is profile_freq, profiler_warmup and profiler_active",
    "profiling.profiler_skip_*": "the schedule is profile_freq, profiler_warmup and profiler_active",
    "quantize.*": FLOAT8,
    "training.*_free_guidance_prob": FLUX,
    "training.dataloader.*": "data are made in the training process",
    "training.disable_cuda_graphs": "there are no CUDA graphs",
    "training.disable_loss_parallel": TENSOR,
    "training.enable_cpu_offload": "parameters stay on the device",
    "training.enable_fsdp_*": FLOAT8,
    "training.enable_loss_parallel": TENSOR,
    "training.float8_*": FLOAT8,
    "training.gc_debug": "garbage is collected without debugging",
    "training.guidance": FLUX,
    "training.img_size": FLUX,
    "training.precompute_float8_*": FLOAT8,
    "validation.*": "there is no validation during training",
    "validator.*": "there is no validation during training",
}
"""Patterns of keys without effect -> why."""

REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "activation_checkpoint.mode": (
        ("none", "full", "selective"),
        "there is no budget mode of activation checkpointing",
    ),
    "checkpoint.initial_load_in_hf": ((False,), "Hugging Face checkpoints are not read"),
    "comm.mode": (("default",), "only real process groups are used"),
    "fault_tolerance.enable": ((False,), "there is no torchft"),
    "memory_estimation.enable": ((False,), "`workbench estimate` does this"),
    "model.converters": (([],), FLOAT8),
    "optimizer.implementation": (("for-loop", "foreach", "fused"), "there is no such implementation"),
    "parallelism.context_parallel_degree": ((1,), CONTEXT),
    "parallelism.pipeline_parallel_degree": ((1,), PIPELINE),
    "parallelism.tensor_parallel_degree": ((1,), TENSOR),
}
"""Keys whose other values cannot be ignored: they would change the result -> (values that can be had, why)."""


def translate(key: str, value: Any, written: Values) -> Translation | None:
    """What a key of another age says in ours; None if it is one of ours, or of no age."""
    if convert := CONVERTED.get(key):
        return convert(value, written)
    return Translation(RENAMED[key], value) if key in RENAMED else None


def left_out(key: str) -> str | None:
    """Why a known key has no effect, or None."""
    return LEFT_OUT.get(key) or next((why for pattern, why in LEFT_OUT.items() if fnmatchcase(key, pattern)), None)


def refused(key: str, value: Any) -> str | None:
    """Why a run with this value cannot be had, or None."""
    allowed, why = REFUSED.get(key, ((value,), ""))
    return None if value in allowed else why
