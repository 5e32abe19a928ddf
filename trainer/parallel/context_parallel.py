"""Context parallelism: each rank holds chunks of every sequence, and attends to the keys and values of all ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from trainer.models.decoder import Decoder

aten = torch.ops.aten
_NO_DROPOUT = 0.0
# torch 2.13 renamed them; the older names warn there.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_gather_with_gradient = (
    getattr(collectives, "all_gather_single_autograd", None) or collectives.all_gather_tensor_autograd
)


@dataclass(frozen=True)
class Layout:
    """The division of each sequence into chunks, and of the chunks among the ranks of a process group.

    In causal attention, later chunks need more work. So in the balanced layout, each rank has one chunk from the
    beginning and one from the end of the sequence. Example with 2 ranks: rank 0 has chunks 0 and 3, rank 1 has chunks 1
    and 2. In the unbalanced layout, each rank has one chunk.
    """

    group: dist.ProcessGroup
    balanced: bool = True

    @property
    def chunks_per_rank(self) -> int:
        return 2 if self.balanced else 1

    def chunks(self, rank: int) -> tuple[int, ...]:
        return (rank, 2 * self.group.size() - 1 - rank) if self.balanced else (rank,)

    def owner(self, chunk: int) -> tuple[int, int]:
        ranks = self.group.size()
        return (chunk, 0) if chunk < ranks else (2 * ranks - 1 - chunk, 1)

    def positions(self, length: int, rank: int) -> list[int]:
        size = length // (self.chunks_per_rank * self.group.size())
        return [position for chunk in self.chunks(rank) for position in range(chunk * size, (chunk + 1) * size)]

    def visible(self, rank: int) -> Iterator[tuple[int, int, int, bool]]:
        """Yield (index, owner, index there, is_same) for each pair of chunks between which rank `rank` has to attend.

        The first value is the index of one of the rank's own chunks. The second value is the rank that has the other
        chunk, and the third is the index of that chunk there. `is_same` says that both are the same chunk; attention is
        then causal. Otherwise the other chunk is earlier, and fully visible.
        """
        for own, number in enumerate(self.chunks(rank)):
            # The same chunk comes first: attention begins with its result, and adds those of earlier chunks.
            for earlier in range(number, -1, -1):
                yield own, *self.owner(earlier), earlier == number


def apply_context_parallel(model: Decoder, mesh: DeviceMesh, length: int, *, balanced: bool) -> None:
    """Change the model to read this rank's chunks of each sequence, and attend to the keys and values of all ranks."""
    layout = Layout(mesh.get_group(), balanced)
    model.expect_positions(layout.positions(length, mesh.get_local_rank()))
    for block in model.layers.values():
        block.attention.attend = partial(attend, layout=layout)  # type: ignore[union-attr]


def attend(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Return causal attention of this rank's queries to the keys and values of all ranks.

    All tensors are (B, N, T, H): B sequences, N heads, the T tokens of this rank, H features.
    """
    width = v.shape[-1]
    # Keys and values travel as one tensor, so values are as wide as keys.
    v = functional.pad(v, (0, k.shape[-1] - width))
    if q.device.type == "cpu":
        out: Tensor = RingAttention.apply(q, k, v, layout)  # type: ignore[no-untyped-call]
        return out[..., :width]
    return attend_masked(q, k, v, layout)[..., :width]


def attend_masked(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Return causal attention of this rank's queries to the keys and values of all ranks, on any device.

    Shapes are as in `attend`. All keys and values are gathered, and a mask hides the positions after each query.
    """
    group, rank = layout.group, dist.get_rank(layout.group)
    length = q.shape[2] * group.size()
    k, v = (torch.cat(_gather_with_gradient(t.contiguous(), 0, group).chunk(group.size()), dim=2) for t in (k, v))
    rows = torch.tensor(layout.positions(length, rank), device=q.device)
    columns = torch.tensor([p for each in range(group.size()) for p in layout.positions(length, each)], device=q.device)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=columns <= rows[:, None])


class RingAttention(torch.autograd.Function):
    """Causal attention of this rank's queries to the keys and values of all ranks, for CPU tensors.

    All tensors are (B, N, T, H): B sequences, N heads, the T tokens of this rank, H features. Only tensors of this rank
    are kept for the backward pass, which gathers the tensors of other ranks again.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Return the attention to all visible chunks; results per chunk are combined by their scores' log-sum-exp."""
        ctx.layout = layout
        outs, weights = [Tensor()] * layout.chunks_per_rank, [Tensor()] * layout.chunks_per_rank
        queries, parts = _in_chunks(q, layout), _in_chunks(_gather_keys_values(k, v, layout.group), layout)
        for own, rank, chunk, same in layout.visible(dist.get_rank(layout.group)):
            part, part_weight = attention(queries[own], *parts[chunk][rank], causal=same)
            if same:
                outs[own], weights[own] = part, part_weight
                continue
            # Each part is normalised by its own sum of exponentials, whose logarithm is its weight.
            share = torch.sigmoid(part_weight - weights[own]).unsqueeze(-1)
            outs[own] = outs[own] - share * (outs[own] - part)
            weights[own] = torch.logaddexp(weights[own], part_weight)
        out = torch.cat(outs, dim=2).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, torch.cat(weights, dim=2))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of this rank's queries, keys and values.

        Gradients of keys and values are summed over the queries of all ranks.
        """
        layout: Layout = ctx.layout
        q, k, v, out, weight = ctx.saved_tensors
        queries, outs, weights, grad = (_in_chunks(t, layout) for t in (q, out, weight.unsqueeze(-1), grads[0]))
        parts = _in_chunks(_gather_keys_values(k, v, layout.group), layout)
        to_keys = torch.zeros(layout.group.size(), 2, *k.shape, dtype=torch.float32, device=k.device)
        to_query = torch.zeros_like(q, dtype=torch.float32)
        key_chunks, query_chunks = _in_chunks(to_keys, layout), _in_chunks(to_query, layout)
        for own, rank, chunk, same in layout.visible(dist.get_rank(layout.group)):
            dq, *dkv = aten._scaled_dot_product_flash_attention_for_cpu_backward(  # noqa: SLF001
                grad[own], queries[own], *parts[chunk][rank], outs[own], weights[own].squeeze(-1), _NO_DROPOUT, same
            )
            query_chunks[own] += dq
            key_chunks[chunk][rank] += torch.stack(dkv)
        own_keys = torch.empty_like(to_keys[0])
        reduce_scatter(own_keys, to_keys.flatten(0, 1), group=layout.group)
        return to_query.to(q.dtype), own_keys[0].to(k.dtype), own_keys[1].to(v.dtype), None


def _in_chunks(tensor: Tensor, layout: Layout) -> list[Tensor]:
    return list(tensor.chunk(layout.chunks_per_rank, dim=-2))


def _gather_keys_values(k: Tensor, v: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return keys and values of all ranks in one tensor (ranks, 2, B, N, T, H): in dimension 1, keys come first."""
    own = torch.stack((k, v))
    keys_values_of_all = own.new_empty(dist.get_world_size(group), *own.shape)
    all_gather(keys_values_of_all.flatten(0, 1), own, group=group)
    return keys_values_of_all


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Return (attention to these keys and values (B, N, T, H), log-sum-exp of the scores (B, N, T), float32).

    Shapes are as in `attend`.
    """
    out, weight = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, _NO_DROPOUT, causal)  # noqa: SLF001
    return out.float(), weight
