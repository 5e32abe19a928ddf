"""Experts without data: how many tokens each gets is taken to be even, and their products are only sized."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trainer.models import moe
from trainer.parallel import expert_parallel


class Sized(torch.autograd.Function):
    """Tokens (R, D) of several experts by their weights (E, D, F) -> (R, F): what torch's product keeps, no values.

    That has no form without memory in float32.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(tokens, weights)
        return tokens.new_empty(len(tokens), weights.shape[-1])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, Tensor]:
        tokens, weights = ctx.saved_tensors
        return torch.empty_like(tokens), torch.empty_like(weights)


@contextmanager
def evenly_routed(copies: int) -> Iterator[None]:
    """Where a rank's `copies` of tokens go to all ranks that share the experts, in equal parts."""
    usual = moe.grouped_mm, expert_parallel.split_sizes
    moe.grouped_mm = lambda tokens, weights, **_: Sized.apply(tokens, weights)  # type: ignore[no-untyped-call]
    expert_parallel.split_sizes = lambda counts: even(copies, len(counts))
    try:
        yield
    finally:
        moe.grouped_mm, expert_parallel.split_sizes = usual


def even(copies: int, ranks: int) -> list[int]:
    share, more = divmod(copies, ranks)
    return [share + (rank < more) for rank in range(ranks)]
