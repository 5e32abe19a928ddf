"""Tensor parallelism with PyTorch's parallel styles.

Weights are split by columns or rows, activations between blocks along the sequence, and logits along the vocabulary.
"""

import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._inductor import config as inductor
from torch.distributed._symmetric_memory import enable_symm_mem_for_group
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from trainer.models.decoder import Decoder
from trainer.models.deepseek_v3.model import LatentAttention
from trainer.models.moe import moe_layers

SEQUENCE, VOCABULARY = Shard(1), Shard(-1)
_HEADS = 2
"""The index of the dimension of heads in queries and keys, which are (B, T, N, H)."""
_TOKENS = Shard(0)
"""The split of tokens among ranks where all sequences are flattened into the first dimension."""
_HIDDEN = {"w1": Shard(1), "w2": Shard(2), "w3": Shard(1)}
"""{name of an expert's weight: its split among ranks, along the hidden width}."""


def apply_tensor_parallel(model: Decoder, mesh: DeviceMesh, *, shared: bool) -> None:
    """Split the weights of a model over `mesh`; between blocks, activations are split along the sequence.

    The weights of experts are split too, except if expert parallelism has divided the experts among ranks (`shared`).
    Then each rank of `mesh` sends its part of the tokens to the ranks of their experts.
    """
    for block in model.layers.values():
        has_experts = any(moe_layers(block))
        feed_forward_plan = _mixture_plan(block, shared=shared) if has_experts else _dense_plan()
        parallelize_module(block, mesh, _attention_plan(block) | feed_forward_plan)
        for moe in moe_layers(block) if shared else ():
            moe.router.whole_gradient = partial(_with_whole_gradient, group=mesh.get_group())
        for moe in () if shared else moe_layers(block):
            for name, weight in list(moe.experts.named_parameters()):
                part = distribute_tensor(weight, mesh, [_HIDDEN[name]], src_data_rank=None)
                moe.experts.register_parameter(name, nn.Parameter(part))
            moe.experts.register_forward_pre_hook(partial(_sum_gradients, group=mesh.get_group()))
            if moe.weighs_outputs:
                moe.router.register_forward_hook(partial(_sum_gradients_of_weights, group=mesh.get_group()))
    outer_plan: dict[str, ParallelStyle] = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=SEQUENCE),
        "norm": SequenceParallel(),
        # The logits stay a DTensor, because the parallel loss needs to know how they are split.
        "output": ColwiseParallel(input_layouts=SEQUENCE, output_layouts=VOCABULARY, use_local_output=False),
    }
    # In a pipeline other parts may have the embedding or the output.
    parallelize_module(
        model, mesh, {name: style for name, style in outer_plan.items() if list(model.get_submodule(name).parameters())}
    )
    model.tie_weights()


def finish_embedding(model: Decoder) -> None:
    """Add a hook to the embedding that waits for its last collective before a compiled block gets the output.

    Without this hook, the output is an asynchronous tensor whose collective is still running. The gradient of such an
    output is an ordinary tensor, with which the backward pass of the collective fails.
    """
    model.tok_embeddings.register_forward_hook(lambda _module, _inputs, output: output.clone())


def overlap_collectives(mesh: DeviceMesh) -> None:
    """Let the compiler split matrix products into chunks, and send one chunk while the next is computed.

    PyTorch calls this asynchronous tensor parallelism; the ranks read each other's memory.
    """
    inductor._micro_pipeline_tp = True  # noqa: SLF001
    with warnings.catch_warnings():
        # Newer PyTorch warns that it is no longer needed, older PyTorch needs it.
        warnings.simplefilter("ignore", FutureWarning)
        enable_symm_mem_for_group(mesh.get_group().group_name)


class GradientSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        # A copy, because autograd may use this gradient elsewhere, too.
        total = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


def _with_whole_gradient(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    same: Tensor = GradientSum.apply(tensor, group)  # type: ignore[no-untyped-call]
    return same


def _sum_gradients(_: nn.Module, inputs: tuple[Tensor, Tensor], *, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Sum the gradient of the experts' input tokens over the ranks of `group` (a forward pre-hook).

    Each rank has a part of each expert, so it computes only a part of this gradient. Without the sum, the gradient of
    the router would be incomplete too, because the router's weights scale these tokens.
    """
    tokens, counts = inputs
    return _with_whole_gradient(tokens, group), counts


def _sum_gradients_of_weights(
    _: nn.Module, __: tuple[Tensor, Tensor], routing: tuple[Tensor, Tensor], *, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor]:
    """Sum the gradient of the router's weights over the ranks of `group` (a forward hook of a router).

    The sum is needed if these weights scale the outputs of experts, because each rank has only a partial sum of these
    outputs.
    """
    weights, experts = routing
    return _with_whole_gradient(weights, group), experts


class Whole(ParallelStyle):
    """The style of a module with whole weights and inputs on each rank, whose outputs go to split modules."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh)


def _latent_plan() -> dict[str, ParallelStyle]:
    """Return PyTorch's parallelize plan {module: style} for latent attention: latents stay whole, heads are split."""
    return {
        **{f"attention.{name}": Whole() for name in ("wq_a", "q_norm", "wkv_a", "kv_norm")},
        **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wq_b", "wkv_b")},
    }


def _heads_plan(block: nn.Module) -> dict[str, ParallelStyle]:
    """Return PyTorch's parallelize plan {module: style} for the modules that compute queries, keys and values."""
    if isinstance(block.attention, LatentAttention):
        return _latent_plan()
    # A norm sees this rank's heads (B, T, N, H): its weight is whole, and the gradients of all ranks are summed.
    norms = {
        f"attention.{name}": SequenceParallel(sequence_dim=_HEADS, use_local_output=True)
        for name in ("q_norm", "k_norm")
    }
    return norms | {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}


def _attention_plan(block: nn.Module) -> dict[str, ParallelStyle]:
    """Return PyTorch's parallelize plan {module: style} for attention and its norms: heads are split among ranks."""
    names = {name for name, _ in block.named_modules()}
    return {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(SEQUENCE, None), desired_input_layouts=(Replicate(), None)),
        **{name: style for name, style in _heads_plan(block).items() if name in names},
        "attention.wo": RowwiseParallel(output_layouts=SEQUENCE),
        "ffn_norm": SequenceParallel(),
    }


def _dense_plan() -> dict[str, ParallelStyle]:
    """Return PyTorch's parallelize plan {module: style} for a feed-forward layer, split along its hidden width."""
    return {
        "feed_forward": PrepareModuleInput(input_layouts=(SEQUENCE,), desired_input_layouts=(Replicate(),)),
        **{f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")},
        "feed_forward.w2": RowwiseParallel(output_layouts=SEQUENCE),
    }


def _mixture_plan(block: nn.Module, *, shared: bool) -> dict[str, ParallelStyle]:
    """Return PyTorch's parallelize plan {module: style} for a mixture of experts.

    Without `shared`, each rank gets all tokens and returns partial sums. With `shared`, the experts are divided among
    ranks, and each rank gets and returns only its own tokens.
    """
    columns: dict[str, ParallelStyle] = {f"moe.shared_experts.{name}": ColwiseParallel() for name in ("w1", "w3")}
    if shared:
        plan = {
            "moe": PrepareModuleInput(
                input_layouts=(SEQUENCE,), desired_input_layouts=(SEQUENCE,), use_local_output=True
            ),
            "moe.shared_experts": PrepareModuleInput(input_layouts=(_TOKENS,), desired_input_layouts=(Replicate(),)),
            **columns,
            "moe.shared_experts.w2": RowwiseParallel(output_layouts=_TOKENS),
        }
    else:
        all_tokens = PrepareModuleInputOutput(
            input_layouts=(SEQUENCE,), desired_input_layouts=(Replicate(),),
            output_layouts=(Partial(),), desired_output_layouts=(SEQUENCE,), use_local_input=True,
        )  # fmt: skip
        plan = {"moe": all_tokens, **columns, "moe.shared_experts.w2": RowwiseParallel(output_layouts=Partial())}
    names = {name for name, _ in block.named_modules()}
    return {name: style for name, style in plan.items() if name in names}


def split_loss(mesh: DeviceMesh | None) -> AbstractContextManager[None]:
    """Return the context in which the loss is computed; with `mesh`, logits may be split along the vocabulary."""
    return loss_parallel() if mesh else nullcontext()
