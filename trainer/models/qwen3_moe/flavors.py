"""The shape of a Qwen3 model with experts, and its published sizes."""

from dataclasses import dataclass

from trainer.models.llama4.flavors import ModelArgs as MixtureArgs


@dataclass(frozen=True)
class ModelArgs(MixtureArgs):
    """The shape of a Qwen3 model with experts; it has no shared expert."""

    dim: int = 2048
    n_heads: int = 32
    n_kv_heads: int = 4
    hidden_dim: int = 6144
    vocab_size: int = 151936
    norm_eps: float = 1e-6
    rope_theta: float = 1e6
    n_experts: int = 128
    top_k: int = 8
    expert_dim: int = 768
    norm_weights: bool = True
    """Whether the weights of a token's experts are scaled so that they sum to 1."""


FLAVORS = {
    # As small as Qwen3's; the second and the fourth layer have experts.
    "debugmodel": ModelArgs(
        64, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=32, hidden_dim=192, vocab_size=320, n_experts=8, top_k=2,
        expert_dim=64, moe_every=2,
    ),
    "30B-A3B": ModelArgs(),
    # The base of the angles is that of the newer weights (2507), as in torchtitan; those of May 2025 have 1e6.
    "235B-A22B": ModelArgs(4096, n_layers=94, n_heads=64, hidden_dim=12288, expert_dim=1536, rope_theta=5e6),
}  # fmt: skip
