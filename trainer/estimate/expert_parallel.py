"""Experts without data: every expert is assumed to get equally many tokens, and products have a size but no values."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trainer.models import moe
from trainer.parallel import expert_parallel


class SizedProduct(torch.autograd.Function):
    """A product of tokens (R, D) of several experts by their weights (E, D, F) -> (R, F), with sizes but without
    values.

    It keeps what torch's product keeps, which has no form without memory in float32.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weights: Tensor) -> Tensor:
        """Return an output of the right size, and keep what the product's backward pass needs."""
        ctx.save_for_backward(tokens, weights)
        return tokens.new_empty(len(tokens), weights.shape[-1])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradients of the right sizes for tokens and weights."""
        tokens, weights = ctx.saved_tensors
        return torch.empty_like(tokens), torch.empty_like(weights)


@contextmanager
def even_routing(copies: int) -> Iterator[None]:
    """Assume inside that a rank's `copies` of tokens go in equal parts to all ranks that share the experts."""
    originals = moe.grouped_mm, expert_parallel.split_sizes
    moe.grouped_mm = lambda tokens, weights, **_: SizedProduct.apply(tokens, weights)  # type: ignore[no-untyped-call]
    expert_parallel.split_sizes = lambda counts: even_split(copies, len(counts))
    try:
        yield
    finally:
        moe.grouped_mm, expert_parallel.split_sizes = originals


def even_split(copies: int, ranks: int) -> list[int]:
    """Return `copies` as a list with one part per rank, as equal as possible: 7 over 3 ranks is [3, 2, 2]."""
    share, more = divmod(copies, ranks)
    return [share + (rank < more) for rank in range(ranks)]
