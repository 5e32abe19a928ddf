"""The shape of a Qwen3 model, and its published dense sizes."""

from dataclasses import dataclass, replace

from trainer.config.hf_format import ATTENTION, Format, Layout, Place, feed_forward
from trainer.config.shape import ModelArgs as DenseArgs


@dataclass(frozen=True)
class ModelArgs(DenseArgs):
    """The shape of a Qwen3 model, whose `head_dim` may be more or less than `dim` divided by the number of heads."""

    dim: int = 1024
    n_layers: int = 28
    n_heads: int = 16
    hidden_dim: int = 3072
    vocab_size: int = 151936
    norm_eps: float = 1e-6
    rope_theta: float = 1e6


# As small as Llama 3's; all heads together are twice as wide as the model, as in 0.6B.
SMALL = ModelArgs(64, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=32, hidden_dim=192, vocab_size=320)
FLAVORS = {
    "debugmodel": replace(SMALL, enable_weight_tying=True),
    "debugmodel_untied": SMALL,
    "0.6B": ModelArgs(enable_weight_tying=True),
    "1.7B": ModelArgs(2048, hidden_dim=6144, enable_weight_tying=True),
    "4B": ModelArgs(2560, n_layers=36, n_heads=32, hidden_dim=9728, enable_weight_tying=True),
    "8B": ModelArgs(4096, n_layers=36, n_heads=32, hidden_dim=12288),
    "14B": ModelArgs(5120, n_layers=40, n_heads=40, hidden_dim=17408),
    "32B": ModelArgs(5120, n_layers=64, n_heads=64, hidden_dim=25600),
}


# The weight of a norm has an element for each feature, so its order is that of the rotary features.
NORMS = {f"attention.{name}.weight": Place(f"self_attn.{name}.weight", Layout.ROTARY) for name in ("q_norm", "k_norm")}
FORMAT = Format(
    "qwen3",
    "Qwen3ForCausalLM",
    ModelArgs,
    {**ATTENTION, **NORMS, **feed_forward("feed_forward", "mlp")},
    omitted={"head_dim": 128},
    fixed={"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False},
)
