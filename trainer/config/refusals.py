"""Keys of torchtitan that this trainer refuses, and keys that have no effect here.

`REFUSED` has the keys that would change a run: its results, files, devices or cost. Each comes with the values that are
accepted. `WITHOUT_EFFECT` has the keys that would change none of these.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from trainer.config.converters import RegisteredNames, is_installed
from trainer.config.hf_format import FLAVOR, has_file


class Refusal(NamedTuple):
    """Why this trainer refuses a key: the supported values, why other values are refused, and what to do instead.

    `beside` names another key. While that other key has its default, the refused key has no effect and is accepted.
    """

    possible: tuple[object, ...]
    why: str
    hint: str = ""
    beside: str = ""


OFF: tuple[object, ...] = (False, None)
NOTHING: tuple[object, ...] = (None, "", [], False)
UNSET: tuple[object, ...] = ()
TENSOR, CONTEXT = "parallelism.tensor_parallel_degree", "parallelism.context_parallel_degree"
PIPELINE, EXPERT = "parallelism.pipeline_parallel_degree", "parallelism.expert_parallel_degree"

HUGGING_FACE = Refusal(
    (*OFF, True) if is_installed("safetensors") else OFF,
    "the package safetensors is not installed",
    "install safetensors (pip install safetensors), or use a checkpoint of PyTorch",
)
DIVISION = "layers are divided evenly, and microbatches follow one of PyTorch's schedules"
LAYERS = "divide the layers with parallelism.pipeline_parallel_layers_per_stage"
NO_CONVERTER = "no converter of this name is registered, there is no mx training" + (
    "" if is_installed("torchao") else ", and float8 needs the package torchao, which is not installed"
)
OWN_CONVERTER = (
    "set model.converters to [], pip install torchao for float8, or register one in a config_registry of your own:"
    " trainer.config.converters.register"
)
OWN_MODULE = (
    "give a module with a config_registry of your own, whose functions may return a subclass of JobConfig with more"
    " sections and keys: --module MODULE --config FUNCTION"
)
TRACES = "the schedule of traces is profile_freq, profiler_warmup and profiler_active"
ONE_GROUP = "all parameters are in one group"

GROUPED = "the products of experts stay in their own type"

NO_DATA = (
    "give --{section}.dataset_path with local files (.txt, .jsonl, .json.gz, .parquet, or a folder of the datasets"
    " package), or use seeded synthetic text instead: --training.allow_synthetic"
)

REFUSED: dict[str, Refusal] = {
    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns": Refusal(
        ([], ["moe.router.gate"]), "which products are recomputed is fixed"
    ),
    "checkpoint.initial_load_in_hf": HUGGING_FACE,
    "checkpoint.initial_load_in_hf_quantized": Refusal(OFF, "weights are loaded in the type that they are trained in"),
    "checkpoint.interval_type": Refusal(
        ("steps",), "intervals are counted in steps", "give checkpoint.interval in steps"
    ),
    "checkpoint.last_save_in_hf": HUGGING_FACE,
    "comm.mode": Refusal(
        ("default", "fake_backend", "local_tensor"),
        "the trainer has only the modes default, fake_backend and local_tensor",
        "set comm.mode to default to train, on a GPU or on processes of a CPU (--nproc N), or to fake_backend to"
        " try one step without values in a single process",
    ),
    "debug.batch_invariant": Refusal(
        OFF, "there are no batch-invariant kernels", "set debug.deterministic: equal batches give equal results"
    ),
    "experimental.custom_import": Refusal(NOTHING, "no module is imported by name", OWN_MODULE),
    "experimental.custom_model_path": Refusal(NOTHING, "no model is imported from a path", OWN_MODULE),
    "experimental.pipeline_parallel_split_mode": Refusal(("manual",), "parts are not found by tracing", LAYERS),
    "float8.moe_fqns*": Refusal(NOTHING, GROUPED),
    "float8.scaling_type_*": Refusal(("dynamic",), "scales follow from the values that are scaled"),
    "fault_tolerance.enable": Refusal(OFF, "there is no torchft", "restart failed jobs with --max-restarts N"),
    "job.custom_config_module": Refusal(NOTHING, "a configuration cannot be extended so", OWN_MODULE),
    "memory_estimation.enable": Refusal(OFF, "training does not estimate", "run workbench estimate --config FILE"),
    "metrics.enable_wandb": Refusal(
        (*OFF, True) if is_installed("wandb") else OFF,
        "the package wandb is not installed",
        "install wandb (pip install wandb), or set metrics.enable_tensorboard, which writes the same values",
    ),
    "model.attn_mask_type": Refusal(("causal",), "attention is causal"),
    "model.converters": Refusal(RegisteredNames(([],)), NO_CONVERTER, OWN_CONVERTER),
    "model.norm_type": Refusal(("rmsnorm", "fused_rmsnorm", "compiled_rmsnorm"), "norms are RMSNorm"),
    "model.use_flex_attn": Refusal(OFF, "attention is scaled_dot_product_attention"),
    "model_spec": Refusal(UNSET, "it is an object of torchtitan", "choose the model with --module and --config"),
    "optimizer.early_step_in_backward": Refusal(OFF, "the optimizer steps after the backward pass"),
    "optimizer.implementation": Refusal(("for-loop", "foreach", "fused"), "there is no such implementation"),
    "optimizer.optimizer_factory_kwargs_by_name*": Refusal(UNSET, ONE_GROUP),
    "optimizer.param_groups": Refusal(([],), ONE_GROUP),
    "override.imports": Refusal(([],), "nothing is overridden by import", OWN_MODULE),
    "parallelism.context_parallel_load_balancer": Refusal(("headtail", None), "sequences cannot be divided so"),
    "parallelism.context_parallel_ptrr_mask_key": Refusal((None,), "sequences cannot be divided so"),
    "parallelism.context_parallel_rotate_method": Refusal(
        ("allgather",), "ranks that share a sequence gather its keys and values at once", beside=CONTEXT
    ),
    "parallelism.disable_loss_parallel": Refusal(
        OFF, "with tensor parallelism the loss is computed on logits that are split by the vocabulary", beside=TENSOR
    ),
    "parallelism.enable_compiled_autograd": Refusal(OFF, "there is no compiled autograd"),
    "parallelism.enable_fsdp_symm_mem": Refusal(OFF, "FSDP uses ordinary memory"),
    "parallelism.enable_sequence_parallel": Refusal(
        (True,), "with tensor parallelism sequences are always split between the blocks", beside=TENSOR
    ),
    "parallelism.expert_parallel_comm_backend": Refusal(
        ("standard",), "experts exchange tokens by all_to_all", beside=EXPERT
    ),
    "parallelism.hybridep_*": Refusal((None,), "experts exchange tokens by all_to_all", beside=EXPERT),
    "parallelism.module_fqns_per_model_part": Refusal((None,), DIVISION, LAYERS, beside=PIPELINE),
    "parallelism.pipeline_parallel_schedule_csv": Refusal(NOTHING, DIVISION, beside=PIPELINE),
    "parallelism.pipeline_parallel_split_points": Refusal(([],), DIVISION, LAYERS, beside=PIPELINE),
    "profiling.memory_snapshot_max_entries": Refusal((1000000,), "the length of a snapshot's history is fixed"),
    "profiling.profiler_repeat": Refusal((None, 0), TRACES),
    "profiling.profiler_skip_*": Refusal((None, 0), TRACES),
    "profiling.trace_post_processor*": Refusal((None,), "traces are written as they are"),
}
"""{key or pattern of keys: the `Refusal` with the values that are supported}."""

TOKENIZER = "a tokenizer of bytes, which needs no files, replaces it: there is no tokenizer.json"
ASSETS = "model.hf_assets_path"
SHARDING = "there is one way to shard"
NO_MX = "it belongs to a conversion that model.converters turns on, of which there is float8 for linear layers alone"
FLUX = "it belongs to an image model"
DUMPS = "Flight Recorder dumps always lie in dumps/rank_R"
ESTIMATE = "there is one way to estimate memory: workbench estimate"
IN_PROCESS = "data are made in the training process"
OWN_TESTS = "only torchtitan's own tests use it"

WITHOUT_EFFECT = {
    "checkpoint.enable_ft_dataloader_checkpoints": "it belongs to torchft",
    "comm.save_traces_file_prefix": DUMPS,
    "comm.save_traces_folder": DUMPS,
    "data.*": "it belongs to a vision model",
    "debug.enable_structured_logging": "steps/rank_R.jsonl is always written",
    "debug.spmd_typechecking": "there is no such check",
    "encoder.*": FLUX,
    "estimate.mode": ESTIMATE,
    "eval.*": FLUX,
    "experimental.torch_spmd": SHARDING,
    "fault_tolerance.*": "it belongs to torchft",
    "float8.force_recompute_fp8_weight_in_bwd": "torchao recomputes where recomputation is on",
    "hf_transformers.*": "it belongs to models of the transformers package",
    "inference.*": FLUX,
    "job.save_config_folder": "job.save_config_file names the file",
    "job.use_for_integration_test": OWN_TESTS,
    "memory_estimation.disable_fake_mode": ESTIMATE,
    "metrics.disable_logging_from_checkpoint": "loading a checkpoint logs one line",
    "metrics.use_for_integration_test": OWN_TESTS,
    ASSETS: TOKENIZER,
    "model.print_after_conversion": NO_MX,
    "model_converters.*": NO_MX,
    "mx.*": NO_MX,
    "parallelism.full_dtensor": SHARDING,
    "parallelism.pipeline_parallel_expert_parallel_overlap": "experts exchange tokens in one fixed way",
    "parallelism.spmd_backend": SHARDING,
    "quantize.*": NO_MX,
    "training.*_free_guidance_prob": FLUX,
    "training.dataloader.*": IN_PROCESS,
    "training.disable_cuda_graphs": "there are no CUDA graphs",
    "training.gc_debug": "garbage is collected without debugging",
    "training.guidance": FLUX,
    "training.img_size": FLUX,
    # The first pattern that fits counts.
    "validation.dataloader.*": IN_PROCESS,
    "validation.*": FLUX,
}
"""{key or pattern of keys: why}, for keys that change nothing in a run."""
ON_BY_DEFAULT = ("debug.enable_structured_logging", "checkpoint.enable_ft_dataloader_checkpoints")
"""The keys without effect whose default in torchtitan is true, so that only the value False asks for a change."""


def is_without_assets(key: str, value: object, values: Mapping[str, object]) -> bool:
    """Return whether `key` names a folder of model assets that has neither a tokenizer.json nor a config.json.

    The caller then ignores the key. `values` is {key: value} of all keys that the user wrote. If the shape of the model
    is to be read from this folder, the result is False, because then the missing file is an error.
    """
    files = ("tokenizer.json", "config.json")
    is_needed = values.get("model.flavor") == FLAVOR or any(has_file(Path(str(value)), file) for file in files)
    return key == ASSETS and value is not None and not is_needed


def reason_without_effect(key: str) -> str | None:
    """Return why a torchtitan key has no effect in this trainer, or None if the key has an effect or is unknown."""
    return WITHOUT_EFFECT.get(key) or next(
        (why for name, why in WITHOUT_EFFECT.items() if fnmatchcase(key, name)), None
    )


def refusal_of(key: str) -> Refusal | None:
    """Return the refusal that applies to a key; None if every value of the key is supported."""
    return REFUSED.get(key) or next((refusal for name, refusal in REFUSED.items() if fnmatchcase(key, name)), None)


def asks_for_something(key: str, value: object) -> bool:
    """Return whether `value` of an ignored key would change what torchtitan does, so that the user must be told.

    This is so if the value turns a feature on, or turns off a feature that is on by default (`ON_BY_DEFAULT`).
    """
    refusal = refusal_of(key)
    if refusal and value in refusal.possible:
        return False
    return not value if key in ON_BY_DEFAULT else bool(value)
