"""The shape parameters of Llama 4, and its published sizes."""

from dataclasses import dataclass

from trainer.models.llama3.flavors import ModelArgs as DenseArgs


@dataclass(frozen=True)
class ModelArgs(DenseArgs):
    """The shape of a Llama 4. In expert layers, each token uses `top_k` of `n_experts` experts and the shared
    expert.
    """

    dim: int = 5120
    n_layers: int = 48
    n_heads: int = 40
    vocab_size: int = 202048
    ffn_dim_multiplier: float = 1.2
    multiple_of: int = 2048
    n_experts: int = 16
    top_k: int = 1
    moe_every: int = 1
    """Every `moe_every`-th layer has experts; the others are dense."""

    @property
    def expert_dim(self) -> int:
        """Hidden width of an expert, rounded up: the experts that one token uses are together as wide as a dense
        layer.
        """
        unrounded = self.hidden_dim // (self.top_k + 1)
        return -(-unrounded // self.multiple_of) * self.multiple_of


FLAVORS = {
    # As small as Llama 3's; two experts a token, so that what comes back is a sum.
    "debugmodel": ModelArgs(
        64, n_layers=4, n_heads=4, n_kv_heads=2, vocab_size=320, ffn_dim_multiplier=1, multiple_of=32,
        n_experts=8, top_k=2, moe_every=2,
    ),
    "17bx16e": ModelArgs(),
    "17bx128e": ModelArgs(n_experts=128, moe_every=2),
}  # fmt: skip
