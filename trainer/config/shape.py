"""The shape of a model: the numbers, such as width and layers, from which the sizes of its weights follow."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class RopeScaling:
    """The scaling of rotary angles with which Llama 3.1 reads longer sequences than it was first trained on.

    Each pair of features is rotated by some angle per token. Pairs that make fewer than `low_freq_factor` full turns
    in `original_length` tokens have their angle divided by `factor`, those that make more than `high_freq_factor`
    turns keep their angle, and the angles of those between are interpolated.
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192


@dataclass(frozen=True)
class YarnScaling:
    """The scaling of rotary angles and attention scores called YaRN: https://arxiv.org/abs/2309.00071.

    Each pair of features is rotated by some angle per token. Pairs that make `beta_fast` full turns or more in
    `original_length` tokens keep their angle, those that make `beta_slow` turns or fewer have it divided by `factor`,
    and the angles of the pairs between are interpolated by the pair's index. Most fields have the names of the
    transformers package, where 0 stands for a value that is not given.
    """

    factor: float = 40.0
    original_length: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float = 0.0
    """Factor on the rotated features; 0: it is computed from `factor`, `mscale` and `mscale_all_dim`."""
    truncate: bool = True
    """Whether the range of pairs to interpolate is extended to whole pair indices."""

    def magnitude(self, weight: float = 1.0) -> float:
        """Return 1 + 0.1 * weight * ln(factor), or 1 if `factor` is at most 1.

        By this factor YaRN scales attention up, so that it stays as sharp over longer sequences.
        """
        return 0.1 * weight * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    @property
    def amplitude(self) -> float:
        """The factor by which the rotated features of queries and keys are multiplied."""
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
    """Width of the feed-forward layers between their two products."""
    vocab_size: int = 128256
    norm_eps: float = 1e-5
    rope_theta: float = 500000.0
    rope_scaling: RopeScaling | YarnScaling | None = None
    enable_weight_tying: bool = False
    """Whether the output layer shares the weight of the embedding."""

    @property
    def rotary_dim(self) -> int:
        """The number of features of a head that are rotated."""
        return self.head_dim
