"""Apply all kinds of parallelism to a model, in the order in which they must be applied."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._functorch import config as functorch_config
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from trainer.config import JobConfig
from trainer.config.checks import recompute_interval
from trainer.config.mesh import EXPERT, Part, model_parts
from trainer.config.sections import ActivationCheckpoint, Compile
from trainer.config.shape import ModelArgs
from trainer.models.decoder import Decoder, build_model, init_weights, model_args
from trainer.models.moe import moe_layers
from trainer.parallel.context_parallel import apply_context_parallel
from trainer.parallel.data_parallel import apply_ddp, apply_expert_parallel, apply_fsdp
from trainer.parallel.mesh import World
from trainer.parallel.pipeline import keep_part
from trainer.parallel.tensor_parallel import apply_tensor_parallel, finish_embedding, overlap_collectives

aten, profiler = torch.ops.aten, torch.ops.profiler
KEPT = {
    aten.mm.default,
    aten._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001
    aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001
    aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001
    aten._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001
    torch.ops._c10d_functional.all_to_all_single.default,  # noqa: SLF001
}
"""The operations whose outputs are kept when a block is recomputed, because they are costly to compute again."""
_PROFILER_MARKS = {profiler._record_function_enter_new.default, profiler._record_function_exit._RecordFunction}  # noqa: SLF001
# FSDP of experts inside a block marks its work more often when that is recomputed, which would count as a mismatch.
SAC_IGNORED_OPS.update(_PROFILER_MARKS)


def apply_activation_checkpointing(model: Decoder, config: ActivationCheckpoint, folder: str) -> None:
    """Wrap the blocks to recompute; in mode `memory_budget`, set the compiler's memory budget instead.

    In mode `memory_budget`, the compiler may write plots to the subfolder memory_budget_pareto of `folder`.
    """
    if config.mode == "memory_budget":
        _set_memory_budget(config, folder)
    interval, keep_costly = recompute_interval(config)
    for number, (name, block) in enumerate(model.layers.items(), start=1):
        if interval and number % interval == 0:
            model.layers[name] = wrap(block, config, keep_costly=keep_costly)


def _set_memory_budget(config: ActivationCheckpoint, folder: str) -> None:
    """Set the fraction of activation memory that the compiler may keep, before the first block runs."""
    functorch_config.activation_memory_budget = config.memory_budget
    functorch_config.visualize_memory_budget_pareto = config.visualize_memory_budget_pareto
    if config.visualize_memory_budget_pareto:
        drawings = Path(folder, "memory_budget_pareto")
        drawings.mkdir(parents=True, exist_ok=True)
        functorch_config.memory_budget_pareto_dir = str(drawings)


def wrap(block: nn.Module, config: ActivationCheckpoint, *, keep_costly: bool) -> nn.Module:
    """Return the block wrapped so that its activations are recomputed in the backward pass.

    With `keep_costly`, the outputs of costly operations such as matrix products are kept.
    """
    options: dict[str, Any] = {"context_fn": contexts} if keep_costly else {}
    return checkpoint_wrapper(
        block,
        preserve_rng_state=config.preserve_rng_state,
        determinism_check=config.determinism_check,
        early_stop=config.early_stop,
        debug=config.debug,
        **options,
    )


def _policy(
    _: SelectiveCheckpointContext, operation: Callable[..., object], *_args: object, **_kwargs: object
) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


contexts = partial(create_selective_checkpoint_contexts, _policy)


def parallelize(config: JobConfig, world: World, seed: int) -> list[Decoder]:
    """Return the model parts of this rank, parallelised and with seeded weights; only a pipeline has several parts."""
    args = model_args(config)
    if world.tensor and config.parallelism.enable_async_tensor_parallel:
        overlap_collectives(world.tensor)
    models = build_parts(config, world, args, model_parts(world.stage, args.n_layers, config.parallelism))
    for model in models:
        model.to_empty(device="cpu" if world.degrees.offload else world.device)
        init_weights(model, seed)
        _move_buffers(model, world.device)
        # DDP broadcasts the weights when it is applied, so they must be there.
        if world.data and not world.degrees.uses_fsdp:
            apply_ddp(model, world.data)
    return models


def build_parts(config: JobConfig, world: World, args: ModelArgs, parts: Sequence[Part]) -> list[Decoder]:
    """Return the model parts `parts`, parallelised for this rank, on the meta device."""
    models = [keep_part(build_model(config, args), part) for part in parts]
    for model in models:
        _parallelize_without_memory(model, config, world)
    return models


def _move_buffers(model: Decoder, device: torch.device) -> None:
    """Move the buffers of a model to the device; they belong there even if FSDP keeps parameters in CPU memory."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))


def _parallelize_without_memory(model: Decoder, config: JobConfig, world: World) -> None:
    """Apply to a model on the meta device all kinds of parallelism that must be applied before memory is allocated.

    The order matters, because each kind wraps the kinds applied before it.
    """
    for moe in moe_layers(model):
        moe.router.force_balance = config.debug.moe_force_load_balance
    if world.tensor:
        apply_tensor_parallel(model, world.tensor, shared=world.experts is not None)
    if world.context:
        balanced = config.parallelism.context_parallel_load_balancer is not None
        apply_context_parallel(model, world.context, config.training.seq_len, balanced=balanced)
    if world.experts:
        apply_expert_parallel(model, world.experts[EXPERT])
    _recompute_and_compile(model, config, splits=world.tensor is not None)
    if world.degrees.uses_fsdp:
        apply_fsdp(model, world, config)


def _recompute_and_compile(model: Decoder, config: JobConfig, *, splits: bool) -> None:
    """Apply activation checkpointing and torch.compile to the blocks, as configured.

    Usually a block is wrapped for checkpointing and then compiled, so that the compiled code does the recomputation.
    With `splits` (tensor parallelism splits the weights), the block is compiled first and wrapped afterwards. Otherwise
    the compiler would save the device mesh as if it were an activation.
    """
    compiles = config.compile.enable and "model" in config.compile.components
    _, keep_costly = recompute_interval(config.activation_checkpoint)
    compiles_first = compiles and splits and not keep_costly
    if compiles and splits:
        finish_embedding(model)
    if compiles_first:
        compile_blocks(model, config.compile)
    apply_activation_checkpointing(model, config.activation_checkpoint, config.job.dump_folder)
    if compiles and not compiles_first:
        compile_blocks(model, config.compile)


def compile_blocks(model: Decoder, config: Compile) -> None:
    """Compile each block separately, so that equal blocks are compiled only once."""
    for block in model.layers.values():
        block.compile(backend=config.backend, fullgraph=True)
