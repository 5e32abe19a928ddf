"""Qwen3: Llama 3 with a norm of each query and key, and heads of any width; small sizes have tied embeddings."""

from torch import Tensor, nn

from trainer.config.shape import ModelArgs
from trainer.models.llama3.model import Attention, Block, Llama3


class NormedAttention(Attention):
    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        self.q_norm = nn.RMSNorm(args.head_dim, eps=args.norm_eps)
        self.k_norm = nn.RMSNorm(args.head_dim, eps=args.norm_eps)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the normed queries (B, T, N, H), the normed keys and the values (both (B, T, K, H)) of x (B, T, D).

        N is the number of query heads, K the number of key and value heads, and H the number of features of each head.
        """
        q, k, v = super().heads(x)
        return self.q_norm(q), self.k_norm(k), v


class Qwen3(Llama3):
    """Qwen3: tokens (B, T) -> logits (B, T, V), for sequences of up to `max_length` tokens."""

    def block(self, number: int) -> nn.Module:  # noqa: ARG002 - all layers are alike
        return Block(self.args, NormedAttention(self.args))


Model = Qwen3
