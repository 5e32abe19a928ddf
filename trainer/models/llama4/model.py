"""Llama 4 with the attention of Llama 3: causal, with rotary positions in every layer.

The published model differs: every fourth layer has no positions, and the other layers attend within 8,192 tokens.
"""

from torch import Tensor, nn

from trainer.models.llama3.model import Attention, FeedForward, Llama3
from trainer.models.llama4.config_registry import ModelArgs
from trainer.models.moe import Experts, MoE, Router, moe_layers


class SparseBlock(nn.Module):
    """Attention and mixture of experts, each with a norm before it and a residual connection.

    It maps (B, T, D) to (B, T, D).
    """

    def __init__(self, args: ModelArgs, attention: nn.Module, moe: MoE) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.attention = attention
        self.ffn_norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.moe = moe

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        h: Tensor = x + self.attention(self.attention_norm(x), rope)
        out: Tensor = h + self.moe(self.ffn_norm(h))
        return out


class Llama4(Llama3):
    """Llama 4: tokens (B, T) -> logits (B, T, V), for sequences of up to `max_length` tokens."""

    args: ModelArgs

    def block(self, number: int) -> nn.Module:
        if (number + 1) % self.args.moe_every:
            return super().block(number)
        return SparseBlock(self.args, Attention(self.args), mixture(self.args))

    def reset_buffers(self) -> None:
        super().reset_buffers()
        for moe in moe_layers(self):
            moe.reset_buffers()

    def flops_per_token(self, length: int) -> int:
        """Return the floating-point operations per token, for sequences of `length` tokens.

        Weights of experts that a token does not use are not counted.
        """
        experts = sum(p.numel() for moe in moe_layers(self) for p in moe.experts.parameters())
        idle = experts - experts * self.args.top_k // self.args.n_experts
        return super().flops_per_token(length) - 6 * idle


def mixture(args: ModelArgs) -> MoE:
    """Return a new mixture-of-experts layer with one shared expert.

    The scores of the router multiply the inputs of the experts, not their outputs.
    """
    return MoE(
        Router(args.dim, args.n_experts, args.top_k),
        Experts(args.dim, args.expert_dim, args.n_experts),
        FeedForward(args.dim, args.expert_dim),
    )


Model = Llama4
