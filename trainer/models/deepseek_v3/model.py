"""DeepSeek-V3: latent attention, and experts that are chosen by groups: https://arxiv.org/abs/2412.19437.

Shapes: B sequences, T tokens, D = dim, N heads. In each head, queries and keys have P plain and R rotated features;
values have V features.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from trainer.config.shape import YarnScaling
from trainer.models.deepseek_v3.config_registry import ModelArgs
from trainer.models.llama3.model import Block, FeedForward, causal_attention, rotate
from trainer.models.llama4.model import Llama4, SparseBlock
from trainer.models.moe import Experts, GroupedRouter, MoE

_LATENT_EPS = 1e-6
"""The epsilon of the norms of latent features, whatever `norm_eps` is, as in the transformers package."""


class LatentAttention(nn.Module):
    """Causal attention with keys and values computed from a few features per token: (B, T, D) -> (B, T, D).

    The rotated features of a key are the same in all heads.
    """

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.attend: Callable[[Tensor, Tensor, Tensor], Tensor] = causal_attention
        self.plain, self.rotated, self.latent = args.plain_head_dim, args.rope_head_dim, args.kv_lora_rank
        self.head_dim, self.v_head_dim = args.head_dim, args.v_head_dim
        self.sharpness = sharpness(args)
        if args.q_lora_rank is None:
            self.wq = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        else:
            self.wq_a = nn.Linear(args.dim, args.q_lora_rank, bias=False)
            self.q_norm = nn.RMSNorm(args.q_lora_rank, eps=_LATENT_EPS)
            self.wq_b = nn.Linear(args.q_lora_rank, args.n_heads * args.head_dim, bias=False)
        self.wkv_a = nn.Linear(args.dim, args.kv_lora_rank + args.rope_head_dim, bias=False)
        self.kv_norm = nn.RMSNorm(args.kv_lora_rank, eps=_LATENT_EPS)
        self.wkv_b = nn.Linear(args.kv_lora_rank, args.n_heads * (args.plain_head_dim + args.v_head_dim), bias=False)
        self.wo = nn.Linear(args.n_heads * args.v_head_dim, args.dim, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        """Return the attention's output (B, T, D) for x (B, T, D); `rope` has the rotation of each position."""
        q = self.queries(x, rope)
        k, v = self.keys_values(x, rope)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        out = self.attend(q, k, v)
        projected: Tensor = self.wo(out.transpose(1, 2).flatten(-2))
        return projected

    def queries(self, x: Tensor, rope: Tensor) -> Tensor:
        q = self.wq_b(self.q_norm(self.wq_a(x))) if hasattr(self, "wq_b") else self.wq(x)
        plain, rotated = q.unflatten(-1, (-1, self.head_dim)).split((self.plain, self.rotated), dim=-1)
        return torch.cat((plain, rotate(rotated, rope)), dim=-1) * self.sharpness

    def keys_values(self, x: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys (B, T, N, P + R) and values (B, T, N, V) of x (B, T, D).

        A head has P plain and R rotated features in its keys, and V in its values.
        """
        latent, shared = self.wkv_a(x).split((self.latent, self.rotated), dim=-1)
        kv = self.wkv_b(self.kv_norm(latent)).unflatten(-1, (-1, self.plain + self.v_head_dim))
        plain, v = kv.split((self.plain, self.v_head_dim), dim=-1)
        if isinstance(shared, DTensor):
            # Each rank of tensor parallelism has other heads, whose gradients add up.
            shared = shared.to_local(grad_placements=[Partial()])
        rotated = rotate(shared.unsqueeze(2), rope).expand(-1, -1, plain.shape[2], -1)
        return torch.cat((plain, rotated), dim=-1), v


def sharpness(args: ModelArgs) -> float:
    scaling = args.rope_scaling
    return scaling.magnitude(scaling.mscale_all_dim) ** 2 if isinstance(scaling, YarnScaling) else 1.0


class DeepSeekV3(Llama4):
    """DeepSeek-V3: tokens (B, T) -> logits (B, T, V), for sequences of up to `max_length` tokens."""

    args: ModelArgs

    def block(self, number: int) -> nn.Module:
        """Return a new transformer block for layer `number`: the first layers are dense, the others have experts."""
        attention = LatentAttention(self.args)
        if number < self.args.n_dense_layers:
            return Block(self.args, attention)
        return SparseBlock(self.args, attention, mixture(self.args))


def mixture(args: ModelArgs) -> MoE:
    """Return a new mixture-of-experts layer with shared experts.

    The scores of the router multiply the outputs of the experts, not their inputs.
    """
    return MoE(
        GroupedRouter(args.dim, args.n_experts, args.top_k, args.n_groups, args.top_groups, args.route_scale),
        Experts(args.dim, args.expert_dim, args.n_experts),
        FeedForward(args.dim, args.expert_dim * args.n_shared_experts),
        weighs_outputs=True,
    )


Model = DeepSeekV3
