"""Context parallelism as PyTorch does it: each rank has a part of every sequence, and gathers the keys and values."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

aten = torch.ops.aten
NO_DROPOUT = 0.0
# torch 2.13 renamed both; the older names warn there.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class RingAttention(torch.autograd.Function):
    """Causal attention of this rank's queries to the keys and values of all ranks up to it: (B, N, T, H) each.

    Only this rank's parts are kept for the backward pass, which gathers the others again.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Attend to this rank's part, which is causal, and to all parts before it, which are wholly visible."""
        rank = dist.get_rank(group)
        parts = gather_keys_values(k, v, group)
        out, weight = attention(q, *parts[rank], causal=True)
        for keys_values in parts[:rank]:
            part, part_weight = attention(q, *keys_values, causal=False)
            # Each part is normalised by its own sum of exponentials, whose logarithm is its weight.
            out = out - torch.sigmoid(part_weight - weight).unsqueeze(-1) * (out - part)
            weight = torch.logaddexp(weight, part_weight)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, weight)
        ctx.group = group
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of this rank's queries, and those of all keys and values, summed over the ranks."""
        q, k, v, out, weight = ctx.saved_tensors
        rank, parts = dist.get_rank(ctx.group), gather_keys_values(k, v, ctx.group)
        to_keys = torch.zeros(len(parts), 2, *k.shape, dtype=torch.float32, device=k.device)
        to_query = torch.zeros_like(q, dtype=torch.float32)
        for number, keys_values in enumerate(parts[: rank + 1]):
            dq, *dkv = aten._scaled_dot_product_flash_attention_for_cpu_backward(  # noqa: SLF001
                grads[0], q, *keys_values, out, weight, NO_DROPOUT, number == rank
            )
            to_query += dq
            to_keys[number] += torch.stack(dkv)
        own = torch.empty_like(to_keys[0])
        reduce_scatter(own, to_keys.flatten(0, 1), group=ctx.group)
        return to_query.to(q.dtype), own[0].to(k.dtype), own[1].to(v.dtype), None


def gather_keys_values(k: Tensor, v: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return keys and values of all ranks: (ranks, 2, B, N, T, H)."""
    own = torch.stack((k, v))
    keys_values_of_all = own.new_empty(dist.get_world_size(group), *own.shape)
    all_gather(keys_values_of_all.flatten(0, 1), own, group=group)
    return keys_values_of_all


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Return attention to a part (B, N, T, H), and the logarithm of its sum of exponentials (B, N, T); float32."""
    out, weight = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, NO_DROPOUT, causal)  # noqa: SLF001
    return out.float(), weight


@contextmanager
def ring_attention(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Let attention inside go around a ring of ranks, for sequences that are split over `group`."""
    if group is None:
        yield
        return
    original = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = lambda q, k, v, **_: RingAttention.apply(q, k, v, group)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = original
