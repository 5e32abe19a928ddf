"""The shape of a DeepSeek-V3 model, and its published size."""

from dataclasses import dataclass

from trainer.config.shape import YarnScaling
from trainer.models.llama4.flavors import ModelArgs as MixtureArgs


@dataclass(frozen=True)
class ModelArgs(MixtureArgs):
    """The shape of a DeepSeek-V3 model.

    Keys and values of all heads are computed from `kv_lora_rank` features per token (the latent). In the queries and
    keys of a head, `plain_head_dim` features are not rotated and `rope_head_dim` features are rotated. Its values have
    `v_head_dim` features.
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
    """The number of features per token from which all queries are computed; None: all features of the token."""
    kv_lora_rank: int = 512
    plain_head_dim: int = 128
    rope_head_dim: int = 64
    v_head_dim: int = 128
    n_dense_layers: int = 3
    """Number of layers at the beginning that have no experts."""
    n_shared_experts: int = 1
    """Number of experts that every token uses; they are computed as one wide feed-forward layer."""
    n_groups: int = 8
    top_groups: int = 4
    """Number of groups (of `n_groups`) from which a token's experts come: those with the best sum of two scores."""
    route_scale: float = 2.5
    """The sum to which the weights of a token's experts are scaled."""

    def __post_init__(self) -> None:
        """Set `head_dim`, the width of a head's queries and keys."""
        object.__setattr__(self, "head_dim", self.plain_head_dim + self.rope_head_dim)

    @property
    def rotary_dim(self) -> int:
        """The number of features of a head that are rotated."""
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
