"""The shape of a model: the numbers that its sizes follow from."""

import math
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
class YarnScaling:
    """The scaling of rotary angles and of attention that is called YaRN: https://arxiv.org/abs/2309.00071.

    Angles that turn `beta_fast` times or more in `original_length` tokens keep their speed, those that turn `beta_slow`
    times or less become `factor` times slower, and the pairs of features between are interpolated by their number. The
    names are those of the transformers package; there, 0 stands for a value that is not given.
    """

    factor: float = 40.0
    original_length: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float = 0.0
    """Factor of rotated features; 0: it follows from `factor` and the two before."""
    truncate: bool = True
    """Whether the first and the last pair that are interpolated are whole numbers."""

    def magnitude(self, weight: float = 1.0) -> float:
        """Return 1 + 0.1 ln(factor) for a weight of 1: how much larger attention scores become to stay as sharp."""
        return 0.1 * weight * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    @property
    def amplitude(self) -> float:
        """Factor of the rotated features of queries and keys."""
        if self.attention_factor:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self.magnitude(self.mscale) / self.magnitude(self.mscale_all_dim)
        return self.magnitude()


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
    rope_scaling: RopeScaling | YarnScaling | None = None
    enable_weight_tying: bool = False
    """Whether the output layer has the weight of the embedding."""

    @property
    def rotary_dim(self) -> int:
        """Features of a head that are rotated."""
        return self.head_dim
