"""Which older and newer names of torchtitan does this trainer understand, and what does it leave out, and why?

Four tables say it all: `RENAMED` and `CONVERTED` lead to a key of ours, `LEFT_OUT` names keys without effect here, and
`REFUSED` has values that would change the result if they were ignored in silence.
"""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from trainer.errors import ConfigError


class Translation(NamedTuple):
    """A key of ours and its value, in place of the key that was written."""

    key: str
    value: object
    reason: str = ""


Values = Mapping[str, object]
"""All keys that were written: some keys mean something else beside others."""
Converter = Callable[[object, Values], Translation | None]

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
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
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


def negate(key: str) -> Converter:
    """Return a conversion to a switch with the opposite meaning."""
    return lambda value, _: Translation(key, not value, "the opposite switch")


def data_parallel(value: object, written: Values) -> Translation:
    """Convert a degree whose kind another key, training.data_parallel_type, decides."""
    kind = "replicate" if written.get("training.data_parallel_type") == "ddp" else "shard"
    return Translation(f"parallelism.data_parallel_{kind}_degree", value)


def data_parallel_type(value: object, _: Values) -> Translation:
    """Convert the kind of data parallelism: DDP shards nothing; FSDP leaves the degree to `data_parallel`."""
    if value == "ddp":
        return Translation("parallelism.data_parallel_shard_degree", 1, "ddp shards nothing")
    return Translation("parallelism.data_parallel_replicate_degree", 1, "fsdp replicates nothing")


def number(key: str, value: object) -> float:
    """Return the value if it is a number.

    Raises:
        ConfigError: It is none.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise ConfigError(f"{key} = {value!r} is not a number", "give an integer or a float")


def warmup_share(value: object, written: Values) -> Translation:
    """Convert a share of the steps to a number of steps."""
    steps = number("training.steps", written.get("training.steps", 10000))
    share = number("training.warmup_pct", value)
    return Translation("lr_scheduler.warmup_steps", int(share * steps), f"{share} of {steps} steps")


def tokens_to_sequences(key: str) -> Converter:
    """Return a conversion from tokens to sequences of training.seq_len."""

    def convert(value: object, written: Values) -> Translation:
        length_written = written.get("training.seq_len") or written.get("training.max_context_length") or 2048
        length, tokens = number("training.seq_len", length_written), number(key, value)
        return Translation(key, tokens if tokens < 0 else tokens // length, f"in sequences of {length} tokens")

    return convert


def microbatch_size(key: str) -> Converter:
    """Return a conversion from a number of microbatches to their size, which is 1 if no number is given."""

    def convert(value: object, written: Values) -> Translation:
        batch_written = written.get("training.local_batch_size") or written.get("training.batch_size") or 8
        batch, count = number("training.local_batch_size", batch_written), number(key, value or 0)
        if count and batch % count:
            raise ConfigError(f"{key} {count} does not divide training.local_batch_size {batch}", "give a divisor")
        size = int(batch // count) if count else 1
        reason = f"{batch} sequences in {count} microbatches" if count else "no number of microbatches is given"
        return Translation("parallelism.pipeline_parallel_microbatch_size", size, reason)

    return convert


def float8_converter(value: object, _: Values) -> Translation:
    """Convert a switch for float8 to the name of a model converter."""
    return Translation("model.converters", ["float8"] if value else [], "float8 is a converter of the model")


def synthetic_dataset(value: object, written: Values) -> Translation | None:
    """Replace a data set that is not shipped by synthetic text, unless a path to it is given."""
    # torchtitan's own data sets: its configurations should run here without a download.
    if value in ("c4", "c4_mini", "c4_test", "alpaca") and not written.get("training.dataset_path"):
        return Translation(
            "training.dataset", "synthetic", f"{value} is not shipped; seeded synthetic text replaces it"
        )
    return None


def split_converters(value: object, _: Values) -> Translation | None:
    """Convert a comma-separated string to a list of names."""
    if isinstance(value, str):
        names = [name.strip() for name in value.split(",") if name.strip()]
        return Translation("model.converters", names, "commas separate the names")
    return None


def async_without_pinning(value: object, _: Values) -> Translation | None:
    """Replace asynchronous checkpoints from pinned memory by those from ordinary memory."""
    if value == "async_with_pinned_mem":
        return Translation("checkpoint.async_mode", "async", "staged in ordinary memory")
    return None


CONVERTED: dict[str, Converter] = {
    "checkpoint.async_mode": async_without_pinning,
    "float8.enable_float8_linear": float8_converter,
    "metrics.enable_color_printing": negate("metrics.disable_color_printing"),
    "metrics.rank_0_only": negate("metrics.save_for_all_ranks"),
    "experimental.pipeline_parallel_microbatches": microbatch_size("experimental.pipeline_parallel_microbatches"),
    "model.converters": split_converters,
    "optimizer.fused": lambda value, _: Translation("optimizer.implementation", "fused" if value else "for-loop"),
    "parallelism.num_pp_microbatches": microbatch_size("parallelism.num_pp_microbatches"),
    "parallelism.pipeline_parallel_microbatches": microbatch_size("parallelism.pipeline_parallel_microbatches"),
    "training.data_parallel_degree": data_parallel,
    "training.data_parallel_type": data_parallel_type,
    "training.dataset": synthetic_dataset,
    "training.enable_float8_linear": float8_converter,
    "training.enable_fp8_linear": float8_converter,
    "training.enable_selective_ac": lambda value, _: Translation(
        "activation_checkpoint.mode", "selective" if value else "none"
    ),
    "training.fp8_linear": float8_converter,
    "training.num_tokens_per_microbatch_per_dp_rank": tokens_to_sequences("training.local_batch_size"),
    "training.num_tokens_per_train_step": tokens_to_sequences("training.global_batch_size"),
    "training.warmup_pct": warmup_share,
}
"""Keys whose value changes too. A conversion that returns None leaves the value as it is."""

PIPELINE = "layers are divided evenly, and microbatches follow one of PyTorch's schedules"
ASYNC_TENSOR = "tensor parallelism waits for its collectives"
SPLIT_LOSS = "with tensor parallelism the loss is always computed on logits that are split by the vocabulary"
EXPERT = "experts exchange tokens, and are recomputed, in one fixed way"
CONTEXT = "ranks that share a sequence gather its keys and values at once"
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
    "compile.enable_async_tensor_parallel": ASYNC_TENSOR,
    "data.*": "it belongs to a vision model",
    "debug.batch_invariant": "there are no batch-invariant kernels",
    "debug.enable_structured_logging": "steps/rank_R.jsonl is always written",
    "debug.spmd_typechecking": "there is no such check",
    "encoder.*": FLUX,
    "estimate.mode": "there is one way to estimate memory: `workbench estimate`",
    "eval.*": FLUX,
    "experimental.custom_*": "give modules of your own with --module",
    "experimental.context_*": CONTEXT,
    "experimental.enable_async_tensor_parallel": ASYNC_TENSOR,
    "experimental.enable_compiled_autograd": "there is no compiled autograd",
    "experimental.pipeline_*": PIPELINE,
    "experimental.torch_spmd": "it was an experiment",
    "fault_tolerance.*": "there is no torchft",
    "float8.*": FLOAT8,
    "hf_transformers.*": "models of the transformers package cannot be trained",
    "inference.*": FLUX,
    "job.custom_config_module": "give modules of your own with --module",
    "job.save_config_folder": "job.save_config_file names the file",
    "job.use_for_integration_test": "only torchtitan's own tests use it",
    "memory_estimation.disable_fake_mode": "there is one way to estimate memory: `workbench estimate`",
    "metrics.disable_logging_from_checkpoint": "loading a checkpoint logs one line",
    "metrics.enable_wandb": "metrics go to the console, TensorBoard and steps/rank_R.jsonl",
    "metrics.use_for_integration_test": "only torchtitan's own tests use it",
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
    "parallelism.disable_loss_parallel": SPLIT_LOSS,
    "parallelism.enable_async_tensor_parallel": ASYNC_TENSOR,
    "parallelism.enable_compiled_autograd": "there is no compiled autograd",
    "parallelism.enable_fsdp_symm_mem": "FSDP uses ordinary memory",
    "parallelism.enable_sequence_parallel": "with tensor parallelism sequences are always split between the blocks",
    "parallelism.expert_parallel_comm_backend": EXPERT,
    "parallelism.expert_tensor_parallel_degree": EXPERT,
    "parallelism.full_dtensor": "there is one way to shard",
    "parallelism.hybridep_*": EXPERT,
    "parallelism.module_fqns_per_model_part": PIPELINE,
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
    "training.disable_loss_parallel": SPLIT_LOSS,
    "training.enable_cpu_offload": "parameters stay on the device",
    "training.enable_fsdp_*": FLOAT8,
    "training.enable_loss_parallel": SPLIT_LOSS,
    "training.float8_*": FLOAT8,
    "training.gc_debug": "garbage is collected without debugging",
    "training.guidance": FLUX,
    "training.img_size": FLUX,
    "training.precompute_float8_*": FLOAT8,
    "validation.*": "there is no validation during training",
    "validator.*": "there is no validation during training",
}
"""Patterns of keys without effect, and why."""

REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
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
    "parallelism.context_parallel_load_balancer": (("headtail", None), "sequences cannot be divided so"),
}
"""Keys whose other values cannot be ignored, as they would change the result: (values that are possible, why)."""


def translate(key: str, value: object, written: Values) -> Translation | None:
    """Return what a key of another version means here; None if it is a key of ours, or of no version."""
    if convert := CONVERTED.get(key):
        return convert(value, written)
    return Translation(RENAMED[key], value) if key in RENAMED else None


def reason_left_out(key: str) -> str | None:
    """Return why a known key has no effect, or None."""
    return LEFT_OUT.get(key) or next((why for pattern, why in LEFT_OUT.items() if fnmatchcase(key, pattern)), None)


def reason_refused(key: str, value: object) -> str | None:
    """Return why no run can have this value, or None."""
    allowed, why = REFUSED.get(key, ((value,), ""))
    return None if value in allowed else why
