"""Activation checkpointing: keep fewer activations, and recompute the others in the backward pass."""

from collections.abc import Callable
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

from trainer.config.checks import recompute_interval
from trainer.config.sections import ActivationCheckpoint
from trainer.models.decoder import Decoder

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
