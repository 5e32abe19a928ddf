"""The shape parameters of DeepSeek-V3, and its published size."""

from dataclasses import dataclass

from trainer.config.shape import YarnScaling
from trainer.models.llama4.flavors import ModelArgs as MixtureArgs


@dataclass(frozen=True)
class ModelArgs(MixtureArgs):
    """The shape of a DeepSeek-V3. Keys and values of all heads are made of `kv_lora_rank` features of a token.

    A head has `plain_head_dim` features that are not rotated and `rope_head_dim` that are; its values have
    `v_head_dim`.
    """

    dim: int = 7168
    n_layers: int = 61
    n_heads: int = 128
    n_kv_heads: int = 128
    hidden_dim: int = 18432
    vocab_size: int = 129280
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    n_experts: int = 256
    top_k: int = 8
    expert_dim: int = 2048
    q_lora_rank: int | None = 1536
    """Features that the queries of all heads are made of; None: queries are made of the token itself."""
    kv_lora_rank: int = 512
    plain_head_dim: int = 128
    rope_head_dim: int = 64
    v_head_dim: int = 128
    n_dense_layers: int = 3
    """Number of layers at the beginning that have no experts."""
    n_shared_experts: int = 1
    """Number of experts that all tokens use, which are one feed-forward layer of their joint width."""
    n_groups: int = 8
    top_groups: int = 4
    """A token's experts are in the `top_groups` groups, of `n_groups`, whose best two experts score highest."""
    route_scale: float = 2.5
    """Sum of the weights of a token's experts."""

    def __post_init__(self) -> None:
        """Set the width of a head's queries and keys."""
        object.__setattr__(self, "head_dim", self.plain_head_dim + self.rope_head_dim)

    @property
    def rotary_dim(self) -> int:
        """Features of a head that are rotated."""
        return self.rope_head_dim


FLAVORS = {
    # As small as Llama 3's, with two groups of experts of which a token uses one.
    "debugmodel": ModelArgs(
        64, n_layers=4, n_heads=4, n_kv_heads=4, hidden_dim=192, vocab_size=320, n_experts=8, top_k=2, expert_dim=64,
        q_lora_rank=32, kv_lora_rank=32, plain_head_dim=16, rope_head_dim=8, v_head_dim=16, n_dense_layers=1,
        n_groups=2, top_groups=1,
    ),
    "671B": ModelArgs(rope_scaling=YarnScaling(mscale=1.0, mscale_all_dim=1.0)),
}  # fmt: skip
