"""The shape parameters of Llama 3, and its published sizes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelArgs:
    """The shape of a Llama 3 model; `dim` is in features, `vocab_size` in tokens."""

    dim: int = 4096
    n_layers: int = 32
    n_heads: int = 32
    n_kv_heads: int = 8
    vocab_size: int = 128256
    ffn_dim_multiplier: float = 1.3
    multiple_of: int = 1024
    norm_eps: float = 1e-5
    rope_theta: float = 500000.0

    @property
    def hidden_dim(self) -> int:
        """Width of the feed-forward layers: 2/3 of 4 * dim * multiplier, rounded up to `multiple_of`."""
        unrounded = int(self.ffn_dim_multiplier * int(8 * self.dim / 3))
        return -(-unrounded // self.multiple_of) * self.multiple_of


FLAVORS = {
    # Small enough for a step of tens of milliseconds on a CPU; 320 = 256 bytes and specials, divisible by many degrees.
    "debugmodel": ModelArgs(
        64, n_layers=4, n_heads=4, n_kv_heads=2, vocab_size=320, ffn_dim_multiplier=1, multiple_of=32
    ),
    "debugmodel_large": ModelArgs(
        256, n_layers=8, n_heads=8, n_kv_heads=4, vocab_size=320, ffn_dim_multiplier=1, multiple_of=32
    ),
    "8B": ModelArgs(),
    "70B": ModelArgs(8192, n_layers=80, n_heads=64, multiple_of=4096),
    "405B": ModelArgs(16384, n_layers=126, n_heads=128, ffn_dim_multiplier=1.2, multiple_of=4096),
}
