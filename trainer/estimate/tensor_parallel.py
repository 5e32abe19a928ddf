"""Tensor parallelism as PyTorch lays it out: columns and rows of the weights, sequences between, a split vocabulary."""

from contextlib import AbstractContextManager, nullcontext

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from trainer.models.decoder import Decoder

SEQUENCE, VOCABULARY = Shard(1), Shard(-1)


def apply_tensor_parallel(model: Decoder, mesh: DeviceMesh) -> None:
    """Split the model over `mesh`; between the blocks the sequence is split."""
    for block in model.layers.values():
        parallelize_module(block, mesh, block_plan())
    ends: dict[str, ParallelStyle] = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=SEQUENCE),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=SEQUENCE, output_layouts=VOCABULARY, use_local_output=False),
    }
    # In a pipeline other parts may have the embedding or the output.
    parallelize_module(
        model, mesh, {name: style for name, style in ends.items() if list(model.get_submodule(name).parameters())}
    )


def block_plan() -> dict[str, ParallelStyle]:
    return {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(SEQUENCE, None), desired_input_layouts=(Replicate(), None)),
        **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
        "attention.wo": RowwiseParallel(output_layouts=SEQUENCE),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(SEQUENCE,), desired_input_layouts=(Replicate(),)),
        **{f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")},
        "feed_forward.w2": RowwiseParallel(output_layouts=SEQUENCE),
    }


def loss_over(mesh: DeviceMesh | None) -> AbstractContextManager[None]:
    """Where the loss is computed on logits that are split by the vocabulary."""
    return loss_parallel() if mesh else nullcontext()
