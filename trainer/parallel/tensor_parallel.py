"""Tensor parallelism as PyTorch does it.

Weights are split by columns and rows, sequences between the blocks, and the output by the vocabulary.
"""

from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
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
from trainer.models.moe import moe_layers

SEQUENCE, VOCABULARY = Shard(1), Shard(-1)
TOKENS = Shard(0)
"""Of all sequences in one row."""
HIDDEN = {"w1": Shard(1), "w2": Shard(2), "w3": Shard(1)}
"""Where experts have their hidden width."""


def apply_tensor_parallel(model: Decoder, mesh: DeviceMesh, *, shared: bool) -> None:
    """Split the model over `mesh`; between the blocks the sequence is split.

    Experts are split like other weights, unless ranks share them: then each rank of `mesh` sends its part of the
    tokens.
    """
    for block in model.layers.values():
        has_experts = any(moe_layers(block))
        feed_forward_plan = mixture_plan(shared=shared) if has_experts else dense_plan()
        parallelize_module(block, mesh, attention_plan() | feed_forward_plan)
        for moe in () if shared else moe_layers(block):
            for name, weight in list(moe.experts.named_parameters()):
                part = distribute_tensor(weight, mesh, [HIDDEN[name]], src_data_rank=None)
                moe.experts.register_parameter(name, nn.Parameter(part))
    outer_plan: dict[str, ParallelStyle] = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=SEQUENCE),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=SEQUENCE, output_layouts=VOCABULARY, use_local_output=False),
    }
    # In a pipeline other parts may have the embedding or the output.
    parallelize_module(
        model, mesh, {name: style for name, style in outer_plan.items() if list(model.get_submodule(name).parameters())}
    )


def attention_plan() -> dict[str, ParallelStyle]:
    """Return how attention is split: queries, keys and values by heads."""
    return {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(SEQUENCE, None), desired_input_layouts=(Replicate(), None)),
        **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
        "attention.wo": RowwiseParallel(output_layouts=SEQUENCE),
        "ffn_norm": SequenceParallel(),
    }


def dense_plan() -> dict[str, ParallelStyle]:
    """Return how a feed-forward layer is split: into its hidden width, and back."""
    return {
        "feed_forward": PrepareModuleInput(input_layouts=(SEQUENCE,), desired_input_layouts=(Replicate(),)),
        **{f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")},
        "feed_forward.w2": RowwiseParallel(output_layouts=SEQUENCE),
    }


def mixture_plan(*, shared: bool) -> dict[str, ParallelStyle]:
    """Return how a mixture of experts is split.

    It sees all tokens and returns a part of their sum; if ranks share the experts, it sees and returns its own tokens.
    """
    columns: dict[str, ParallelStyle] = {f"moe.shared_experts.{name}": ColwiseParallel() for name in ("w1", "w3")}
    if shared:
        return {
            "moe": PrepareModuleInput(
                input_layouts=(SEQUENCE,), desired_input_layouts=(SEQUENCE,), use_local_output=True
            ),
            "moe.shared_experts": PrepareModuleInput(input_layouts=(TOKENS,), desired_input_layouts=(Replicate(),)),
            **columns,
            "moe.shared_experts.w2": RowwiseParallel(output_layouts=TOKENS),
        }
    all_tokens = PrepareModuleInputOutput(
        input_layouts=(SEQUENCE,), desired_input_layouts=(Replicate(),),
        output_layouts=(Partial(),), desired_output_layouts=(SEQUENCE,), use_local_input=True,
    )  # fmt: skip
    return {"moe": all_tokens, **columns, "moe.shared_experts.w2": RowwiseParallel(output_layouts=Partial())}


def split_loss(mesh: DeviceMesh | None) -> AbstractContextManager[None]:
    """Return the context in which the loss is computed on logits that are split by the vocabulary."""
    return loss_parallel() if mesh else nullcontext()
