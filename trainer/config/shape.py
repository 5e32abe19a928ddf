"""The shape of a model: numbers such as width and layers, which determine the sizes of its weights."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class RopeScaling:
    """The scaling of rotary angles in Llama 3.1, for sequences longer than those that it was first trained on.

    Each pair of features is rotated by some angle per token. A pair that makes fewer than `low_freq_factor` full turns
    in `original_length` tokens has its angle divided by `factor`. A pair that makes more than `high_freq_factor` turns
    keeps its angle. The angles of pairs between these limits are interpolated.
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192


@dataclass(frozen=True)
class YarnScaling:
    """The scaling of rotary angles and attention scores called YaRN: https://arxiv.org/abs/2309.00071.

    Each pair of features is rotated by some angle per token. A pair that makes `beta_fast` full turns or more in
    `original_length` tokens keeps its angle. A pair that makes `beta_slow` turns or fewer has its angle divided by
    `factor`. The angles of pairs between these limits are interpolated by the index of the pair. Most fields have the
    names of the transformers package, in which 0 means that a value is not given.
    """

    factor: float = 40.0
    original_length: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float = 0.0
    """The factor on the rotated features; 0: it is computed from `factor`, `mscale` and `mscale_all_dim`."""
    truncate: bool = True
    """Whether the range of pairs to interpolate is widened to begin and end at whole indices."""

    def magnitude(self, weight: float = 1.0) -> float:
        """Return 1 + 0.1 * weight * ln(factor), or 1 if `factor` is at most 1.

        YaRN multiplies attention by this factor, so that it stays as sharp over longer sequences.
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
        return self.head_dim
