"""Qwen3 with experts: norms of queries and keys, and a softmax over the scores of all experts."""

from torch import nn

from trainer.models.llama3.model import Block
from trainer.models.llama4.model import Llama4, SparseBlock
from trainer.models.moe import Experts, MoE, SoftmaxRouter
from trainer.models.qwen3.model import NormedAttention
from trainer.models.qwen3_moe.config_registry import ModelArgs


class Qwen3Moe(Llama4):
    """Qwen3 with experts: tokens (B, T) -> logits (B, T, V), for sequences of up to `max_length` tokens."""

    args: ModelArgs

    def block(self, number: int) -> nn.Module:
        """Return a new transformer block for layer `number`: a dense block, or one with a mixture of experts."""
        attention = NormedAttention(self.args)
        if (number + 1) % self.args.moe_every:
            return Block(self.args, attention)
        return SparseBlock(self.args, attention, mixture(self.args))


def mixture(args: ModelArgs) -> MoE:
    """Return a new mixture-of-experts layer without a shared expert.

    The scores of the router multiply the outputs of the experts, not their inputs.
    """
    return MoE(
        SoftmaxRouter(args.dim, args.n_experts, args.top_k, norm_weights=args.norm_weights),
        Experts(args.dim, args.expert_dim, args.n_experts),
        weighs_outputs=True,
    )


Model = Qwen3Moe
