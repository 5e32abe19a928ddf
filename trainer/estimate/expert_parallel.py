"""Let experts run on fake tensors: assume that each gets equally many tokens, and compute only sizes of products."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trainer.models import moe
from trainer.parallel import expert_parallel


class SizedProduct(torch.autograd.Function):
    """Multiply R tokens (R, D), sorted by expert, by the weights of E experts (E, D, F): only the size is computed.

    The result (R, F) has no values. The same tensors are saved for the backward pass as in torch's grouped product,
    which cannot run on fake float32 tensors.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weights: Tensor) -> Tensor:
        """Return an output of the right size, and save the tensors that the backward pass needs."""
        ctx.save_for_backward(tokens, weights)
        return tokens.new_empty(len(tokens), weights.shape[-1])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradients of the right sizes for tokens and weights."""
        tokens, weights = ctx.saved_tensors
        return torch.empty_like(tokens), torch.empty_like(weights)


@contextmanager
def even_routing(copies: int) -> Iterator[None]:
    """Let experts run on fake tensors inside this context: their products have a size but no values.

    `copies` is the number of token copies that each rank sends to experts. All ranks that have experts are assumed to
    get equal parts of them.
    """
    originals = moe.grouped_mm, expert_parallel.split_sizes
    moe.grouped_mm = lambda tokens, weights, **_: SizedProduct.apply(tokens, weights)  # type: ignore[no-untyped-call]
    expert_parallel.split_sizes = lambda counts: _even_split(copies, len(counts))
    try:
        yield
    finally:
        moe.grouped_mm, expert_parallel.split_sizes = originals


def _even_split(copies: int, ranks: int) -> list[int]:
    """Split the number `copies` into one part per rank, as equal as possible: 7 over 3 ranks is [3, 2, 2]."""
    share, more = divmod(copies, ranks)
    return [share + (rank < more) for rank in range(ranks)]
