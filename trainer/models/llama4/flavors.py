"""The shape of a Llama 4 model, and its published sizes."""

from dataclasses import dataclass

from trainer.config.shape import ModelArgs as DenseArgs


@dataclass(frozen=True)
class ModelArgs(DenseArgs):
    """The shape of a Llama 4 model.

    In layers with experts, each token uses `top_k` of the `n_experts` experts, and the shared expert.
    """

    dim: int = 5120
    n_layers: int = 48
    n_heads: int = 40
    hidden_dim: int = 16384
    """Width of the feed-forward layers without experts."""
    vocab_size: int = 202048
    n_experts: int = 16
    top_k: int = 1
    expert_dim: int = 8192
    """Hidden width of an expert, and of the shared expert."""
    moe_every: int = 1
    """Every `moe_every`-th layer has experts; the others are dense."""


FLAVORS = {
    # As small as Llama 3's; two experts a token, so that what comes back is a sum.
    "debugmodel": ModelArgs(
        64, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=16, hidden_dim=192, vocab_size=320,
        n_experts=8, top_k=2, expert_dim=64, moe_every=2,
    ),
    "17bx16e": ModelArgs(),
    "17bx128e": ModelArgs(n_experts=128, moe_every=2),
}  # fmt: skip
