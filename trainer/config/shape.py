"""The shape of a model: the numbers that its sizes follow from."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RopeScaling:
    """The scaling of rotary angles with which Llama 3.1 reads longer sequences than it was first trained on.

    Angles that turn less than `low_freq_factor` times in `original_length` tokens become `factor` times slower, those
    that turn more than `high_freq_factor` times keep their speed, and those between are interpolated.
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192


@dataclass(frozen=True)
class ModelArgs:
    """The shape of a dense model; `dim`, `head_dim` and `hidden_dim` are in features, `vocab_size` in tokens."""

    dim: int = 4096
    n_layers: int = 32
    n_heads: int = 32
    n_kv_heads: int = 8
    head_dim: int = 128
    hidden_dim: int = 14336
    """Width of the feed-forward layers."""
    vocab_size: int = 128256
    norm_eps: float = 1e-5
    rope_theta: float = 500000.0
    rope_scaling: RopeScaling | None = None
    enable_weight_tying: bool = False
    """Whether the output layer has the weight of the embedding."""

    @property
    def rotary_dim(self) -> int:
        """Features of a head that are rotated."""
        return self.head_dim
